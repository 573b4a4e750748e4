"""The sampler of a draw: token budgets, verdicts in order, and failures as data."""

import asyncio
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from groupwise.core import WorkerLost
from groupwise.data import (
    ENVIRONMENT,
    TEMPLATE,
    WRITTEN,
    Draw,
    Finish,
    Ids,
    Outcome,
    Prompt,
    Sample,
    Sampler,
    Sampling,
    Strategy,
    Verdict,
    Verifier,
)
from groupwise.engines import NativeEngine
from groupwise.models import Decoder, RandomPurpose
from groupwise.rollout import Independent, SinglePromptSampler
from tests.rollout.fakes import (
    FakeEngine,
    decoder,
    draw,
    engine,
    generate,
    logits,
    request,
    sampler_of,
    sampling,
    tokenizer,
    verdict,
    without_end_token,
)

CONTEXT: Ids = (3, 1, 4)


def counting(request: Any) -> Ids:
    """1, 2, 3 ... with the end token after the tenth, also across interruptions."""
    return (*range(request.already_generated_count + 1, 11), 0)


def sampler(engine: Any = None, **changes: Any) -> SinglePromptSampler:
    return sampler_of(engine or FakeEngine(counting), changes.pop("draw", draw(4)), **changes)


def run(coroutine: Any) -> Any:
    return asyncio.run(coroutine)


def test_a_finished_sample_has_text_finish_and_origin() -> None:
    (one, two) = run(sampler().sample(CONTEXT, 2, group=3, role="hint"))
    assert (one.tokens, one.finish) == ((*range(1, 11), 0), Finish.stop)
    assert (one.text, one.token_ends) == ("0123456789", (*range(1, 11), 10))
    assert (one.origin, one.logp) == ((0,) * 11, (-1.0,) * 11)
    assert (one.stream, two.stream, one.group, one.role, one.limit) == ((0,), (1,), 3, "hint", 12)
    assert isinstance(sampler(), Sampler) and isinstance(Independent(), Strategy)


def test_samples_and_requests_have_the_content_hash_of_the_prompt() -> None:
    s = sampler(draw=Draw(4, Prompt("p", CONTEXT, content_hash="cat"), 1))
    (one,) = run(s.sample(CONTEXT))
    assert one.context_key == s.rollout_setting.engine.requests[0].context_key == ("cat", CONTEXT)
    assert one.fork(2, 0).content_hash == one.last_turn.content_hash == "cat"


def test_the_budget_is_for_the_whole_sample_and_a_limit_leaves_it_open() -> None:
    s = sampler(sampling=sampling(max_tokens=7))
    (empty,) = s.start(CONTEXT)
    paused = run(s.extend(empty, limit=3))
    assert (paused.tokens, paused.finish, paused.text) == ((1, 2, 3), None, "012")
    inserted = paused.insert((9, 9), TEMPLATE)
    whole = run(s.extend(inserted))
    assert (whole.tokens, whole.finish) == ((1, 2, 3, 9, 9, 6, 7), Finish.length)
    requests = s.rollout_setting.engine.requests
    assert [(a.context, a.limit, a.already_generated_count) for a in requests] == [
        (CONTEXT, 3, 0),
        ((*CONTEXT, 1, 2, 3, 9, 9), 2, 5),
    ]
    assert {(a.draw_id, a.stream, a.random_purpose) for a in requests} == {(4, (0,), RandomPurpose.SAMPLE)}
    assert run(s.extend(whole)) is whole
    assert len(s.rollout_setting.engine.requests) == 2
    # No tokens are left.
    full = run(s.extend(paused.insert((9,) * 4, TEMPLATE)))
    assert (full.finish, len(s.rollout_setting.engine.requests)) == (Finish.length, 2)


def test_an_inserted_turn_reopens_a_finished_sample() -> None:
    s = sampler(FakeEngine(lambda request: (7, 0)))
    (first,) = run(s.sample(CONTEXT))
    again = run(s.extend(first.insert((5,), ENVIRONMENT)))
    assert (again.tokens, again.finish) == ((7, 0, 5, 7, 0), Finish.stop)
    assert again.origin == (0, 0, ENVIRONMENT, 0, 0)


