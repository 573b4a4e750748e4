"""The family `rollout`: its strategies with a fake engine, against the worked examples of the specifications."""

import asyncio
import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from groupwise.core import BadData
from groupwise.data import WRITTEN, Draw, GenerationRequest, Ids, Outcome, Prompt, Rollout, Verdict, pack, rollout_of
from groupwise.methods import (
    AddLengthBudgetScore,
    BestAnswerRefinement,
    DraftAndRefine,
    EarlyExitReward,
    EarlyExits,
    ExplainGoldAnswer,
    HintAtLevelStrategy,
    HintLevelCurriculum,
    PolicyWrittenHints,
    ScheduleInput,
    expo,
    guide_grpo,
    s_grpo,
    sage_hint,
    scaf_grpo,
    train_long_think_short,
)
from groupwise.rollout import HintEscalation, HintScaffold
from groupwise.rollout.prompt_template import worded
from groupwise.training.loop import compute_advantages
from tests.golden.f0 import f64
from tests.golden.play import PLAIN, RIGHT, WRONG, play, roles, sevens, text
from tests.rollout.fakes import FakeEngine, NumberedTask, sampler_of, tokenizer
from tests.toys.echo import tokenizer as toy_tokenizer

HINTS = [text(9), text(9, 9)]


def helped_by(hint: int) -> Callable[[GenerationRequest], Ids]:
    """The first answer is correct after this many 9s in the prompt; no other one is."""

    def answer(request: GenerationRequest) -> Ids:
        return (RIGHT,) if request.context.count(9) >= hint and request.stream[0] % 3 == 0 else (WRONG,)

    return answer


@pytest.mark.parametrize(
    ("hint", "asked", "tried", "context"),
    [(0, 3, 0, 0), (1, 6, 3, 1), (2, 9, 6, 2), (9, 9, 6, 2)],
    ids=["plain", "first", "second", "never"],
)
def test_escalation_asks_until_one_is_correct(hint: int, asked: int, tried: int, context: int):
    rollout, engine = play(HintEscalation(), helped_by(hint), hints=HINTS)
    assert len(engine.requests) == asked
    assert roles(rollout) == ["tried"] * tried + ["answer"] * 3
    assert {s.context.count(9) for s in rollout.samples if s.role == "answer"} == {context}


def test_empty_hints_are_skipped_and_a_row_without_hints_is_left_alone():
    rollout, engine = play(HintEscalation(), helped_by(1), hints=["", HINTS[0]])
    assert len(engine.requests) == 6 and roles(rollout).count("tried") == 3
    for strategy in (
        HintEscalation(),
        HintScaffold(),
        HintAtLevelStrategy(),
        HintEscalation(hints=PolicyWrittenHints()),
    ):
        rollout, engine = play(strategy, helped_by(9), answer=7)
        assert roles(rollout) == ["answer"] * 3 and len(engine.requests) == 3


def test_a_text_of_hints_is_one_hint_and_other_values_are_refused():
    _, engine = play(HintScaffold(), helped_by(9), hints=text(4, 5))
    assert [r.context for r in engine.requests if r.context != PLAIN] == [(*PLAIN, 4, 5, *PLAIN)]
    for value in (7, {"a": "b"}, ["a", 7], True):
        with pytest.raises(BadData, match="a text or a list of texts in the column 'hints'") as raised:
            play(HintScaffold(), helped_by(9), hints=value)
        assert raised.value.evidence == f"the row of p: {value!r}"
    with pytest.raises(BadData, match="a text or a number in the column 'solution'"):
        play(HintEscalation(hints=PolicyWrittenHints()), helped_by(9), solution=["a"])


def test_templates_of_hints_are_checked():
    with pytest.raises(ValueError, match="placeholders"):
        HintEscalation(prompt_template="{problem}")


def test_a_hint_without_room_is_no_hint():
    draw = Draw(0, Prompt("p", PLAIN, text=text(*PLAIN), row={"hints": HINTS}), 3)
    engine = FakeEngine(helped_by(9))
    sampler = sampler_of(engine, draw, verifier=sevens, max_positions=2)
    rollout = asyncio.run(worded(HintEscalation(), "packaged")(draw, sampler))
    assert roles(rollout) == ["answer"] * 3, "the failed group stays"


