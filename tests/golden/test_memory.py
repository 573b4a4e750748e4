"""Curricula that remember, and their strategies: failures, surveys, replays, proposals, against the specifications."""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest

import groupwise as gw
from groupwise.config.registry import parts
from groupwise.data import (
    TEMPLATE,
    Draw,
    Finish,
    GenerationRequest,
    Ids,
    Outcome,
    Prompt,
    Rollout,
    Sample,
    Verdict,
    pack,
    rollout_of,
)
from groupwise.methods import (
    DraftAndRefine,
    FailureBuffer,
    FreshnessReplay,
    Method,
    PrefixContinuationStrategy,
    PromptSurveyCurriculum,
    ProposalCollectingStrategy,
    ProposedProblem,
    ProposedProblemCurriculum,
    RecoveryPrompts,
    ReplayStoredAnswer,
    ScheduleInput,
    SumProposalParser,
    fission_grpo,
    freshness_per,
    rest_rl,
    syn_grpo,
)
from groupwise.methods.sampling.freshness_per import stratified
from groupwise.methods.sampling.syn_grpo import relative
from groupwise.rollout import HintEscalation, Independent, Shuffled, Turns
from groupwise.training.loop import compute_advantages
from tests.golden.play import PLAIN, RIGHT, WRONG, play, text
from tests.rollout.fakes import NumberedTask

TASK = NumberedTask(6)


def through_json(state: Any) -> Any:
    """The state as a resumed run has it."""
    return json.loads(json.dumps(state))


def scored(draw: Draw, scores: Sequence[float], **changes: Any) -> Rollout:
    rollout = rollout_of(scores)
    return replace(rollout, draw=draw, samples=tuple(replace(s, **changes) for s in rollout.samples))


@pytest.mark.parametrize(
    ("changes", "fix"),
    [
        ({"strategy": Independent()}, "set strategy=gw.PrefixContinuationStrategy()"),
        ({"strategy": Turns()}, "set strategy=gw.PrefixContinuationStrategy(inner_strategy=gw.Turns())"),
        ({"max_refills": 0}, "set max_refills=1"),
        ({"curriculum": FreshnessReplay(), "strategy": ReplayStoredAnswer()}, 'set old_logprobs="engine"'),
    ],
)
def test_a_curriculum_without_its_strategy_is_refused(changes: dict[str, Any], fix: str):
    """A class that a program has reached through the package advises in Python."""
    assert gw.Method is Method
    method = rest_rl()
    with pytest.raises(ValueError, match=re.escape(fix)):
        replace(method, **changes)
    assert Method(curriculum=Shuffled()).strategy == Independent()


def test_the_strategy_that_a_curriculum_needs_wraps_any_other():
    """Its own samples are beside those of the inner strategy, which it runs with the sampler of the draw."""
    curricula = [part for part in parts().values() if getattr(part, "required_strategy", "")]
    assert len(curricula) == 6
    for needed in {part.required_strategy for part in curricula}:
        inner = DraftAndRefine(draft_count=2)
        strategy = parts()[needed](inner_strategy=inner)
        rollout, engine = play(strategy, lambda request: (WRONG,), n=2, metadata={"index": 0, "baseline": 0.5})
        plain, engine_alone = play(inner, lambda request: (WRONG,), n=2)
        assert [r.context for r in engine.requests] == [r.context for r in engine_alone.requests], needed
        kept = [(s.role, s.tokens, s.context) for s in rollout.samples if s.role in ("answer", "draft")]
        assert kept == [(s.role, s.tokens, s.context) for s in plain.samples]


def test_a_beginning_continues_in_any_strategy():
    """All answers to the problem continue it, also those to a prompt with a draft or a hint; the drafts do not."""
    metadata = {"prefix": [8, 9]}
    rollout, _ = play(
        PrefixContinuationStrategy(inner_strategy=DraftAndRefine(draft_count=2)),
        lambda request: (RIGHT,),
        n=2,
        metadata=metadata,
    )
    assert [(s.role, s.tokens) for s in rollout.samples] == [("draft", (RIGHT,))] * 2 + [("answer", (8, 9, RIGHT))] * 2
    rollout, engine = play(
        PrefixContinuationStrategy(inner_strategy=HintEscalation()),
        lambda r: (WRONG,),
        n=2,
        metadata=metadata,
        hints=[text(6)],
    )
    assert {r.context for r in engine.requests} == {(*PLAIN, 8, 9), (*PLAIN, 6, *PLAIN, 8, 9)}
    assert [(s.role, s.tokens) for s in rollout.samples] == [("tried", (8, 9, WRONG))] * 2 + [
        ("answer", (8, 9, WRONG))
    ] * 2