def test_an_interrupted_sample_continues_within_its_budget() -> None:
    s = sampler(FakeEngine(counting, interrupt_after=4), sampling=sampling(max_tokens=9))
    (one,) = run(s.sample(CONTEXT))
    assert (one.tokens, one.finish) == (tuple(range(1, 10)), Finish.length)
    assert one.origin == (0, 0, 0, 0, 1, 1, 1, 1, 2)
    assert [a.limit for a in s.rollout_setting.engine.requests] == [9, 5, 1]
    paused = run(s.extend(s.start(CONTEXT)[0], limit=6))
    assert (paused.tokens, paused.finish) == (tuple(range(1, 7)), None)


def test_interruptions_change_no_token() -> None:
    """The native engine reloads the same weights repeatedly; random numbers do not depend on interruptions."""
    model = decoder()
    whole = generate(engine(model), [request(0, context=CONTEXT, draw_id=4, stream=(i,), limit=40) for i in range(3)])

    async def go(native: NativeEngine) -> list[Sample]:
        s = sampler(native, sampling=sampling(max_tokens=40), tokenizer=without_end_token())
        task = asyncio.create_task(s.sample(CONTEXT, 3))
        while not task.done():
            for _ in range(7):
                await asyncio.sleep(0)
            await native.load(native.version + 1, model.state_dict())
        return await task

    samples = run(go(engine(model)))
    assert [s.tokens for s in samples] == [x.tokens for x in whole]
    assert [x for s in samples for x in s.logp] == pytest.approx([x for w in whole for x in w.logp], abs=1e-12)
    assert all(len(set(s.origin)) > 3 and list(s.origin) == sorted(s.origin) for s in samples)


@pytest.mark.t(43)
def test_siblings_and_forks_have_different_random_numbers() -> None:
    s = sampler(engine(decoder()), tokenizer=without_end_token())
    samples = run(s.sample(CONTEXT, 3))
    forks = [samples[0].fork(at, i) for at, i in ((0, 0), (0, 1), (4, 0), (4, 1))]
    branches = [run(s.extend(f)) for f in forks]
    assert len({x.tokens for x in (*samples, *branches)}) == 7
    assert [b.tokens[:4] for b in branches[2:]] == [samples[0].tokens[:4]] * 2
    later = run(s.sample(CONTEXT, 1))[0]
    assert later.stream == (3,) and later.tokens not in [x.tokens for x in samples]
    again = run(sampler(engine(decoder()), tokenizer=without_end_token()).sample(CONTEXT, 3))
    assert again == samples
    assert [s.random(1, 2).random() for _ in range(2)] == [sampler().random(1, 2).random()] * 2
    assert len({x.random(*key).random() for x in (s, sampler(draw=draw(5))) for key in ((1,), (2,))}) == 4


def test_score_is_under_the_context_given() -> None:
    s = sampler()
    (one,) = s.start(CONTEXT)
    assert run(s.score((1, 2), one.insert((5, 6), TEMPLATE))) == (-2.0, -3.0)


# Text, room, sampling parameters


def test_prompts_and_plain_text_are_encoded() -> None:
    s = sampler(encode_prompt=lambda text: (19, *tokenizer().encode(text), 18))
    assert s.prompt("12") == (19, *s.ids("12"), 18) and s.ids("12") == tokenizer().encode("12")
    assert sampler().prompt("12") == s.ids("12")


def test_a_long_context_reduces_the_budget_and_ends_no_run() -> None:
    s = sampler(max_positions=9)
    assert [s.room((1,) * n) for n in (1, 3, 8, 9, 20)] == [8, 6, 1, 0, 0]
    samples = run(s.sample(CONTEXT, 1)) + run(s.sample((1,) * 20, 1))
    assert [(len(x.tokens), x.limit, x.finish) for x in samples] == [(6, 6, Finish.length), (0, 0, Finish.length)]
    assert len(s.rollout_setting.engine.requests) == 1 and sampler().room((1,) * 999) == 12


def test_extend_takes_other_sampling_parameters() -> None:
    s = sampler()
    greedy = sampling(temperature=0.0, stop=("5",), max_tokens=1)
    (one,) = s.start(CONTEXT)
    one = run(s.extend(one, limit=2, sampling=greedy))
    run(s.extend(one))
    assert [r.sampling for r in s.rollout_setting.engine.requests] == [greedy, s.rollout_setting.sampling]
    assert [r.limit for r in s.rollout_setting.engine.requests] == [2, 10]  # the budget is still the recipe's


