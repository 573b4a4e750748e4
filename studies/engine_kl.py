"""Old log-probs from the engine, by its KL divergence per token: when do they suffice? arXiv:2507.18071, section 5.4.

Stated before the runs. The paper says that GSPO can take the engine's log-probs as the old ones. Under an engine that
samples from other probabilities the mean log-ratio of an answer lies below 0 by the KL divergence per token, so the
paper's lower bound of 3e-4 clips most answers with a negative advantage once the KL exceeds it. Predicted: with a KL
per token below 3e-5, a tenth of the bound, the engine's log-probs cost nothing (*absent*). Above 3e-4 they cost right
answers (*opposite*). In between there is no prediction.

The engine rounds its weights to 8, 6, 5 and 4 bits (studies/rounded_engine.py), the learner computes in float32. Both
sides sample from that engine; the first takes its log-probs as the old ones, the second those of the learner, each at
its best of four rates. GSPO, the packaged model, four minibatches, 20 iterations. Compared, within a seed: the share of
right answers over the last ten iterations; a difference below 0.02 does not count. The KL is measured in the runs of
the second side, as the mean of the engine's log-prob minus the learner's (studies/kl_notes.py).

Known before: in bfloat16 and with 8 bits, at a rate of 1e-4, GSPO with the engine's log-probs was lower by about 0.016
(studies/engine_logprobs.py). The KL of those runs was not measured.
"""

from studies.claim import Claim
from studies.clip_fraction import BOUNDS
from studies.engine_logprobs import EXACT
from studies.gspo_regimes import LAST
from studies.noisy_logprobs import RATES, UNTUNED
from studies.stable_rates import RIGHT
from studies.study import Arm

BITS = (8, 6, 5, 4)
KL = "method/EngineKL/kl"


def arm(bits: int, source: str) -> Arm:
    """GSPO with an engine of some bits, and old log-probs of the engine or of the learner."""
    engine = f'engine = {{kind = "rounded_engine:Rounded", bits = {bits}, max_logprob_diff = 100.0}}'
    settings = (*UNTUNED, *BOUNDS["gspo"], EXACT, engine, f"method.old_logprobs = {source}",
                'method.mask = ["kl_notes:EngineKL"]')  # fmt: skip
    return Arm(label=f"{bits} bits, {source}", method="gspo", task="calculator", settings=settings)


CLAIMS = tuple(
    Claim(
        name=f"engine-{bits}-bits",
        text=f"GSPO with old log-probs of an engine of {bits} bits learns as much as with the learner's",
        sides=(arm(bits, "engine"), arm(bits, "learner")),
        rates=RATES,
        metric=RIGHT,
        first=LAST - 9,
        last=LAST,
        least=0.02,
        beside=(KL,),
        use=("studies/rounded_engine.py", "studies/kl_notes.py"),
    )
    for bits in BITS
)
