"""Admission of a mixture: do its token ratios spread more than those of its dense twin? GSPO, arXiv:2507.18071, 5.3.

Stated before the runs. The paper's reason for GSPO in mixtures: changed experts move the ratios of single tokens.
A mixture without that cannot show what follows from it, and today's does not have it: the ratios of the dense twin
spread as far (studies/dense_twin.py). So a mixture is *admitted* to a comparison of GRPO and GSPO if the standard
deviation of its token log-ratios is larger than its twin's, over the first five iterations of GRPO, within a base; a
difference below 0.03 does not count. Beside it: the excess kurtosis of the log-ratios, which changed experts of a few
tokens raise, and the share of changed router choices.

The candidate has two active experts of 32 in six layers (studies/mixtures.py), its twin the same width in use. An
update that moves one of two experts changes more of a layer's output than one of eight. No run of it was looked at.
"""

from studies.claim import Claim
from studies.mixtures import BASES
from studies.moe import BASE, CHANGED, TOKEN
from studies.ratio_drift import TOKENS
from studies.study import Arm

LAST = 5
KURTOSIS = "method/Spreads/kurtosis"


def arm(model: str) -> Arm:
    """GRPO on a base, with the part that notes the spread of its ratios."""
    base = (line for line in BASE if not line.startswith("iterations ="))
    settings = (f"model = {model}", f"iterations = {LAST}", *base, *TOKEN, 'method.mask = ["ratio_spreads:Spreads"]')
    return Arm(label=model, method="grpo", task="calculator", settings=settings)


CLAIMS = (
    Claim(
        name="admission",
        text="token ratios spread more in a mixture with two active experts than in its dense twin",
        sides=(arm("@sparse"), arm("@sparse_twin")),
        rates=(1e-4,),
        metric=TOKENS,
        first=1,
        last=LAST,
        least=0.03,
        beside=(KURTOSIS, CHANGED),
        bases=BASES,
        use=("studies/ratio_spreads.py",),
    ),
)
