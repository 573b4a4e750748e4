"""TEMPO: Tree-Estimated Mean Prefix Value."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from groupwise.advantages import Standardised
from groupwise.data import Batch, Credit, Segments
from groupwise.methods.method import Method
from groupwise.methods.reference import ExpectedEffect, PaperDifference, PaperReference
from groupwise.objective import Clip, Objective, group_mean

__all__ = ["PrefixValueDifference", "tempo"]


@dataclass(frozen=True, slots=True)
class PrefixValueDifference(Credit):
    """`x + V(prefix with the token) - V(prefix)`; V is the mean reward x of the group's answers with that prefix.

    The difference is 0 except where answers part. TEMPO, arXiv:2509.18314; that both terms weigh the same is our
    reading. With `include_first_token = False` the first token, where most answers part, has no difference.
    """

    include_first_token: bool = True

    def __call__(self, x: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " n"]:
        prefixes = _prefixes(b)
        length = b.length + 1  # an answer of n tokens has n + 1 prefixes
        value = prefixes.spread(prefixes.mean(x.repeat_interleave(length)))
        start = b.sequences.spread(length.cumsum(0) - length)
        before = start + b.index_in_sample
        difference = value[before + 1] - value[before]
        if not self.include_first_token:
            difference = difference.masked_fill(b.index_in_sample == 0, 0.0)
        return b.sequences.spread(x) + difference


def _prefixes(b: Batch) -> Segments:
    """All prefixes of all answers, in order, from the empty one. Equal prefixes within a group are one segment."""
    numbers: dict[tuple[int, int], int] = {}
    index: list[int] = []
    for sample, node in zip(b.samples, b.groups.index.tolist()):
        index.append(node)
        for token in sample.tokens:
            node = numbers.setdefault((node, token), b.groups.count + len(numbers))
            index.append(node)
    return Segments(
        torch.tensor(index, dtype=torch.long, device=b.index_in_sample.device), b.groups.count + len(numbers)
    )


def tempo(*, group_size: int = 8, clip: float = 0.2, minibatches: int = 1) -> Method:
    """GRPO with a bonus at tokens where a group's answers branch: the change of the mean advantage along the branch.

    GRPO gives all tokens of an answer the same advantage, and PPO's advantage per token needs a learned critic. Here
    answers with a common prefix estimate its value, and its change at a token adds to the advantage; this sum is our
    reading.

    Args:
        group_size: answers per prompt.
        clip: distance of both clip bounds from 1.
        minibatches: optimizer steps per iteration.
    """
    return Method(
        group_size=group_size,
        advantage=(Standardised(ddof=0),),
        credit=PrefixValueDifference(),
        objective=Objective(surrogate=Clip(clip, clip), aggregate=group_mean),
        minibatches=minibatches,
    )


REFERENCE = PaperReference(
    paper="Exploiting Tree Structure for Credit Assignment in RL Training of LLMs",
    arxiv="2509.18314",
    evidence="our reading",
    parent="grpo",
    formula="""\
A_it = R~_i + V(o_i<=t) - V(o_i<t),  R~_i = (R_i - mean(R)) / std(R)
V(prefix) = mean of R~ over the group's answers that begin with it""",
    differences=(
        PaperDifference("sum of both terms", "the correction is added", "not found", "with weight 1 (inferred)"),
        PaperDifference("std of a group", "not specified", "not found", "ddof 0, plus 1e-6 (inferred)"),
        PaperDifference(
            "first token",
            "not specified",
            "not found",
            "has a difference; PrefixValueDifference(include_first_token = false)",
        ),
        PaperDifference("group size, clip range", "not obtained", "not found", "8 and 0.2 (inferred)"),
    ),
    proof_tests=(
        "tests/golden/test_methods.py::test_whole_path[tempo]",
        "tests/golden/test_reward.py::test_branch_difference",
    ),
    expected_effect=ExpectedEffect(
        metric="eval/accuracy",
        direction="up",
        task="hinted_sums",
        parent="grpo",
        min_difference=0.05,
        runs_matched_by="iterations",
        settings=("method.objective.penalties = []",),
    ),
)