def test_a_written_text_is_a_training_target_with_an_end_token() -> None:
    s = sampler()
    (empty,) = s.start(CONTEXT)
    begun = run(s.extend(empty, limit=2))
    whole = s.write(begun, "77")
    assert whole.tokens == (*begun.tokens, *s.ids("77"), 0) and whole.origin == (0, 0, *(WRITTEN,) * 3)
    assert (whole.text, whole.finish, all(whole.trained)) == ("0177", Finish.stop, True)
    assert len(whole.token_ends) == 5


def test_score_has_a_temperature() -> None:
    """On the native engine: the distribution of the learner at that temperature."""
    model = decoder()
    s = sampler(engine(model))
    (empty,) = s.start(CONTEXT)
    sample = empty.insert((5, 6, 7), TEMPLATE)
    logp = torch.log_softmax(logits(model, (2, 9), sample.tokens) / 0.5, -1)
    expected = [logp[i, t].item() for i, t in enumerate(sample.tokens)]
    assert run(s.score((2, 9), sample, temperature=0.5)) == pytest.approx(expected, rel=1e-12)
    assert run(s.score((2, 9), sample)) != pytest.approx(expected, rel=1e-3)


# Verdicts


def judged(
    grade: Callable[[int], Any], n: int = 4, deadline: float = 5.0, threshold: float | None = None
) -> list[Sample]:
    """`n` samples in the order of their streams, judged by `grade` of the stream; `grade` may return a coroutine."""

    async def verifier(prompt: Prompt, sample: Sample) -> Any:
        verdict = grade(sample.stream[0])
        return await verdict if asyncio.iscoroutine(verdict) else verdict

    s = sampler(verifier=verifier, verdict_deadline=deadline, correct_threshold=threshold)
    return run(s.verify(s.start(CONTEXT, n)))


@pytest.mark.t(42)
def test_verdicts_keep_the_order_of_samples_under_delays_and_failures() -> None:
    async def slow(i: int) -> Verdict:
        await asyncio.sleep((i * 7 % 5) * 0.01)
        if i % 3 == 2:
            raise ValueError(f"number {i}")
        return verdict(i / 10)

    for i, sample in enumerate(judged(slow, 10)):
        assert sample.stream == (i,)
        assert sample.verdict is not None
        if i % 3 == 2:
            assert sample.verdict.cause.endswith(f" in slow: ValueError: number {i}")
        else:
            assert sample.verdict == verdict(i / 10)


def test_a_scored_answer_is_correct_from_the_threshold_on() -> None:
    scores = [-3.0, 0.5, 7.5]

    def outcomes(threshold: float | None) -> list[str]:
        verdicts = [s.verdict for s in judged(lambda i: Verdict(Outcome.scored, scores[i]), 3, threshold=threshold)]
        assert [v.score for v in verdicts if v] == scores
        return [v.outcome.name for v in verdicts if v]

    assert outcomes(None) == ["scored"] * 3
    assert outcomes(0.5) == ["wrong", "correct", "correct"]
    (wrong,) = judged(lambda i: Verdict(Outcome.wrong, 0.9), 1, threshold=0.5)
    assert wrong.verdict == Verdict(Outcome.wrong, 0.9)


@pytest.mark.parametrize(
    ("invalid", "cause"),
    [
        (Verdict(Outcome.wrong, float("nan")), "the score nan: expected a finite number"),
        (Verdict(Outcome.correct, float("inf")), "the score inf: expected a finite number"),
        (Verdict(Outcome.scored), "the outcome scored without a score"),
        (Verdict(Outcome.wrong, 0.5, {"style": float("inf")}), "not finite"),
        (1.0, "returned 1.0, which is not a Verdict"),
        (None, "not a Verdict"),
    ],
)
def test_an_invalid_verdict_is_unverifiable(invalid: Any, cause: str) -> None:
    good, bad = judged(lambda i: invalid if i else verdict(0.0), 2)
    assert good.verdict == verdict(0.0)
    assert bad.verdict is not None and bad.verdict.outcome is Outcome.unverifiable
    assert cause in bad.verdict.cause


def test_a_score_of_zero_is_a_score() -> None:
    assert [s.verdict.value for s in judged(lambda i: verdict(float(i)), 2) if s.verdict] == [0.0, 1.0]


def test_a_verifier_that_hangs_costs_only_its_deadline() -> None:
    bad, good = judged(lambda i: verdict(1.0) if i else asyncio.sleep(1000), 2, deadline=0.05)
    assert good.verdict == verdict(1.0)
    assert bad.verdict == Verdict(Outcome.unverifiable, cause="no verdict within 0.05 seconds")


