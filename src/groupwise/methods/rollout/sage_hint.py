"""SAGE: hints that the policy writes itself, where a group has no correct answer."""

from typing import Literal

from groupwise.advantages import Standardised
from groupwise.methods.method import Method
from groupwise.methods.reference import Difference, Effect, Reference
from groupwise.objective import Clip, Objective, token_mean
from groupwise.rollout import AtLevel, Escalate, HintLadder, SelfHints, Shuffled

__all__ = ["sage_hint"]


def sage_hint(
    *,
    group_size: int = 8,
    levels: int = 3,
    form: Literal["escalate", "light"] = "escalate",
    least: float = 0.1,
    most: float = 0.35,
    minibatches: int = 2,
) -> Method:
    """GRPO; failed problems are answered again with hints that the policy wrote, and trained with the hinted prompt."""
    hints = SelfHints(levels)
    light = form == "light"
    return Method(
        group_size=group_size,
        curriculum=HintLadder(least, most, levels) if light else Shuffled(),
        strategy=AtLevel(hints) if light else Escalate(hints, levels),
        advantage=(Standardised(ddof=0),),
        objective=Objective(surrogate=Clip(0.2, 0.28), aggregate=token_mean),
        minibatches=minibatches,
    )


REFERENCE = Reference(
    paper="Self-Hinting Language Models Enhance Reinforcement Learning",
    arxiv="2602.03143",
    label="code read",
    code="BaohaoLiao/SAGE@8722c1a3aa5bfe5578df8aaf302741a9715a56a2:recipe/hint/hint_trainer.py",
    parent="dapo",
    formula="""\
level 0: a group from pi_old(. | x); while no answer is correct and l < L: a new group from pi_old(. | x, h_l)
h_l from pi_old(. | x, solution); the last group is trained under its own prompt
light: one group at the level of the prompt, which rises at a pass rate of 0.1 and falls above 0.35""",
    differences=(
        Difference("hints", "one call per level", "all levels in one call, as JSON", "one call per level"),
        Difference(
            "length of a hint", "not specified", "by words in the prompt", "8 tokens per level, 64 in prose (inferred)"
        ),
        Difference("std of a group", "ddof 0", "ddof 0", "ddof 0, plus 1e-6"),
        Difference("clip range, minibatches", "0.2 and 0.28; 2", "0.2 and 0.28; 2", "0.2 and 0.28; 2"),
        Difference("levels, group size", "3 and 8", "3 and 8", "3 and 8"),
        Difference("light: pass rates", "0.35", "0.1 and 0.35", "0.1 and 0.35"),
    ),
    proofs=(
        "tests/golden/test_methods.py::test_whole_path[sage_hint]",
        "tests/golden/test_rollout.py::test_escalation_asks_until_one_is_correct",
        "tests/golden/test_rollout.py::test_self_hints",
        "tests/golden/test_rollout.py::test_ladder_levels",
    ),
    effect=Effect(
        metric="frac_reward_zero_std",
        direction="down",
        task="hinted_sums",
        parent="grpo",
        least=0.1,
        matched="steps",
        settings=("iterations = 10", "evaluate.problems = 16", "method.objective.penalties = []"),
    ),
)
