"""Strategies that try again: trees of refinements, and hints that the policy writes, against the specifications."""

from dataclasses import replace

import pytest

from groupwise.advantages import Standardised
from groupwise.data import GenerationRequest, Ids, Outcome, Prompt, Rollout, Sample, Verdict, pack, rollout_of
from groupwise.methods import FeedbackTree, HintWriter, hill, murphy
from groupwise.methods.sampling.hill import helpfulness, states
from groupwise.training.loop import compute_advantages
from tests.golden.play import PLAIN, RIGHT, WRONG, play, roles, text
from tests.rollout.fakes import sampling, tokenizer

# MURPHY: attempts score 0, 1/2, 1, 0; the refinements of the first 1, 0, 0, 0, of the second 1/2, 1/2, 1, 0.
FIRST, SECOND = [0, 0.5, 1, 0], {0: [1, 0, 0, 0], 1: [0.5, 0.5, 1, 0], 3: [0, 0, 0, 0]}
HALF = 6
TOKENS = {0: WRONG, 0.5: HALF, 1: RIGHT}


async def graded(prompt: Prompt, sample: Sample) -> Verdict:
    """A 7 is correct, a 6 scores one half. The feedback is a text of 8 and the answer's second token."""
    score = {RIGHT: 1.0, HALF: 0.5}.get(sample.tokens[0], 0.0)
    outcome = Outcome.correct if score == 1 else Outcome.wrong
    return Verdict(outcome, score, feedback=text(8, *sample.tokens[1:2]))


def attempt(request: GenerationRequest) -> Ids:
    """Attempt i has the second token 10 + i, so that its feedback names it."""
    i = request.stream[0] % 4
    if request.context == PLAIN:
        return TOKENS[FIRST[i]], 10 + i
    return (TOKENS[SECOND.get(request.context[-1] - 10, FIRST)[i]],)


def tree(**fields: object) -> Rollout:
    strategy = FeedbackTree(**{"prompt_template": "{problem}{draft}{feedback}", **fields})
    return play(strategy, attempt, n=4, setting={"verifier": graded})[0]


def returned(rollout: Rollout) -> list[float]:
    return [s.verdict.subscores["returned"] for s in rollout.samples if s.verdict]


def advantages(rollout: Rollout) -> list[float]:
    method = replace(murphy(kl=0.0), models=())
    batch = compute_advantages(pack([rollout], roles=method.trained_roles), method)
    return batch.sequences.mean(batch.advantage).tolist()


def test_failed_attempts_are_refined_with_their_feedback():
    rollout = tree()
    assert roles(rollout) == ["answer"] * 4 + ["refinement"] * 12
    assert [s.parent for s in rollout.samples] == [None] * 4 + [0] * 4 + [1] * 4 + [3] * 4
    assert {s.group for s in rollout.samples[4:8]} == {1} and len({s.group for s in rollout.samples}) == 4
    first = rollout.samples[4]
    assert first.context == (*PLAIN, WRONG, 10, 8, 10), "the problem, the attempt and its feedback"


@pytest.mark.parametrize(
    ("back", "scores", "first"),
    [
        ("best", [1, 1, 1, 0], [0.5, 0.5, 0.5, -1.5]),
        ("mean", [0.1125, 0.475, 1, 0], [-0.6316, 0.1735, 1.3395, -0.8814]),
    ],
)
def test_scores_come_back_to_attempts(back: str, scores: list[float], first: list[float]):
    rollout = tree(credit_rule=back)
    assert returned(rollout)[:4] == pytest.approx(scores)
    a = advantages(rollout)
    assert a[:4] == pytest.approx(first, abs=1e-4)
    assert a[4:8] == pytest.approx([1.5, -0.5, -0.5, -0.5], abs=1e-4)
    assert a[8:12] == pytest.approx([0, 0, 1.2247, -1.2247], abs=1e-4) and a[12:] == [0] * 4


def test_a_third_turn_has_the_history_and_solved_attempts_are_leaves():
    rollout = tree(max_attempts=3, credit_rule="mean")
    third = [s for s in rollout.samples if s.parent is not None and rollout.samples[s.parent].parent is not None]
    parents = {s.parent for s in third}
    assert all(rollout.samples[p].verdict.outcome is Outcome.wrong for p in parents)
    for s in third:
        parent = rollout.samples[s.parent]
        assert s.context[: len(parent.context)] == parent.context, "the parent's prompt, then its text and feedback"
    solved, _ = play(FeedbackTree(), lambda request: (RIGHT,), n=4)
    assert roles(solved) == ["answer"] * 4, "without a failure it is GRPO"
    alone, _ = play(FeedbackTree(max_attempts=1), lambda request: (WRONG,), n=4)
    assert roles(alone) == ["answer"] * 4


def test_pruning_selects_groups_and_members():
    """Two groups of refinements with the largest std, of .5 and .4082; of each group the two extremes."""
    widest = tree(kept_refinement_groups=2)
    assert widest.selected == (True,) * 12 + (False,) * 4
    assert returned(widest)[:4] == [1, 1, 1, 0], "credit comes before pruning"
    chosen = [i for i, on in enumerate(tree(kept_extremes_per_group=2).selected or ()) if on]
    assert len(chosen) == 8 and chosen[:2] == [2, 3] and {4, 10, 11} <= set(chosen)
    with pytest.raises(ValueError, match="max_attempts"):
        FeedbackTree(max_attempts=0)


# HiLL


