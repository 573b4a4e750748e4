"""`Branching`: the answers of a group are the leaves of a tree of denoising steps."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import ClassVar, Literal

from groupwise.data import Draw, Outcome, Role, Rollout, Sample, Sampler, Strategy, Verdict
from groupwise.rollout.attempts import is_graded, score_of
from groupwise.rollout.stretches import steps_from
from groupwise.rollout.together import together

__all__ = ["Branching"]


@dataclass(slots=True, eq=False)
class Node:
    """A branch of the tree from step `first` on, up to the next split. Its sample also has the steps before it.

    `leaves` is the number of leaves that it has or will have.
    """

    sample: Sample
    first: int
    leaves: int
    parent: "Node | None" = None
    children: "list[Node]" = field(default_factory=list)

    @property
    def edge(self) -> float:
        """The log-prob of its first step."""
        return self.sample.logp[self.first]

    @property
    def graded(self) -> int:
        """The number of its leaves with a score."""
        return sum(child.graded for child in self.children) if self.children else int(is_graded(self.sample))


@dataclass(frozen=True, slots=True)
class Branching(Strategy):
    """A tree of denoising steps, which forks into `width` children at each step of `splits`. BranchGRPO.

    All answers have the same first state. At a split a node divides its leaves, `draw.n` for the root, evenly among its
    children; the last split gives each leaf a child. The noise of the steps at splits is `scale` times as large, which
    their log-probs ignore.

    A sample is the part of a branch between two splits, so shared steps are generated and trained once. Parts that end
    in a split have the role `branch`, and their score is fused from the leaves below: the `mean` of the leaves, or the
    mean over the children with weights from the probabilities of their first steps (`path`). The parts of one depth are
    a group. arXiv:2509.06040.
    """

    roles: ClassVar[tuple[Role, ...]] = (Role("branch", "for each split of the tree"),)

    splits: tuple[int, ...] = (0, 3, 6, 9)
    width: int = 2
    scale: float = 4.0
    fusion: Literal["mean", "path"] = "mean"

    def __post_init__(self) -> None:
        increasing = all(a < b for a, b in pairwise(self.splits))
        if not self.splits or not increasing or self.splits[0] < 0 or self.width < 2 or not self.scale > 0:
            raise ValueError(f"{self}\nneeds splits from 0 on in increasing order, width >= 2 and scale > 0")

    @property
    def noisy_steps(self) -> tuple[int, ...]:
        """The steps that must have noise."""
        return self.splits

    async def __call__(self, draw: Draw, sampler: Sampler) -> Rollout:
        (root,) = sampler.start(draw.prompt.context)
        levels = [[Node(root, 0, draw.n)]]
        for split in self.splits:
            if levels[-1][0].leaves == 1:
                break
            await together(self._grow(node, split, sampler) for node in levels[-1])
            levels.append([child for node in levels[-1] for child in self._fork(node, split)])
        await together(self._grow(node, None, sampler) for node in levels[-1])
        leaves = await sampler.verify([node.sample for node in levels[-1]])
        for node, leaf in zip(levels[-1], leaves, strict=True):
            node.sample = leaf
        for node in reversed([node for level in levels[:-1] for node in level]):
            node.sample = node.sample.with_verdict(self._fused(node.children))
        return Rollout(draw, tuple(branches(levels)))

    async def _grow(self, node: Node, end: int | None, sampler: Sampler) -> None:
        """Take a node's steps before step `end`, or all. After a fork, the noise of the first is `scale` as large."""
        if node.parent is not None:
            wide = replace(sampler.sampling, temperature=self.scale)
            node.sample = await sampler.extend(node.sample, limit=1, sampling=wide)
        left = None if end is None else end - len(node.sample.tokens)
        node.sample = await sampler.extend(node.sample, limit=left)

    def _fork(self, node: Node, split: int) -> list[Node]:
        """The children of a node, which divide its leaves; at the last split, one for each leaf."""
        count = node.leaves if split == self.splits[-1] else min(self.width, node.leaves)
        shares = [(node.leaves + i) // count for i in reversed(range(count))]
        node.children = [Node(node.sample.fork(split, i), split, share, node) for i, share in enumerate(shares)]
        return node.children

    def _fused(self, children: Sequence[Node]) -> Verdict:
        """The verdict on a branch, from its children that have a score; unverifiable without one."""
        graded = [child for child in children if is_graded(child.sample)]
        if not graded:
            return Verdict(Outcome.unverifiable, cause="no answer of this branch has a score")
        largest = max(child.edge for child in graded)
        mean = self.fusion == "mean"
        weights = [child.graded if mean else math.exp(child.edge - largest) for child in graded]
        scores = [score_of(child.sample) for child in graded]
        return Verdict(Outcome.scored, sum(w * x for w, x in zip(weights, scores)) / sum(weights))


def branches(levels: Sequence[Sequence[Node]]) -> Iterator[Sample]:
    """The samples of a tree, by depth: each has the steps of one node, and the index of its parent's sample."""
    number: dict[int, int] = {}
    for depth, level in enumerate(levels):
        role = "answer" if depth == len(levels) - 1 else "branch"
        for node in level:
            own = steps_from(node.sample, node.first)
            if own.tokens:  # the root has no steps before a split at step 0
                parent = None if node.parent is None else number.get(id(node.parent))
                number[id(node)] = len(number)
                yield replace(own, group=depth, role=role, parent=parent)