def test_a_hint_without_tokens_is_no_hint():
    """A text of the policy may have characters that its tokenizer cannot encode; the run goes on."""
    draw = Draw(0, Prompt("p", PLAIN, text="d", row={"hints": [";", "e"]}), 3)
    engine = FakeEngine(lambda request: (WRONG,))
    rollout = asyncio.run(
        worded(HintEscalation(), "packaged")(draw, sampler_of(engine, draw, verifier=sevens, tokenizer=toy_tokenizer()))
    )
    assert len(engine.requests) == 6 and roles(rollout) == ["tried"] * 3 + ["answer"] * 3


def test_self_hints():
    """The policy writes one hint per level after the solution, each longer; the samples keep the role hint."""

    def answer(request: GenerationRequest) -> Ids:
        if request.context[:1] == (11,):
            return (9,) * request.limit
        return helped_by(2)(request)

    strategy = HintEscalation(
        PolicyWrittenHints(max_level=2, tokens_per_level=1, prompt_template="{solution}{problem}")
    )
    rollout, engine = play(strategy, answer, solution=text(11))
    written = [s for s in rollout.samples if s.context[:1] == (11,)]
    assert [len(s.tokens) for s in written] == [1, 2]
    assert all(s.role == "tried" for s in written), "hints are not trained"
    assert roles(rollout).count("answer") == 3 and len(engine.requests) == 2 + 9


def test_guided_answers_are_trained_plain():
    rollout, _ = play(HintEscalation(max_hints=1, trained_prompt="plain"), helped_by(1), hints=HINTS)
    answers = [s for s in rollout.samples if s.role == "answer"]
    assert {s.context for s in answers} == {PLAIN}
    batch = pack([rollout], version=0)
    assert not batch.of_role("answer").same_context.any(), "their gap is not the engine's fault"
    plain, _ = play(HintEscalation(max_hints=1, trained_prompt="plain"), helped_by(0), hints=HINTS)
    assert pack([plain]).same_context.all()
    assert guide_grpo().old_logprobs == "engine"


def test_scaffold_swaps_one():
    """The weakest hint that helps is the second: its answer replaces the first member, with its own prompt."""
    helps = lambda request: (RIGHT,) if request.context.count(9) == 2 else (WRONG,)  # noqa: E731
    rollout, engine = play(HintScaffold(), helps, hints=[*HINTS, text(9, 9, 9)])
    assert len(engine.requests) == 3 + 3
    answers = [s for s in rollout.samples if s.role == "answer"]
    assert [s.context.count(9) for s in answers] == [2, 0, 0]
    assert [s.verdict.outcome for s in answers if s.verdict] == [Outcome.correct, Outcome.wrong, Outcome.wrong]
    a = compute_advantages(pack([rollout]), scaf_grpo()).advantage
    assert a.tolist() == pytest.approx([2 / math.sqrt(3), -1 / math.sqrt(3), -1 / math.sqrt(3)], abs=1e-5)


@pytest.mark.parametrize("strategy", [HintScaffold(hints_active=0.0), HintScaffold()])
def test_scaffold_leaves_the_group_alone(strategy: HintScaffold):
    """In its warm-up, and where no hint helps."""
    rollout, _ = play(strategy, helped_by(9), hints=HINTS)
    answers = [s for s in rollout.samples if s.role == "answer"]
    assert [s.context for s in answers] == [PLAIN] * 3
    assert len(rollout.samples) == (3 if not strategy.hints_active else 5)


def test_a_schedule_starts_the_hints():
    ((path, schedule),) = scaf_grpo().schedules
    assert path == "strategy.hints_active"
    assert [schedule(ScheduleInput(i)) for i in (0, 49, 50, 99)] == [0, 0, 1, 1]


@pytest.mark.parametrize(("level", "nines"), [(0, 0), (1, 1), (2, 2), (3, 2)])
def test_answers_at_the_level_of_the_draw(level: int, nines: int):
    rollout, _ = play(HintAtLevelStrategy(), helped_by(0), hints=HINTS, level=level)
    assert {s.context.count(9) for s in rollout.samples} == {nines}