# Fission-GRPO


def failing(request: GenerationRequest) -> Ids:
    """Of four answers, the first and the third are the same failure, and the second is correct."""
    return (RIGHT,) if request.stream[0] % 4 == 1 else (WRONG, request.stream[0] % 2)


def test_a_failure_becomes_a_prompt():
    strategy = RecoveryPrompts(prompt_template="{problem}{draft}{feedback}")
    rollout, _ = play(strategy, failing, n=4)
    assert rollout.draw.metadata["failures"] == [(*PLAIN, WRONG, 9), (*PLAIN, WRONG, 1, 9)], "0 is the end token"
    again, _ = play(strategy, failing, n=4, metadata={"recovery": True})
    assert "failures" not in again.draw.metadata, "a failed recovery becomes no prompt"
    solved, _ = play(strategy, lambda request: (RIGHT,))
    assert solved.draw.metadata["failures"] == []


def test_a_failed_conversation_goes_on_with_its_feedback():
    """The tokens of the conversation stay as they are, and the feedback is appended to them."""

    class Counted(Independent):
        async def __call__(self, draw: Draw, sampler: Any) -> Rollout:
            rollout = await super().__call__(draw, sampler)
            return replace(rollout, samples=tuple(s.add_counts({"calls": 1}) for s in rollout.samples))

    rollout, _ = play(RecoveryPrompts(inner_strategy=Counted()), lambda request: (WRONG, 0), n=2)
    assert rollout.draw.metadata["failures"] == [(*PLAIN, WRONG, 0, 9)]


def test_fission_draws_waiting_failures():
    part = FailureBuffer(min_stored=3, max_age=2, max_fraction=1.0)
    state = part.init(TASK, 1)
    state, draws = part.draw(state, TASK, 2, 4)
    assert [d.prompt.row["index"] for d in draws] == [d.metadata["index"] for d in draws]
    failed = [replace(d, metadata={**d.metadata, "failures": [(7, 7, i)]}) for i, d in enumerate(draws)]
    rollouts = [scored(d, [0.0]) for d in failed]
    state = through_json(part.end_iteration(part.observe(state, rollouts), rollouts))
    state, draws = part.draw(state, TASK, 2, 4)
    assert not any("recovery" in d.metadata for d in draws), "two wait, and the least number is three"
    more = [scored(replace(draws[0], metadata={**draws[0].metadata, "failures": [(8,), (9,)]}), [0.0])]
    state = through_json(part.end_iteration(state, more))
    drawn, retried = part.draw(state, TASK, 3, 4)
    assert [d.prompt.token_ids for d in retried] == [(8,), (9,), (7, 7, 0)], "the newest iteration first"
    problem = draws[0].prompt
    assert retried[0].prompt.row == problem.row and retried[0].prompt.text == problem.text
    assert retried[0].metadata["recovery"] and drawn["shuffled_state"] == state["shuffled_state"]
    assert drawn["failures"] == state["failures"][1:2], "each failure is drawn once"
    half = replace(part, max_fraction=0.5).draw(state, TASK, 3, 4)[1]
    assert ["recovery" in d.metadata for d in half] == [True, False, False] and half[0].prompt.token_ids == (8,)
    assert [f["prompt_ids"] for f in part.end_iteration(state, [])["failures"]] == [[8], [9]], "older ones are dropped"


def test_fission_draws_recoveries_of_several_problems():
    """Three problems fail four times each: the four recoveries of the next iteration are of all three of them."""
    part = FailureBuffer(max_fraction=0.5)
    state, draws = part.draw(part.init(TASK, 1), TASK, 3, 4)
    failures = [(7, i) for i in range(4)]
    rollouts = [scored(replace(d, metadata={**d.metadata, "failures": failures}), [0.0]) for d in draws]
    state = through_json(part.end_iteration(state, rollouts))
    _, later = part.draw(state, TASK, 8, 4)
    retried = [d.metadata["index"] for d in later if "recovery" in d.metadata]
    problems = [d.metadata["index"] for d in draws]
    assert retried == [*problems, problems[0]] and len(set(problems)) == 3


