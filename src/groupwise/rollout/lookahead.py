"""`Lookahead`: answers begin with branches of a tree, which forks where the policy is undecided between tokens."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from groupwise.data import WRITTEN, Draw, Ids, Rollout, Sample, Sampler, Strategy
from groupwise.rollout.likeness import edit_distance, rouge_l, suffix_match
from groupwise.rollout.together import together

__all__ = ["Lookahead"]


@dataclass(slots=True, eq=False)
class Branch:
    """A branch of the tree: the first tokens of an answer. Its sample may have tokens that the tree has not reached."""

    sample: Sample
    birth: int = 0
    parent: "Branch | None" = None

    def ended(self, step: int) -> bool:
        """Whether the answer has ended before this step."""
        return self.sample.finish is not None and len(self.sample.tokens) <= step


@dataclass(frozen=True, slots=True)
class Lookahead(Strategy):
    """The fraction `share` of a group begins with branches of a tree; the other answers are independent. LATR.

    A branch takes the likeliest token. It forks at one of the `choices` likeliest with a probability above `absolute`
    and less than `relative` below the largest, while there are fewer branches than answers to begin. When a fork has an
    age in `ages`, it is cut, with its own forks, if its last tokens are like its parent's: an edit distance per token
    below `edit`, or a `suffix_match` or `rouge_l` above `suffix` or `rouge`. The tree ends after `steps` tokens, or
    when all branches are there and old enough. Tokens of the tree are trained as written. arXiv:2510.24302.
    """

    share: float = 1.0
    absolute: float = 0.15
    relative: float = 0.25
    choices: int = 2
    ages: tuple[int, ...] = (20, 30, 50)
    edit: float = 0.0
    suffix: float = 0.2
    rouge: float = 0.5
    steps: int = 1024

    def __post_init__(self) -> None:
        if not (0 <= self.share <= 1 and self.choices >= 2 and self.ages and min(self.ages) > 0):
            raise ValueError(f"{self}: needs 0 <= share <= 1, choices >= 2, and ages not empty and all above 0")

    async def __call__(self, draw: Draw, sampler: Sampler) -> Rollout:
        count = round(self.share * draw.n)
        prefixes = await self.tree(draw.prompt.context, count, sampler) if count else []
        starts = sampler.start(draw.prompt.context, draw.n)
        begun = [_begun(s, prefixes[i if i < len(prefixes) else 0]) for i, s in enumerate(starts[:count])]
        answers = await together(map(sampler.extend, (*begun, *starts[count:])))
        return Rollout(draw, tuple(await sampler.verify(answers)))

    async def tree(self, context: Ids, count: int, sampler: Sampler) -> list[Sample]:
        """Grow the tree: at most `count` beginnings of answers, the first of them greedy."""
        (root,) = sampler.start(context, role="tree")
        branches, step = [Branch(root)], 0
        for step in range(self.steps):
            await together(self._look_ahead(branch, step, sampler) for branch in branches)
            if all(branch.ended(step) for branch in branches):
                break
            branches = self.cut([*branches, *self.forks(branches, step, count - len(branches))], step + 1)
            if len(branches) >= count and all(branch.birth + max(self.ages) < step for branch in branches):
                break
        return [_first(branch.sample, step + 1) for branch in branches]

    async def _look_ahead(self, branch: Branch, step: int, sampler: Sampler) -> None:
        """Generate greedy tokens, if the branch has none at this step."""
        if branch.sample.finish is None and len(branch.sample.tokens) <= step:
            greedy = replace(sampler.sampling, temperature=0.0, top_p=1.0, top_k=0, min_p=0.0)
            ahead = min(max(self.ages), self.steps - step)
            branch.sample = await sampler.extend(branch.sample, limit=ahead, sampling=greedy, top=self.choices)

    def forks(self, branches: Sequence[Branch], step: int, most: int) -> list[Branch]:
        """The new branches at a step, at most `most`: the second choices of all branches before any third."""
        ranked = [
            (rank, i, token)
            for i, branch in enumerate(branches)
            if not branch.ended(step)
            for rank, token in self._choices(branch.sample, step)
        ]
        return [
            Branch(branches[i].sample.fork(step, rank).insert((token,), WRITTEN), step, branches[i])
            for rank, i, token in sorted(ranked)[: max(most, 0)]
        ]

    def _choices(self, sample: Sample, step: int) -> list[tuple[int, int]]:
        """The rank and the id of each token, other than the branch's own, with which a new branch may fork off."""
        probable = [(token, math.exp(logp)) for token, logp in sample.likeliest[step]]
        best = probable[0][1]
        others = ((token, p) for token, p in probable if token != sample.tokens[step])
        return [(i, t) for i, (t, p) in enumerate(others, 1) if p > self.absolute and best - p < self.relative]

    def cut(self, branches: Sequence[Branch], step: int) -> list[Branch]:
        """Drop branches that resemble their parents when they reach an age in `ages`, with their own forks."""
        left: list[Branch] = []
        for branch in branches:  # a parent comes before its forks
            parent = branch.parent
            if parent is None or (parent in left and not self._alike(branch, parent, step)):
                left.append(branch)
        return left

    def _alike(self, branch: Branch, parent: Branch, step: int) -> bool:
        if step - branch.birth not in self.ages or branch.ended(step) or parent.ended(step):
            return False
        a, b = (x.sample.tokens[branch.birth : step] for x in (branch, parent))
        return (
            edit_distance(a, b) < self.edit * len(a) or suffix_match(a, b) > self.suffix or rouge_l(a, b) > self.rouge
        )


def _first(sample: Sample, n: int) -> Sample:
    """The first n tokens of a sample; the whole sample if it has no more."""
    return sample if len(sample.tokens) <= n else sample.fork(n, 0)


def _begun(start: Sample, prefix: Sample) -> Sample:
    """Create an answer that begins with the tokens of a branch. It is finished if the branch is."""
    begun = start.insert(prefix.tokens, WRITTEN)
    return begun.with_text(prefix.text, prefix.ends).with_finish(prefix.finish)
