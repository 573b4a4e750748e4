"""LATR: a tree of greedy branches gives the beginnings of a group's answers."""

from groupwise.advantages import Standardised
from groupwise.learner import InitialPolicy
from groupwise.methods.method import Method
from groupwise.methods.reference import Difference, Effect, Reference
from groupwise.methods.schedules import Piecewise
from groupwise.objective import KL, Clip, Objective, token_mean
from groupwise.rollout import Lookahead

__all__ = ["latr"]


def latr(
    *,
    group_size: int = 8,
    absolute: float = 0.15,
    relative: float = 0.25,
    ages: tuple[int, ...] = (20, 30, 50),
    edit: float = 0.0,
    suffix: float = 0.2,
    rouge: float = 0.5,
    steps: int = 1024,
    shares: tuple[tuple[int, float], ...] = ((0, 1.0), (100, 0.75), (200, 0.5), (300, 0.25)),
    clip: float = 0.2,
    kl: float = 0.01,
    minibatches: int = 1,
) -> Method:
    """GRPO; a falling share of each group begins with branches of a tree, which forks where the policy is undecided."""
    return Method(
        group_size=group_size,
        strategy=Lookahead(1.0, absolute, relative, 2, ages, edit, suffix, rouge, steps),
        advantage=(Standardised(),),
        models=(("reference", InitialPolicy()),),
        objective=Objective(surrogate=Clip(clip, clip), penalties=(KL(kl),), aggregate=token_mean),
        minibatches=minibatches,
        schedules=(("strategy.share", Piecewise(shares)),),
    )


REFERENCE = Reference(
    paper="Lookahead Tree-Based Rollouts for Enhanced Trajectory-Level Exploration in RLVR",
    arxiv="2510.24302",
    label="code read",
    code="starreeze/latr@2adb0edf24cc9a9342ac021892897adcec1a2738:model/generation.py",
    parent="grpo",
    formula="""\
a branch takes its likeliest token c_1, and forks at c_2 if p(c_2) > tau_abs and p(c_1) - p(c_2) < tau_rel
n tokens after a fork, n in N: drop it if its last n tokens are like its parent's
at most K branches; each is completed by sampling; K = round(eta G) answers of G; GRPO's objective""",
    differences=(
        Difference("thresholds of a fork", "not read", "0.15 and 0.25 for maths", "0.15 and 0.25; two choices"),
        Difference("ages N", "not read", "20, 30, 50", "20, 30, 50"),
        Difference(
            "alike", "edit distance", "suffix > 0.2, ROUGE-L > 0.5 for maths", "suffix = 0.2, rouge = 0.5; edit = 0"
        ),
        Difference(
            "share eta", "decays", "1, 0.75 from 100, 0.5 from 200, 0.25 from 300 on", "the same points, from 0 on"
        ),
        Difference(
            "end of the tree", "not read", "98 % of a batch is full, or 1024 steps", "its prompt is full, or 1024 steps"
        ),
        Difference("missing branches", "not read", "copies of the first one", "copies of the first one"),
        Difference(
            "tokens of the tree", "not read", "greedy, not corrected", "greedy, not corrected: trained as written"
        ),
        Difference(
            "greedy tokens", "not read", "one forward per token of all branches", "generated ahead, then branched"
        ),
        Difference("KL, clip range, minibatches, group size", "not read", "0.01, 0.2, 1 and 8", "0.01, 0.2, 1 and 8"),
        Difference("aggregate", "not read", "verl's default (recalled)", "token_mean"),
    ),
    proofs=(
        "tests/golden/test_methods.py::test_whole_path[latr]",
        "tests/golden/test_lookahead.py::test_the_share_falls_in_steps",
        "tests/golden/test_lookahead.py::test_forks_need_an_undecided_policy",
        "tests/golden/test_lookahead.py::test_branches_part_at_their_fork",
        "tests/rollout/test_likeliest.py::test_likeliest_tokens_are_those_of_a_plain_forward",
    ),
    effect=Effect(
        metric="groups/all_wrong",
        direction="down",
        task="tiny_countdown",
        parent="grpo",
        least=0.05,
        matched="steps",
        own_settings=(
            "method.strategy.ages = [3, 5]",
            "method.strategy.edit = 0.4",
            "method.strategy.suffix = 1.0",
            "method.strategy.rouge = 1.0",
        ),
    ),
    finding="Answers of tiny_countdown have six tokens, so the tree of greedy tokens and forks writes all of them; in "
    "the paper answers have up to 1024 tokens, and most of them are sampled. In five iterations a group has "
    "3.7 different answers with LATR and 7.3 with GRPO: more are correct (0.21 against 0.10), and more groups "
    "are all wrong (0.55 against 0.43; one seed). Where a policy mostly guesses, its greedy branches are "
    "guesses: on hinted_sums the share of groups without a correct answer rose from 0.63 to 1 within six "
    "iterations, with ages of 3 and 5 (one seed).",
)