def test_fission_rewards():
    """R_format 1, 1, 0, 1 with the weight 2 and R_correct 1.75, .5, 0, 2."""
    rollout = rollout_of([0.875, 0.25, 0.0, 1.0])
    unreadable = rollout.samples[2].with_verdict(Verdict(Outcome.malformed))
    batch = pack([replace(rollout, samples=(*rollout.samples[:2], unreadable, rollout.samples[3]))])
    batch = compute_advantages(batch, fission_grpo())
    assert batch.reward.tolist() == [3.75, 2.5, 0, 4]
    a = batch.sequences.mean(batch.advantage).tolist()
    assert a == pytest.approx([0.749287, -0.039436, -1.616882, 0.907031], abs=1e-5)
    ((path, schedule),) = fission_grpo().schedules
    assert path == "shaping.1.weight" and [schedule(ScheduleInput(i, 4)) for i in (0, 2, 4, 8)] == [2, 1.5, 1, 1]


# FreshPER


def test_priorities_fall_with_age():
    part = FreshnessReplay()
    entries = [(1 + 1e-6, 0), (1 + 1e-6, 500), (0.2 + 1e-6, 0), (1e-6, 0)]
    chances, weights = part.weights(entries)
    assert chances == pytest.approx([0.518190, 0.284389, 0.197291, 0.000130], abs=1e-6)
    assert weights == pytest.approx([0.036308, 0.046156, 0.053426, 1.0], abs=1e-6)
    half, _ = FreshnessReplay(alpha=1.0, age_scale=500.0).weights([(1.0, 0), (1.0, 500 * 0.6931471805599453)])
    assert half[1] / half[0] == pytest.approx(0.5)
    assert replace(part, alpha=0.0).weights(entries) == ([0.25] * 4, [1.0] * 4)
    assert replace(part, beta=0.0).weights(entries)[1] == [1.0] * 4


def test_stratified_draws():
    assert stratified([0.25] * 4, 4, Random(3)) == [0, 1, 2, 3]
    assert stratified([0.0, 1.0, 0.0], 3, Random(3)) == [1, 1, 1]
    counts = [stratified([0.7, 0.1, 0.2], 10, Random(s)).count(0) for s in range(5)]
    assert set(counts) == {7}


def test_stored_answers_are_drawn_again():
    part, strategy = FreshnessReplay(replay_rounds=2, capacity=5), ReplayStoredAnswer()
    state = part.init(TASK, 1)
    new: list[Sample] = []
    seen = []
    for _ in range(5):
        state, draws = part.draw(through_json(state), TASK, 3, 1)
        rollouts = [play(strategy, lambda request: (RIGHT, 3), n=d.n, metadata=d.metadata)[0] for d in draws]
        rollouts = [replace(r, draw=replace(d, metadata=r.draw.metadata)) for r, d in zip(rollouts, draws)]
        seen.append("".join("r" if "sample" in d.metadata else "n" for d in draws))
        state = part.end_iteration(part.observe(state, rollouts), rollouts)
        samples = [s for r in rollouts for s in r.samples]
        if seen[-1] == "nnn":
            new += samples
            assert all(s.verdict.subscores["replay"] == 1 for s in samples if s.verdict)
    assert seen == ["nnn", "rrr", "rrr", "nnn", "rrr"]
    assert len(state["entries"]) == 5 and state["fresh_iterations"] == 2, "the oldest is dropped"
    old = samples[0]
    assert old.verdict and 0 < old.verdict.subscores["replay"] <= 1
    fields = ("context", "tokens", "origin", "logp", "text", "token_ends", "finish", "limit")
    assert any(all(getattr(old, f) == getattr(s, f) for f in fields) for s in new)
    assert old.verdict.outcome is Outcome.correct
    assert pack([rollouts[0]], version=3).staleness.tolist() == [3, 3], "the gap guard leaves old tokens out"


def test_an_iteration_of_stored_and_new_answers_stores_the_new_ones():
    """A refill can draw stored answers and then new ones in one iteration."""
    part = FreshnessReplay(replay_rounds=1)
    state, new = part.draw(part.init(TASK, 1), TASK, 2, 1)
    rollout, _ = play(ReplayStoredAnswer(), lambda request: (RIGHT, 3), n=1)
    state = part.end_iteration(state, [replace(rollout, draw=d) for d in new])
    state, again = part.draw(state, TASK, 1, 1)
    state, new = part.draw(state, TASK, 1, 1)
    assert ["sample" in d.metadata for d in (*again, *new)] == [True, False]
    state = part.end_iteration(state, [replace(rollout, draw=d) for d in (*again, *new)])
    assert [e["problem_index"] for e in state["entries"]][2:] == [new[0].metadata["index"]] and state[
        "fresh_iterations"
    ] == 2