@pytest.mark.parametrize(
    ("correct", "signal"), list(enumerate([0, 0.656391, 0.899872, 0.976326, 0.992188, 0.976326, 0.899872, 0.656391, 0]))
)
def test_a_mixed_group_is_the_signal(correct: int, signal: float):
    assert helpfulness(correct, 8, [0.0] * correct, 0.3) == pytest.approx(signal, abs=1e-6)
    assert helpfulness(correct, 8, [0.5] * correct, 0.3) == pytest.approx(signal, abs=1e-6), "a reliance above 0"


def test_a_hint_is_worth_the_signal_that_transfers():
    values = [helpfulness(2, 8, [-0.12] * 2, 0.3), helpfulness(4, 8, [-0.6] * 4, 0.3), helpfulness(0, 8, [], 0.3)]
    assert values == pytest.approx([0.603202, 0.134278, 0], abs=1e-6)
    assert helpfulness(2, 8, [0.0] * 2, 0.3, "variance") == pytest.approx(0.1875)


@pytest.mark.parametrize(
    ("hint", "answer", "stated"),
    [
        ("consider 2 variables", "2", False), ("The Result is 2", "2", True), ("so #39", "39", True),
        (r"\boxed{2}", "2", True), ("3*13", "39", False), (r"a \frac{1}{3} b", r"\frac{1}{3}", True), ("x", "", False),
    ],
)  # fmt: skip
def test_a_hint_must_not_state_the_answer(hint: str, answer: str, stated: bool):
    assert states(hint, answer) is stated


ROW = {"solution": text(12), "answer": "39"}
WRITER = HintWriter(hint_count=3, hint_template="{draft}{solution}{problem}", hinted_prompt_template="{problem}{hint}")


def helped(request: GenerationRequest) -> Ids:
    """The three hints are 8, 9 and 10. Of two answers, one is correct after a 9, and both are after a 10."""
    if 12 in request.context:
        return (8 + request.stream[0] - 2,)
    right = {9: request.stream[0] % 2 == 0, 10: True}.get(request.context[-1], False)
    return (RIGHT,) if right else (WRONG,)


def test_the_best_hint_replaces_the_group():
    rollout, engine = play(WRITER, helped, n=2, **ROW)
    hints = [s for s in rollout.samples if s.role == "hint"]
    answers = [s for s in rollout.samples if s.role == "answer"]
    assert len(engine.requests) == 2 + 3 + 6 and roles(rollout).count("tried") == 2 + 4
    assert hints[0].context == (WRONG, 12, *PLAIN), "a wrong answer, the solution, the problem"
    assert [s.context for s in answers] == [(*PLAIN, 9)] * 2
    scores = [s.verdict.value for s in hints if s.verdict]
    assert scores[0] == scores[2] == 0
    # The fake engine's log-probs: -1 for each token as sampled, and minus the length of the prompt when scored.
    assert scores[1] == pytest.approx(helpfulness(1, 2, [-1.0 - -1.0], 0.3))
    cold, _ = play(WRITER, helped, n=2, setting={"sampling": sampling(temperature=0.5)}, **ROW)
    (best,) = (s.verdict.value for s in cold.samples if s.role == "hint" and s.verdict and s.verdict.value > 0)
    assert best == pytest.approx(helpfulness(1, 2, [-2.0 - -1.0], 0.3)), "scored at the sampling temperature"
    method = hill(group_size=2)
    batch = compute_advantages(pack([rollout], roles=method.trained_roles), method)
    a = batch.sequences.mean(batch.advantage).tolist()
    assert a[:2] == pytest.approx([-(2**-0.5), 2**-0.5], abs=1e-4), "the hinted group"
    assert a[2:] == pytest.approx([-(3**-0.5), 2 * 3**-0.5, -(3**-0.5)], abs=1e-4), "the hints are another group"


def test_worked_hint_advantages():
    batch = pack([rollout_of([0.603202, 0.134278, 0.0, -0.2])])
    a = Standardised()(batch.verdict_score, batch).tolist()
    assert a == pytest.approx([1.373259, -0.000270, -0.393584, -0.979405], abs=1e-5)


def test_refused_hints_have_no_answers():
    stated = tokenizer().encode("39")
    rollout, engine = play(WRITER, lambda r: stated if 12 in r.context else (WRONG,), n=2, **{**ROW, "answer": "39"})
    hints = [s for s in rollout.samples if s.role == "hint"]
    said = text(*stated)
    expected = -0.2 if states(said, "39") else 0.0
    assert {s.verdict.value for s in hints if s.verdict} == {expected}
    marked = replace(WRITER, hint_start=text(14), hint_end=text(15))
    rollout, engine = play(marked, lambda r: (8,) if 12 in r.context else (WRONG,), n=2, **ROW)
    assert len(engine.requests) == 2 + 3, "without its marks there is no hint"
    assert {s.verdict.value for s in rollout.samples if s.verdict and s.role == "hint"} == {-0.2}
    assert [s.context for s in rollout.samples if s.role == "answer"] == [PLAIN] * 2
    rollout, _ = play(marked, lambda r: (14, 8, 15, 3) if 12 in r.context else (WRONG,), n=2, **ROW)
    assert {s.context for s in rollout.samples if s.role == "tried"} == {(*PLAIN, 8)}
    rollout, _ = play(replace(marked, hint_end=""), lambda r: (14, 8, 3) if 12 in r.context else (WRONG,), n=2, **ROW)
    assert {s.context[:-1] for s in rollout.samples if s.role == "tried"} == {(*PLAIN, 8)}, "to the end of the text"
    rollout, engine = play(WRITER, lambda r: (RIGHT,), n=2, **ROW)
    assert len(engine.requests) == 2 and roles(rollout) == ["answer"] * 2, "no hint where one is correct"
    rollout, engine = play(WRITER, helped, n=2, answer="7")
    assert len(engine.requests) == 2 and roles(rollout) == ["answer"] * 2, "no hint without a solution in the row"
