"""The effect that each study repeats: its stated comparisons, and the verdict of each.

The verdicts are those of `groupwise.evaluation.seed_verdicts`. A study with several settings has one for each of them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from studies import (
    clip_fraction,
    clip_higher,
    dense_twin,
    difficulty,
    divisors,
    dynamic_sampling,
    engine_logprobs,
    gspo_regimes,
    ladder,
    length_bias,
    lengths,
    moe,
    pass_at_k,
    r1_zero,
    ratio_drift,
    smollm2,
    useful_length,
)
from studies.study import LEAST_ACCURACY, LEAST_TOKENS, Estimate, Exact, Measured, Study

Estimates = list[Estimate]
DAPO, DR_GRPO, GSPO, R1 = "2503.14476", "2503.20783", "2507.18071", "2501.12948"
PASS_AT_K = "2504.13837"


@dataclass(frozen=True, slots=True)
class Effect:
    """What a study repeats: the effect, its paper, and the estimates of the stated comparison, one for each setting.

    Each estimate has the smallest difference that counts. `sign` is 1 if the paper claims estimates above
    `border`, -1 if it claims them below. The first estimate is the number of the table, with `unit`. An effect is about
    what a policy learns, about a mechanism, or computed exactly.
    """

    study: Study
    effect: str
    paper: str
    estimates: Callable[[Mapping[str, Measured], Exact], Estimates]
    unit: str
    kind: Literal["learning", "mechanism", "exact"] = "learning"
    sign: int = 1
    border: float = 0.0

    def claimed(self, measured: Mapping[str, Measured], exact: Exact) -> Estimates:
        """The estimate of each setting with the sign of the claim: above 0 is what the paper says."""
        return [estimate.claimed(self.sign, self.border) for estimate in self.estimates(measured, exact)]

    def verdicts(self, measured: Mapping[str, Measured], exact: Exact) -> list[str]:
        """A verdict for each setting."""
        return [estimate.word for estimate in self.claimed(measured, exact)]


def _length_bias(m: Mapping[str, Measured], exact: Exact) -> Estimates:
    wrong, right = length_bias.ends_exact(exact)["grpo"]
    return [wrong.minus(right, LEAST_TOKENS), *(lengths.gaps(m[part])["grpo"] for part in ("long", "coin"))]


def _difficulty(m: Mapping[str, Measured], exact: Exact) -> Estimates:
    (levels,) = m.values()
    gains = {level: difficulty.gain(levels, level) for level in difficulty.LEVELS}
    return [gains[level].minus(gains["middle"], LEAST_ACCURACY) for level in ("hard", "easy")]


def _dynamic_sampling(m: Mapping[str, Measured], exact: Exact) -> Estimates:
    runs = dynamic_sampling.accuracies(m["calculator"], "iterations")
    return [runs["on"].minus(runs["off"], LEAST_ACCURACY)]


def _clip_fraction(m: Mapping[str, Measured], exact: Exact) -> Estimates:
    (grpo, gspo), _ = clip_fraction.shares(m["rates"], "1e-4")
    return [gspo.minus(grpo, clip_fraction.LEAST_CLIPPED)]


def _ladder(m: Mapping[str, Measured], exact: Exact) -> Estimates:
    naive, *_, whole = ladder.RUNGS
    return [ladder.after(m["rungs"], whole).minus(ladder.after(m["rungs"], naive), LEAST_ACCURACY)]


def _r1_zero(m: Mapping[str, Measured], exact: Exact) -> Estimates:
    runs, last = m["budget"], r1_zero.LAST
    return [runs.mean("full", metric, last - 4, last).minus(runs.mean("full", metric, 1, 1), least)
            for metric, least in ((r1_zero.RIGHT, LEAST_ACCURACY), (r1_zero.LENGTH, LEAST_TOKENS))]  # fmt: skip


def _moe(m: Mapping[str, Measured], exact: Exact) -> Estimates:
    gspo, grpo = (moe.rung(m["rates"], key, moe.RATES, moe.LAST) for key in ("gspo", "grpo"))
    return [gspo.minus(grpo, 0.5)]


def _engine_logprobs(m: Mapping[str, Measured], exact: Exact) -> Estimates:
    pairs = [(m[part], x) for part, (_, engines) in engine_logprobs.PARTS.items() for x in engines]
    change = engine_logprobs.change
    return [change(runs, "gspo", x).minus(change(runs, "grpo", x)) for runs, x in pairs]


def _ratio_drift(m: Mapping[str, Measured], exact: Exact) -> Estimates:
    return [ratio_drift.common(m["dense"], key) for key in ratio_drift.DENSE]


EFFECTS = (
    Effect(length_bias.STUDY, "GRPO makes wrong answers longer than right ones", DR_GRPO, _length_bias, "tokens"),
    Effect(useful_length.STUDY, "GRPO makes wrong answers longer than Dr. GRPO does, where length has a use", DR_GRPO,
           lambda m, _: [useful_length.longer(m["searches"], key) for key in ("grpo", "no_std")], "tokens"),
    Effect(difficulty.STUDY, "the std favours the hardest and the easiest questions", DR_GRPO, _difficulty,
           "accuracy of hard sums minus that of middle ones"),
    Effect(divisors.STUDY, "a mean of microbatches' means has another gradient than the token mean", DAPO,
           lambda _, exact: [Estimate(tuple(exact["microbatches: 1 group"]["distance"]), least=0.05)],
           "of the gradient's norm", "exact"),
    Effect(dynamic_sampling.STUDY, "dynamic sampling reaches more in equal iterations", DAPO, _dynamic_sampling,
           "accuracy"),
    Effect(clip_higher.STUDY, "a higher upper bound keeps entropy and pass@64", DAPO,
           lambda m, _: [clip_higher.gains(m["bounds"], "0.28")[key] for key in clip_higher.CLAIMED.values()],
           "nats of entropy"),
    Effect(ladder.STUDY, "DAPO's techniques end above GRPO at equal iterations", DAPO, _ladder, "accuracy"),
    Effect(clip_fraction.STUDY, "GSPO clips far more tokens than GRPO", GSPO, _clip_fraction, "of the tokens",
           "mechanism"),
    Effect(gspo_regimes.STUDY, "GSPO ends higher than GRPO", GSPO,
           lambda m, _: [gspo_regimes.chosen(m["regimes"], regime) for regime in gspo_regimes.REGIMES],
           "right answers"),
    Effect(ratio_drift.STUDY, "the mean over an answer averages most of the noise of its tokens' ratios", GSPO,
           _ratio_drift, "of the variance of tokens", "mechanism", -1, ratio_drift.HALF),
    Effect(moe.STUDY, "in mixtures of experts GSPO is stable at larger learning rates", GSPO, _moe, "rungs of three"),
    Effect(dense_twin.STUDY, "GSPO's gain is larger in a mixture than in a dense model", GSPO,
           lambda m, _: [dense_twin.more_in_mixture(m["both"])], "right answers"),
    Effect(engine_logprobs.STUDY, "GSPO tolerates old log-probs of the engine better than GRPO", GSPO,
           _engine_logprobs, "right answers"),
    Effect(r1_zero.STUDY, "accuracy and length rise together", R1, _r1_zero, "right answers"),
    Effect(pass_at_k.STUDY, "training lowers pass@64 of tiny models", PASS_AT_K,
           lambda m, _: [pass_at_k.gains(own)[64] for own in m.values()], "pass@64", sign=-1),
    Effect(smollm2.STUDY, "training lowers pass@64 of a pretrained model", PASS_AT_K,
           lambda m, _: [smollm2.gains(m["rl"], smollm2.LAST)[64]], "pass@64", sign=-1),
)  # fmt: skip
"""The effect of each study, by paper."""