def test_replays_generate_nothing():
    rollout, engine = play(ReplayStoredAnswer(), lambda request: (RIGHT,), n=2)
    state, _ = FreshnessReplay().draw(FreshnessReplay().init(TASK, 0), TASK, 1, 2)
    state = FreshnessReplay().end_iteration(
        state, [replace(rollout, draw=Draw(0, rollout.draw.prompt, 2, {"index": 0}))]
    )
    assert state["entries"][0]["priority"] == 1 + 1e-6
    metadata = {"sample": state["entries"][0]["sample"], "replay": 0.5}
    again, engine = play(ReplayStoredAnswer(), lambda request: (WRONG,), n=1, metadata=metadata)
    assert not engine.requests and again.samples[0].tokens == rollout.samples[0].tokens
    assert freshness_per(dual=True).objective.surrogate.negative_advantage_cap == 1.4


# ReST-GRPO


def lines(count: int) -> Sample:
    """An answer of `count` lines of two tokens, each ending in a semicolon, and a last one without."""
    words = [t for i in range(count) for t in (f"l{i}", ";")] + ["end"]
    ends = tuple(sum(map(len, words[: i + 1])) for i in range(len(words)))
    n = len(words)
    sample = Sample(context=(1,), stream=(0,), tokens=tuple(range(n)), origin=(0,) * n, logp=(-1.0,) * n)
    return sample.with_text("".join(words), ends).with_finish(Finish.stop)


def surveyed(scores: Sequence[float]) -> Rollout:
    draw = Draw(0, Prompt("p", (1,)), len(scores), {"index": 2, "survey": True})
    samples = [lines(4).with_verdict(Verdict(Outcome.correct if x == 1 else Outcome.wrong, x)) for x in scores]
    return Rollout(draw, tuple(samples))


def test_a_survey_finds_spread_prompts():
    part = PromptSurveyCurriculum(line_separator=";")
    found = part.beginnings(surveyed([0, 1, 1, 0, 1]), Random(0))
    assert found[0] == {"problem_index": 2, "prefix": []} and len(found) == 1 + 2, "half of the four lines"
    assert all(b["prefix"] in [list(range(2 * k)) for k in (1, 2, 3, 4)] for b in found[1:])
    assert part.beginnings(surveyed([0.9, 0.9, 0.9, 0.9, 0.95]), Random(0)) == [], "std .02"
    assert len(part.beginnings(surveyed([0, 0.8]), Random(0))) == 1, "the best answer is not good enough"
    drawn = replace(part, prefixes_per_line=2000.0).beginnings(surveyed([0, 1]), Random(0))[1:]
    shares = [sum(len(b["prefix"]) == 2 * k for b in drawn) / len(drawn) for k in (1, 2, 3, 4)]
    assert shares == pytest.approx([0.269551, 0.256073, 0.243270, 0.231106], abs=0.01)
    whole = replace(lines(1), text="l0;", token_ends=(2, 3, 3))
    rollout = replace(
        surveyed([0, 1]), samples=(surveyed([0]).samples[0], whole.with_verdict(Verdict(Outcome.correct)))
    )
    assert len(part.beginnings(rollout, Random(0))) == 1, "after the last line nothing is left to write"


def test_a_survey_and_its_training_are_two_rounds():
    part = PromptSurveyCurriculum(samples_per_prompt=3, line_separator=";")
    state, draws = part.draw(part.init(TASK, 1), TASK, 2, 4)
    assert [(d.n, d.metadata["survey"]) for d in draws] == [(3, True)] * 2
    state = through_json(part.observe(state, [replace(surveyed([0, 1]), draw=draws[0])]))
    after, trained = part.draw(state, TASK, 2, 4)
    assert [d.n for d in trained] == [4] * 2 and {d.prompt.id for d in trained} == {draws[0].prompt.id}
    assert part.draw(state, TASK, 9, 4)[1][0].metadata["index"] == draws[0].metadata["index"]
    after = part.end_iteration(part.observe(after, []), [])
    state, survey = part.draw(after, TASK, 2, 4)
    assert {d.prompt.id for d in survey}.isdisjoint({d.prompt.id for d in draws}), "the next prompts"


