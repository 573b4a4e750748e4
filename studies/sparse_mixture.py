"""A mixture with two active experts: does GSPO learn more than GRPO there? GSPO, arXiv:2507.18071, section 5.3.

Stated before the runs, and before the admission of the mixture was known. The paper's reason for GSPO in mixtures is
that changed experts move the ratios of single tokens. So a comparison in a mixture whose token ratios spread no further
than those of its dense twin says nothing of the claim; it is made only if the claim `admission` (studies/admission.py)
is shown, and else the page says *not admitted*.

The mixture is that of the admission, made again for each seed. 16 minibatches, the bounds of the papers, 20 iterations,
old log-probs of the learner without a replay of the router's choices. Compared, within a seed and so within a base: the
share of right answers over the last ten iterations, GSPO minus GRPO, each at its best of four rates. GSPO is expected
to be higher; a difference below 0.03 does not count. Beside it: the share of changed router choices.

In mixtures with eight active experts, which are not admitted, GSPO was stable at no larger rate than GRPO
(docs/studies/moe.md).
"""

from studies import admission, moe
from studies.claim import Claim
from studies.mixtures import BASES
from studies.study import Arm

LAST = moe.LAST


def arm(key: str) -> Arm:
    """A method on the mixture of the seed."""
    label, bounds = moe.METHODS[key]
    return Arm(label=label, method=key, task="calculator", settings=("model = @sparse", *moe.BASE, *bounds))


CLAIMS = (
    Claim(
        name="sparse-mixture",
        text="in a mixture that is admitted GSPO learns more than GRPO",
        sides=(arm("gspo"), arm("grpo")),
        rates=(5e-5, 1e-4, 2e-4, 4e-4),
        metric=moe.RIGHT,
        first=LAST - 9,
        last=LAST,
        least=0.03,
        beside=(moe.CHANGED,),
        bases=BASES,
        admitted_by=admission.CLAIMS[0],
    ),
)
