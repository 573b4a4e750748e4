"""LATR's tree with a fake engine, against the worked examples of the specification."""

import asyncio
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest

from groupwise.data import WRITTEN, Finish, Generation, GenerationRequest, Ids, Sample
from groupwise.methods import LookaheadTree, ScheduleInput, latr
from groupwise.methods.sampling.latr import TreeBranch, rouge_l, suffix_match
from groupwise.rollout import Independent
from groupwise.rollout.strategies.sequence_similarity import edit_distance
from tests.golden.play import PLAIN, play
from tests.rollout.fakes import FakeEngine, draw, sampler_of

END = 0
Law = Callable[[Ids], Mapping[int, float]]


@dataclass(eq=False)
class Lawful(FakeEngine):
    """An engine with the token probabilities `answer(context)`. It takes the likeliest token, and stops at 0."""

    async def sample(self, request: GenerationRequest) -> Generation:
        self.calls.append(request)
        tokens: list[int] = []
        likeliest = []
        while len(tokens) < request.limit and tokens[-1:] != [END]:
            law = sorted(self.answer(request.context + tuple(tokens)).items(), key=lambda x: (-x[1], x[0]))
            tokens.append(law[0][0])
            likeliest.append(tuple((token, math.log(p)) for token, p in law[: request.num_top_logprobs]))
        return Generation(
            tokens=tuple(tokens), logp=(0.0,) * len(tokens), versions=(0,) * len(tokens),
            finish=Finish.stop if tokens[-1] == END else Finish.length,
            top_logprobs=tuple(likeliest) if request.num_top_logprobs else (),
        )  # fmt: skip


def grown(law: Law, strategy: LookaheadTree, count: int = 8) -> list[Sample]:
    return asyncio.run(strategy.tree(PLAIN, count, sampler_of(Lawful(law), draw())))


def branch(*probabilities: float) -> TreeBranch:
    """A branch whose next token is 1, with these probabilities of the tokens 1, 2, ..."""
    top = tuple((i + 1, math.log(p)) for i, p in enumerate(probabilities))
    sample = Sample(context=PLAIN, stream=(0,), tokens=(1,), origin=(0,), logp=(0.0,), top_logprobs=(top,))
    return TreeBranch(sample)


COUNTDOWN = LookaheadTree(
    min_fork_probability=0.25,
    max_fork_probability_gap=0.15,
    pruning_ages=(5,),
    min_edit_distance=0.4,
    max_suffix_match=1.0,
    max_rouge_l=1.0,
)


@pytest.mark.parametrize(
    ("probabilities", "forks"), [((0.45, 0.35), 1), ((0.60, 0.30), 0), ((0.26, 0.24), 0)], ids=["both", "gap", "rare"]
)
def test_forks_need_an_undecided_policy(probabilities: tuple[float, ...], forks: int):
    new = COUNTDOWN.forks([branch(*probabilities)], 0, 3)
    assert [b.sample.tokens for b in new] == [(2,)] * forks
    assert replace(COUNTDOWN, min_fork_probability=1.0).forks([branch(0.45, 0.35)], 0, 3) == []


def test_the_first_choices_are_never_lost():
    """Room for four: three first choices, and the second choice of the first branch."""
    branches = [branch(0.45, 0.35) for _ in range(3)]
    (fork,) = COUNTDOWN.forks(branches, 0, 4 - 3)
    assert fork.parent_branch is branches[0] and fork.birth_step == 0
    assert COUNTDOWN.forks(branches, 0, 0) == []
    three = [branch(0.30, 0.28, 0.27) for _ in range(2)]
    ranks = [b.sample.tokens for b in replace(COUNTDOWN, fork_top_k=3).forks(three, 0, 3)]
    assert ranks == [(2,), (2,), (3,)], "second choices before third ones"


A, FAR = (1, 2, 3, 4, 5), (6, 7, 8, 9, 5)


def test_likeness():
    assert edit_distance(A, (1, 9, 3, 4, 5)) == 1 and edit_distance(A, FAR) == 4 and edit_distance((), A) == 5
    assert rouge_l(A, (2, 3, 4, 6, 7)) == pytest.approx(0.6) and rouge_l((), ()) == 0
    assert suffix_match(A, (9, 4, 5, 8, 7)) == suffix_match((9, 4, 5, 8, 7), A) == 0.4
    assert suffix_match(A, A) == 1 and suffix_match((1, 2), (3, 4)) == 0


def tokens(ids: Ids, **changes: Any) -> Sample:
    n = len(ids)
    return Sample(context=PLAIN, stream=(0,), tokens=ids, origin=(0,) * n, logp=(0.0,) * n, **changes)