def test_beginnings_are_continued_and_not_trained():
    rollout, engine = play(PrefixContinuationStrategy(), lambda request: (RIGHT,), n=2, metadata={"prefix": [8, 9]})
    assert {r.context for r in engine.requests} == {(*PLAIN, 8, 9)}
    sample = rollout.samples[0]
    assert sample.tokens == (8, 9, RIGHT) and sample.origin[:2] == (TEMPLATE,) * 2
    assert sample.trained == (False, False, True) and sample.text == text(8, 9, RIGHT), "the whole answer is graded"
    survey, _ = play(PrefixContinuationStrategy(), lambda request: (RIGHT,), n=2, metadata={"survey": True})
    assert survey.selected == (False, False) and survey.cause == "survey"


def test_a_finished_answer_gains_little():
    rollout = rollout_of([1.0, 0.0, 0.0])
    cut = rollout.samples[2].with_finish(Finish.length)
    batch = compute_advantages(pack([replace(rollout, samples=(*rollout.samples[:2], cut))]), rest_rl())
    assert batch.reward.tolist() == [1.001, 0.001, 0]


# Syn-GRPO


@pytest.mark.parametrize(("std", "reward"), [(0.0, -1.0), (0.5, 1.0), (0.254951, 0.019804)])
def test_relative_diversity(std: float, reward: float):
    assert relative(std, 0.25) == pytest.approx(reward, abs=1e-6)


class Letters:
    """Proposes the answer's text after its first character; its kind is its length."""

    def propose(self, text: str) -> ProposedProblem | None:
        return ProposedProblem(text[1:], {"answer": 7}, str(len(text) - 1)) if len(text) > 1 else None


def test_proposed_problems_are_drawn_and_credited_by_kind():
    strategy, part = (
        ProposalCollectingStrategy(proposal_parser=Letters()),
        ProposedProblemCurriculum(max_proposal_fraction=0.5, diversity_ema_rate=0.5),
    )
    metadata = {"diverse": {"2": 0.25}}
    rollout, _ = play(strategy, lambda r: (RIGHT, 8, 9) if r.stream[0] else (WRONG,), n=3, metadata=metadata)
    assert [s.verdict.subscores["diverse"] for s in rollout.samples if s.verdict] == [0, 0.25, 0.25]
    (problem,) = rollout.draw.metadata["proposals"]
    assert (problem["text"], problem["context"], problem["kind"]) == (text(8, 9), (8, 9), "2"), "once for two answers"
    state = part.init(TASK, 1)
    rollouts = [replace(rollout, draw=replace(rollout.draw, id=0)), scored(Draw(1, TASK[3], 2), [0.0, 0.0])]
    state = through_json(part.end_iteration(state, rollouts))
    std = 2**0.5 / 3  # of scores 0, 1, 1
    assert state["mean_diversity"] == pytest.approx(std / 2) and state["diversity_by_kind"] == {}
    state, draws = part.draw(state, TASK, 2, 4)
    child = draws[-1]
    assert (child.prompt.token_ids, child.prompt.row["answer"], child.metadata["kind"]) == ((8, 9), 7, "2")
    assert child.prompt.id == f"p > {text(8, 9)}" and not state["waiting_proposals"] and "kind" not in draws[0].metadata
    state = part.end_iteration(state, [scored(child, [0.0, 1.0]), scored(draws[0], [1.0, 1.0])])
    assert state["diversity_by_kind"] == {"2": 1.0}, "twice the usual diversity and more"
    assert state["mean_diversity"] == pytest.approx(0.5 * std / 2 + 0.5 * 0.25)
    assert part.draw(state, TASK, 1, 4)[1][0].metadata["diverse"] == {"2": 1.0}
    assert part.end_iteration(state, [scored(child, [0.0, 0.0])])["diversity_by_kind"] == {"2": 0.0}, "-1 at half rate"


def test_without_proposals_it_is_the_task():
    part = ProposedProblemCurriculum()
    _, draws = part.draw(part.init(TASK, 5), TASK, 4, 3)
    _, plain = Shuffled().draw(Shuffled().init(TASK, 5), TASK, 4, 3)
    assert [d.prompt for d in draws] == [d.prompt for d in plain]
    assert syn_grpo(diverse=0.0).shaping[2].weight == 0


def test_sums_are_proposed():
    proposal = SumProposalParser().propose("7*5=35;#35;2+9*3=")
    assert proposal is not None and proposal.text == "2+9*3=" and proposal.row["answer"] == 33
    assert SumProposalParser().propose("7*5=35;#35") is None