def test_ladder_levels():
    """The specification's walk: pass rates 0, 0, .25, .5, 1, 1 give the levels 1, 2, 2, 1, 0, 0."""
    part, task = HintLevelCurriculum(), NumberedTask(1)
    state = part.init(task, 0)
    levels = []
    for rate in (0.0, 0.0, 0.25, 0.5, 1.0, 1.0):
        state, (draw,) = part.draw(state, task, 1, 4)
        rollout = replace(rollout_of([1.0] * int(4 * rate) + [0.0] * int(4 - 4 * rate)), draw=draw)
        state = part.observe(state, [rollout])
        levels.append(part.draw(state, task, 1, 4)[1][0].metadata["level"])
    assert levels == [1, 2, 2, 1, 0, 0]


@pytest.mark.parametrize(("correct", "step"), [(2, 1), (3, 0), (7, 0), (8, -1)])
def test_light_raises_the_level_up_to_a_tenth_and_lowers_it_above_0_35(correct: int, step: int):
    """Pass rates of 20 answers, under the method's own numbers."""
    part, task = sage_hint(form="light").curriculum, NumberedTask(1)
    state = part.init(task, 0)
    for rate in (0, correct):
        state, (draw,) = part.draw(state, task, 1, 20)
        rollout = replace(rollout_of([1.0] * rate + [0.0] * (20 - rate)), draw=draw)
        state = part.observe(state, [rollout])
    assert part.draw(state, task, 1, 20)[1][0].metadata["level"] == 1 + step


def test_unverifiable_answers_do_not_move_the_hint_level():
    part, task = HintLevelCurriculum(), NumberedTask(1)
    state, (draw,) = part.draw(part.init(task, 0), task, 1, 4)
    right, *others = rollout_of([1.0, 0.0, 0.0, 0.0]).samples
    samples = (right, *(s.with_verdict(Verdict(Outcome.unverifiable, cause="late")) for s in others))
    state = part.observe(state, [Rollout(draw, samples)])
    state = part.observe(state, [Rollout(draw, samples[1:])])
    assert part.draw(state, task, 1, 4)[1][0].metadata == {"level": 0}


def test_drafts_and_refinements():
    """Two of three drafts are right. One of them stands in the prompt of the refinements, which alone are trained."""

    def answer(request: GenerationRequest) -> Ids:
        return (RIGHT, request.stream[0]) if request.stream[0] in (1, 2) else (WRONG,)

    rollout, engine = play(DraftAndRefine(3, "{problem}{draft}{problem}"), answer, n=2)
    assert roles(rollout) == ["draft"] * 3 + ["answer"] * 2
    contexts = {s.context for s in rollout.samples[3:]}
    assert len(engine.requests) == 5 and contexts <= {(5, 7, 1, 5), (5, 7, 2, 5)} and len(contexts) == 1
    again, _ = play(DraftAndRefine(3, "{problem}{draft}{problem}"), answer, n=2)
    assert {s.context for s in again.samples[3:]} == contexts, "ties are drawn by a key"


def explained(right: bool, always: bool = False, solved: bool = False) -> Rollout:
    def answer(request: GenerationRequest) -> Ids:
        knows = len(request.context) > 1
        return (RIGHT, 3) if (knows and right) or (solved and not knows) else (WRONG,)

    return play(
        ExplainGoldAnswer(explain_always=always, explanation_prompt_template="{problem}{answer}{problem}"),
        answer,
        n=2,
        answer=text(8),
    )[0]


def test_an_explanation_is_learned():
    rollout = explained(right=True)
    own = rollout.samples[-1]
    assert (own.role, own.group, own.context, own.tokens) == ("explained", 1, PLAIN, (RIGHT, 3))
    assert set(own.origin) == {WRITTEN} and all(map(math.isnan, own.logp))
    assert roles(explained(right=False)) == ["answer", "answer", "tried"], "a wrong one is not"
    assert roles(explained(right=True, solved=True)) == ["answer", "answer"]
    assert roles(explained(right=True, always=True, solved=True)) == ["answer", "answer", "explained"]


