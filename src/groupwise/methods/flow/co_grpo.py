"""Co-GRPO: a masked diffusion model and the schedule that unmasks it learn from the same trajectories."""

from typing import Literal

from groupwise.advantages import Standardised
from groupwise.learner import InitialPolicy
from groupwise.methods.method import Method
from groupwise.methods.reference import Difference, Effect, Reference
from groupwise.methods.schedules import Cycle
from groupwise.models import Unmask
from groupwise.objective import KL, Clip, Objective, OfRole, PenaltyOfRole, Routed, TakingTurns, role_mean
from groupwise.rollout import SCHEDULE, CoSampled

__all__ = ["co_grpo"]


TURNS = TakingTurns((SCHEDULE, "answer"))


def co_grpo(
    *,
    group_size: int = 8,
    steps: int = 4,
    spread: float = 0.3,
    clip: float = 0.2,
    kl: float = 0.01,
    form: Literal["joint", "alternating"] = "joint",
) -> Method:
    """One z-score per trajectory, for its committed tokens and for the knobs of its schedule; PPO's clip for both."""
    clips = Routed(OfRole(SCHEDULE), Clip(clip, clip), Clip(clip, clip))
    turns = form == "alternating"
    return Method(
        group_size=group_size,
        unmask=Unmask(steps=steps, spread=spread),
        strategy=CoSampled(),
        trains=("answer", SCHEDULE),
        advantage=(Standardised(ddof=0, eps=1e-4),),
        mask=(TURNS,) if turns else (),
        schedules=(("mask.0.turn", Cycle((0.0, 1.0))),) if turns else (),
        models=(("reference", InitialPolicy()),),
        objective=Objective(surrogate=clips, penalties=(PenaltyOfRole("answer", KL(kl)),), aggregate=role_mean),
    )


REFERENCE = Reference(
    paper="Co-GRPO: Co-Optimized Group Relative Policy Optimization for Masked Diffusion Model",
    arxiv="2512.22288",
    label="our reading",
    parent="grpo",
    formula="""\
A_i = (R_i - mean) / (std + 1e-4), std with ddof 0: one number per trajectory, for both streams
L_V = -mean over i of mean over commits of min(rho A, clip(rho, 1 - e, 1 + e) A) + beta KL(pi || reference)
L_A = -mean over i of mean over steps of min(rho A, clip(rho, 1 - e, 1 + e) A)
rho of a commit: softmax(logits / tau) of the cell before the step; rho of a step: Gaussians of its knobs
joint: L_V + L_A;  alternating: L_A, then L_V""",
    differences=(
        Difference("formulas", "only the MDP, both streams and the shared reward were readable", "none", "inferred"),
        Difference("knobs of a step", "temperature, share masked again", "not obtained", "the same (inferred)"),
        Difference(
            "kept cells", "the most confident", "not obtained", "by probability at temperature 1, also earlier commits"
        ),
        Difference("group size, steps", "not readable", "not obtained", "8 and 4 (inferred)"),
        Difference("deviation of the knobs at the start", "not readable", "not obtained", "0.3 (inferred)"),
        Difference("clip ranges, KL", "not readable", "not obtained", "0.2 for both, 0.01 for tokens (inferred)"),
        Difference(
            "learning rates", "not readable", "not obtained", "one; the schedule's numbers move 20 times as fast"
        ),
        Difference(
            "gradient clipping",
            "not readable",
            "not obtained",
            "one norm, mostly the schedule's: it scales both losses",
        ),
        Difference(
            "form",
            "alternating",
            "not obtained",
            'joint, or form = "alternating" with turns of an iteration',
        ),
        Difference("model", "text to image", "text to image", "any masked model of this package: cells and symbols"),
    ),
    proofs=(
        "tests/golden/test_flow_co_grpo.py::test_worked_numbers",
        "tests/golden/test_flow_co_grpo.py::test_whole_path",
        "tests/golden/test_flow_co_grpo.py::test_a_fixed_schedule_is_grpo_on_tokens",
        "tests/golden/test_flow_co_grpo.py::test_the_alternating_form_leaves_one_of_both_as_it_is",
        "tests/golden/test_flow_co_grpo.py::test_no_gradient_between_tokens_and_schedule",
        "tests/golden/test_flow_co_grpo.py::test_the_score_of_the_schedule_has_mean_zero",
    ),
    effect=Effect(
        metric="eval/accuracy",
        direction="up",
        task="beads",
        parent="co_grpo",
        least=0.03,
        matched="steps",
        settings=("method.unmask.spread = 0.0", "method.group_size = 16", "method.minibatches = 2", "iterations = 15"),
        own_settings=("method.unmask.spread = 0.3",),
    ),
)