@pytest.mark.parametrize(
    ("strategy", "fork", "left"),
    [
        (COUNTDOWN, (1, 9, 3, 4, 5), 1), (COUNTDOWN, FAR, 3), (replace(COUNTDOWN, pruning_ages=(4,)), A, 3),
        (replace(COUNTDOWN, min_edit_distance=0.0, max_rouge_l=0.5), (2, 3, 4, 6, 7), 1),
        (replace(COUNTDOWN, min_edit_distance=0.0, max_suffix_match=0.3), (9, 4, 5, 8, 7), 1),
    ],
    ids=["edit", "far", "age", "rouge", "suffix"],
)  # fmt: skip
def test_a_fork_like_its_parent_is_cut_with_its_forks(strategy: LookaheadTree, fork: Ids, left: int):
    root = TreeBranch(tokens((7, *A)))
    child = TreeBranch(tokens((7, *fork)), birth_step=1, parent_branch=root)
    grandchild = TreeBranch(tokens((7, *fork[:2], 19, 18, 17)), birth_step=3, parent_branch=child)
    assert len(strategy.cut([root, child, grandchild], 6)) == left


def test_ended_answers_are_not_compared():
    root = TreeBranch(tokens((7, *A)))
    ended = TreeBranch(tokens((7, *A), finish=Finish.stop), birth_step=1, parent_branch=root)
    assert len(COUNTDOWN.cut([root, ended], 6)) == 2


def undecided(context: Ids) -> Mapping[int, float]:
    """Two tokens are likely at every fourth token, and one elsewhere. The answer has ten tokens."""
    t = len(context) - len(PLAIN)
    if t >= 9:
        return {END: 0.9, 5: 0.1}
    first = 2 + (context[-1] * (7 if t % 4 == 0 else 3) + t) % 12
    return {first: 0.5, 2 + (first + 5) % 12: 0.4} if t % 4 == 0 else {first: 0.9, 15: 0.05}


TREE = LookaheadTree(
    min_fork_probability=0.25,
    max_fork_probability_gap=0.15,
    pruning_ages=(2, 3),
    min_edit_distance=0.3,
    max_suffix_match=1.0,
    max_rouge_l=1.0,
    max_branch_tokens=40,
)


def test_branches_part_at_their_fork():
    whole = grown(undecided, replace(TREE, pruning_ages=(20,)))
    assert len(whole) == 8 and len({s.tokens for s in whole}) == 8 and all(s.finish is Finish.stop for s in whole)
    root = whole[0]
    for s in whole[1:]:
        shared = next(i for i, (a, b) in enumerate(zip(s.tokens, root.tokens)) if a != b)
        assert shared % 4 == 0 and s.tokens[:shared] == root.tokens[:shared]
    assert [s.tokens for s in grown(undecided, TREE)] == [s.tokens for s in grown(undecided, TREE)], "deterministic"
    assert len(grown(undecided, replace(TREE, min_fork_probability=0.99))) == 1, "no fork"
    assert all(len(grown(undecided, TREE, count)) <= count for count in (1, 2, 5))


def test_the_tree_ends_when_it_is_full_and_old_enough():
    short = grown(undecided, TREE, count=2)
    assert len(short) == 2 and {len(s.tokens) for s in short} == {5} and not any(s.finish for s in short)
    assert {len(s.tokens) for s in grown(undecided, replace(TREE, max_branch_tokens=2))} == {2}


def test_a_fork_to_the_end_token_is_a_whole_answer():
    law = lambda context: {4: 0.5, END: 0.45} if len(context) == len(PLAIN) else {END: 1.0}  # noqa: E731
    root, fork = grown(law, TREE, count=2)
    assert (root.tokens, fork.tokens) == ((4, END), (END,)) and fork.finish is Finish.stop


@pytest.mark.parametrize(("share", "written"), [(0.0, 0), (0.5, 4), (1.0, 8)])
def test_a_share_of_the_group_begins_with_the_tree(share: float, written: int):
    strategy = replace(TREE, tree_fraction=share)
    rollout, engine = play(strategy, undecided, n=8, engine=Lawful(undecided))
    assert len(rollout.samples) == 8 and all(s.verdict for s in rollout.samples)
    assert sum(WRITTEN in s.origin for s in rollout.samples) == written
    assert all(s.tokens[-1] == END and s.finish is Finish.stop for s in rollout.samples)
    assert all(s.text and s.token_ends for s in rollout.samples), "beginnings have their text"
    if not share:
        plain, other = play(Independent(), undecided, n=8, engine=Lawful(undecided))
        assert plain == rollout and engine.calls == other.calls


def test_missing_branches_are_copies_of_the_first():
    rollout, _ = play(
        replace(TREE, min_fork_probability=0.99, max_branch_tokens=3), undecided, n=4, engine=Lawful(undecided)
    )
    assert {s.tokens[:3] for s in rollout.samples} == {rollout.samples[0].tokens[:3]}
    assert all(s.origin[:3] == (WRITTEN,) * 3 and s.origin[3] == 0 for s in rollout.samples)
    assert len({s.stream for s in rollout.samples}) == 4


def test_the_share_falls_in_steps():
    ((path, schedule),) = latr().schedules
    assert path == "strategy.tree_fraction"
    assert [schedule(ScheduleInput(i)) for i in (0, 99, 100, 250, 999)] == [1, 1, 0.75, 0.5, 0.25]
    with pytest.raises(ValueError, match="ages"):
        LookaheadTree(pruning_ages=())