def test_expo_leaves_the_group_alone():
    """In an all-wrong group only the explanation has a gradient: 1 / (groups * length) per token."""
    method = expo(kl=0.0)
    step = compute_advantages(pack([explained(right=True)], roles=method.trained_roles), method)
    step = step.having(logp=f64([-0.5] * step.tokens).requires_grad_(), logp_old=f64([-0.5] * step.tokens))
    loss = method.objective(method.objective.prepare(step))
    slope = -torch.autograd.grad(loss, step.logp)[0]
    assert slope.tolist() == pytest.approx([0, 0, 0.25, 0.25])


def test_refinement_replaces_the_worst():
    def answer(request: GenerationRequest) -> Ids:
        return (RIGHT,) if 9 in request.context else (WRONG,)

    rollout, engine = play(BestAnswerRefinement(), answer)
    assert len(engine.requests) == 4
    assert (
        engine.requests[-1].context == (*PLAIN, WRONG, *tokenizer().encode(";"), 9) or 9 in engine.requests[-1].context
    )
    assert [s.verdict.outcome for s in rollout.samples if s.verdict] == [Outcome.wrong, Outcome.wrong, Outcome.correct]
    last = rollout.samples[-1]
    assert last.context == PLAIN and set(last.origin) == {WRITTEN}
    worse, _ = play(BestAnswerRefinement(), lambda request: (WRONG,))
    assert roles(worse) == ["answer"] * 3 + ["tried"]
    good, engine = play(BestAnswerRefinement(), lambda request: (RIGHT,))
    assert len(engine.requests) == 3 and roles(good) == ["answer"] * 3


def test_early_exits():
    """A thought of five tokens and an answer; two exits at drawn tokens are told to answer at once."""
    mark = tokenizer().encode("#") if "#" in (text(*range(1, 20))) else (2,)
    sign = text(*mark)

    def answer(request: GenerationRequest) -> Ids:
        return (8, 8, 8, 8, 8, *mark, RIGHT) if request.already_generated_count == 0 else (RIGHT,)

    rollout, _ = play(EarlyExits(answer_inducer=sign, thinking_end=sign), answer)
    assert [s.verdict.subscores["exit"] for s in rollout.samples if s.verdict] == [0, 1, 2]
    whole, cuts = rollout.samples[-1], rollout.samples[:-1]
    assert whole.tokens == (8, 8, 8, 8, 8, *mark, RIGHT)
    lengths = [len(s.tokens) for s in cuts]
    assert lengths == sorted(set(lengths)) and all(s.tokens[-2:] == (*mark, RIGHT) for s in cuts)
    assert all(s.logp[: len(s.tokens) - 2] == whole.logp[: len(s.tokens) - 2] for s in cuts), "a shared prefix"
    assert all(sum(s.trained) == len(s.tokens) - len(mark) for s in cuts), "the inducer is not trained"


def test_exit_rewards():
    """Correct, wrong, correct, correct in the order of the exits: 1, 0, 1/2, 1/4."""
    batch = pack([rollout_of([1.0, 0.0, 1.0, 1.0], subscores={"exit": [0, 1, 2, 3]})])
    assert EarlyExitReward()(batch.verdict_score, batch).tolist() == [1, 0, 0.5, 0.25]
    a = compute_advantages(batch, s_grpo()).advantage[::2]
    assert a.tolist() == pytest.approx([0.5625, -0.4375, 0.0625, -0.1875])


def test_length_budget():
    batch = pack([rollout_of([0.0] * 5, lengths=[0, 1, 1, 1, 1])])
    batch = replace(batch, length=torch.tensor([0, 64, 128, 192, 300]))
    score = AddLengthBudgetScore(128.0, weight=1.0)(batch.verdict_score, batch)
    assert score.tolist() == [0, 0.5, 1, 0.5, 0]
    assert AddLengthBudgetScore(128.0, weight=1.0, flat_below_budget=True)(batch.verdict_score, batch).tolist() == [
        1,
        1,
        1,
        0.5,
        0,
    ]
    with pytest.raises(ValueError, match="budget"):
        AddLengthBudgetScore(128.0, zero_score_answer_tokens=100.0)


def test_the_budget_shrinks():
    ((path, schedule),) = train_long_think_short(iterations_per_stair=10).schedules
    assert path == "shaping.1.budget_tokens"
    assert [schedule(ScheduleInput(i)) for i in (0, 10, 20, 30)] == pytest.approx([256, 179.2, 125.44, 87.808])