def test_a_timeout_raised_by_the_verifier_differs_from_the_deadline() -> None:
    def fails(i: int) -> Any:
        raise TimeoutError("the sandbox")

    failed = judged(fails, 1)[0].verdict
    assert failed is not None and failed.cause.endswith(" in fails: TimeoutError: the sandbox")


def test_cancelling_gives_no_verdict() -> None:
    async def go() -> None:
        s = sampler(verifier=lambda p, x: asyncio.sleep(1000))
        task = asyncio.create_task(s.verify(s.start(CONTEXT, 2)))
        await asyncio.sleep(0.01)
        assert s.pending_calls_by_callee["the verifier"] == 2
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert s.pending_calls_by_callee["the verifier"] == 0

    run(go())


def test_a_groupwise_error_is_raised() -> None:
    def fails(i: int) -> Any:
        raise WorkerLost("the graders are gone")

    with pytest.raises(WorkerLost, match="graders"):
        judged(fails, 2)


def test_an_invalid_value_costs_one_verdict_and_not_the_run() -> None:
    """A verifier may build a value of the library from an answer's text."""
    failed = judged(lambda i: Sampling(temperature=-1.0), 1)[0].verdict
    assert failed is not None and failed.outcome is Outcome.unverifiable and "InvalidValue" in failed.cause


def test_sys_exit_in_a_verifier_is_raised() -> None:
    with pytest.raises(SystemExit):
        judged(lambda i: sys.exit(3), 1)


def test_calls_outside_have_a_deadline() -> None:
    async def tool(x: int, seconds: float) -> int:
        await asyncio.sleep(seconds)
        return 2 * x

    s = sampler(verdict_deadline=0.05)
    assert run(s.outside(tool, 4, 0.0)) == 8
    with pytest.raises(TimeoutError):
        run(s.outside(tool, 4, 1000.0))


def test_an_error_of_the_engine_is_raised() -> None:
    def fails(request: Any) -> Ids:
        raise RuntimeError("gone")

    with pytest.raises(RuntimeError, match="gone"):
        run(sampler(FakeEngine(fails)).sample(CONTEXT, 2))


def test_independent_gives_one_group_of_judged_answers() -> None:
    s = sampler()
    rollout = run(Independent()(s.draw, s))
    assert (rollout.draw, len(rollout.samples), rollout.selected) == (s.draw, 3, None)
    assert all(x.verdict == verdict(1.0) and x.context == s.draw.prompt.token_ids for x in rollout.samples)


def test_origins_are_versions_of_the_engine() -> None:
    model = decoder(torch.float32)
    e = engine(model)
    asyncio.run(e.load(9, Decoder.new(model.shape, 5).state_dict()))
    assert set(run(sampler(e).sample(CONTEXT))[0].origin) == {9}


class Ranks(Verifier):
    """Grades a group by rank, longest first; a group of three raises."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    async def __call__(self, prompt: Prompt, sample: Sample) -> Verdict:
        raise AssertionError("a group is graded in one call")

    def by_group(self, prompt: Prompt) -> bool:
        return True

    async def grade_group(self, prompt: Prompt, samples: Sequence[Sample]) -> list[Verdict]:
        self.sizes.append(len(samples))
        if len(samples) == 3:
            raise KeyError("boom")
        return [verdict(1 / (1 + s.stream[0])) for s in samples] if len(samples) < 4 else [verdict(1.0)]


def test_a_group_grader_gets_each_group_once_and_its_failure_costs_that_group_only() -> None:
    ranks = Ranks()
    s = sampler(verifier=ranks)
    first, second, third = (s.start(CONTEXT, n, group=i) for i, n in enumerate((2, 3, 4)))
    mixed = [first[0], *second, first[1], *third]
    got = run(s.verify(mixed))
    assert [x.stream for x in got] == [x.stream for x in mixed] and sorted(ranks.sizes) == [2, 3, 4]
    assert [got[i].verdict for i in (0, 4)] == [verdict(1.0), verdict(0.5)]
    assert all(x.verdict.cause.endswith(" in grade_group: KeyError: 'boom'") for x in got[1:4])
    assert all(x.verdict.outcome is Outcome.unverifiable for x in got[5:])  # one verdict for four samples
