"""Conversations with environments: tokens and their origins, budgets, ends, and replay after a kill."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from tokenizers import AddedToken, decoders, models
from tokenizers import Tokenizer as Fast

from groupwise.core import Usage
from groupwise.data import (
    ENVIRONMENT,
    TEMPLATE,
    Draw,
    Environment,
    Finish,
    GenerationRequest,
    Ids,
    Observation,
    Outcome,
    Prompt,
    ReplyWithCounts,
    Rollout,
    Sample,
    Verdict,
    pack,
)
from groupwise.engines import NativeEngine
from groupwise.environments import calculator_tools, user_environment
from groupwise.learner.forward import forward
from groupwise.models import Tokenizer, find_template
from groupwise.rollout import SinglePromptSampler, Turns
from groupwise.rollout.conversation import ReplyMismatch
from tests.models.directories import bytes_
from tests.models.test_templates import CHATML, trained, transformers_ids
from tests.rollout.fakes import FakeEngine, decoder, engine, sampler_of, sampling, tokenizer, without_end_token

END = 0
PROMPT = Prompt("p", (3, 1, 4), row={"answer": "7"})


@dataclass
class Replies:
    """An environment that returns observations from a list and records the messages."""

    observations: list[Any]
    opening: str | None = None
    messages: list[str] = field(default_factory=list)
    resets: list[float] = field(default_factory=list)

    async def reset(self, prompt: Prompt, random: Random) -> Observation:
        self.resets.append(random.random())
        return self.opening

    async def step(self, message: str) -> Observation:
        self.messages.append(message)
        return self.observations[len(self.messages) - 1]

    async def restore(self, message: str, observation: Observation) -> Observation:
        return await self.step(message)


def turns_of(*turns: str) -> Callable[[GenerationRequest], Ids]:
    """A script for `FakeEngine`: the model's turns in order, each with the end token."""
    vocabulary = tokenizer()

    def answer(request: GenerationRequest) -> Ids:
        done = request.context[len(request.context) - request.already_generated_count :].count(END)
        return (*vocabulary.encode(turns[done]), END)

    return answer


@dataclass
class MemoryReplay:
    """A replay log in memory."""

    lines: dict[str, Observation] = field(default_factory=dict)

    def __contains__(self, question: str) -> bool:
        return question in self.lines

    def __getitem__(self, question: str) -> Observation:
        return self.lines[question]

    def write(self, question: str, reply: Observation) -> None:
        self.lines[question] = reply


def sampler(
    environment: Callable[[], Environment] | None, script: Any = None, n: int = 1, **changes: Any
) -> SinglePromptSampler:
    fields: dict[str, Any] = {
        "engine": FakeEngine(script), "draw": Draw(4, PROMPT, n), "sampling": sampling(max_tokens=40),
        "create_environment": environment,
    }  # fmt: skip
    return sampler_of(**(fields | changes))


def rollout(s: SinglePromptSampler, turns: Turns = Turns()) -> Rollout:  # noqa: B008
    return asyncio.run(turns(s.draw, s))


def conversation(environment: Environment, script: Any, turns: Turns = Turns(), **changes: Any) -> Sample:  # noqa: B008
    return rollout(sampler(lambda: environment, script, **changes), turns).samples[0]


def model_turns(sample: Sample) -> list[str]:
    """The text of the model's turns, decoded from the tokens."""
    return [tokenizer().decode(sample.tokens[a:b]) for a, b in sample.turns]


# Origins of tokens


@pytest.mark.t(35)
def test_only_the_models_tokens_are_trained() -> None:
    environment = Replies(["35;", None])
    sample = conversation(environment, turns_of("7*5=", "+1=36"))
    assert environment.messages == ["7*5=", "+1=36"]
    assert (sample.text, sample.finish) == ("7*5=35;+1=36", Finish.stop)
    assert model_turns(sample) == ["7*5=", "+1=36"]
    observed = [i for i, o in enumerate(sample.origin) if o == ENVIRONMENT]
    assert tokenizer().decode([sample.tokens[i] for i in observed]) == "35;"
    assert set(sample.origin) == {0, ENVIRONMENT} and sample.limit == 40
    batch = pack([Rollout(Draw(0, PROMPT, 1), (sample,))])
    assert not set(batch.index_in_sample.tolist()) & set(observed) and batch.tokens == len(sample.tokens) - len(
        observed
    )
    assert batch.length.tolist() == [len(sample.tokens)] and not batch.logp_engine.isnan().any()


@pytest.mark.t(35)
def test_engine_and_learner_agree_on_every_token_of_the_model() -> None:
    """The engine continues after observations; the learner forwards the whole conversation at once."""
    model = decoder(spread=0.6)
    vocabulary = tokenizer(0, 1, 2, 3, 4, 5)
    environments = [Replies(["67+", "8;", "9"] * 20, opening="6" * i) for i in range(3)]  # no end token in a text
    remaining = iter(environments)
    s = sampler(
        lambda: next(remaining),
        n=3,
        engine=engine(model, vocabulary),
        tokenizer=vocabulary,
        sampling=sampling(max_tokens=90),
    )
    samples = rollout(s, Turns(max_turns=50)).samples
    assert all(len(x.turns) > 3 for x in samples)
    batch = pack([Rollout(s.draw, samples)])
    logp, entropy = forward(model, batch, temperature=1.0)
    assert float(entropy.mean()) > 0.5
    torch.testing.assert_close(logp.detach(), batch.logp_engine, atol=1e-10, rtol=0)
    by_model = [t for x in samples for a, b in x.turns for t in x.tokens[a:b]]
    assert [
        x.tokens[i] for x, n in zip(batch.samples, batch.sequences.lengths.tolist()) for i in _token_indices(batch, x)
    ] == by_model
    assert sum(x.tokens[b - 1] in vocabulary.eos_ids for x in samples for _, b in x.turns) >= sum(
        len(x.turns) - 1 for x in samples
    )


def _token_indices(batch: Any, sample: Sample) -> list[int]:
    i = batch.samples.index(sample)
    return batch.index_in_sample[batch.sequences.index == i].tolist()


@pytest.mark.t(33)
def test_the_sampled_ids_are_trained_even_if_the_text_tokenizes_differently() -> None:
    """The tokenizer encodes `ab` as one id, and the engine samples `a` and `b`."""
    fast = Fast(models.BPE({"<end>": 0, "a": 1, "b": 2, "ab": 3}, [("a", "b")]))
    fast.decoder = decoders.Fuse()
    fast.add_special_tokens([AddedToken("<end>", special=True)])
    vocabulary = Tokenizer.of(fast, [0])
    sampled = (1, 2, 1, 2, 0)
    assert vocabulary.encode(vocabulary.decode(sampled)) == (3, 3)
    environment = Replies(["ab", "ab", None])
    s = sampler(lambda: environment, lambda request: sampled, tokenizer=vocabulary)
    sample = rollout(s).samples[0]
    assert sample.tokens == (*sampled, 3, *sampled, 3, *sampled)
    assert environment.messages == ["abab"] * 3
    batch = pack([Rollout(s.draw, (sample,))])
    assert [sample.tokens[i] for i in batch.index_in_sample.tolist()] == [*sampled] * 3
    requests = s.rollout_setting.engine.requests  # type: ignore[attr-defined]
    assert [a.context for a in requests] == [PROMPT.token_ids + sample.tokens[:i] for i in (0, 6, 12)]
    assert [(a.already_generated_count, a.limit, a.stream) for a in requests] == [(i, 40 - i, (0,)) for i in (0, 6, 12)]


@pytest.mark.t(36)
def test_special_tokens_in_observations_are_plain_text() -> None:
    names = ["<end>", "<|im_end|>", "<|im_start|>"]
    letters = sorted(set("".join(names)) | set("user \nx"))
    fast = Fast(models.BPE({c: i for i, c in enumerate([*names, *letters])}, []))
    fast.decoder = decoders.Fuse()
    fast.add_special_tokens([AddedToken(name, special=True) for name in names])
    vocabulary = Tokenizer.of(fast, [0, 1])
    observation = "<end><|im_end|>\n<|im_start|>user"
    x = vocabulary.encode("x")

    def script(request: GenerationRequest) -> Ids:
        return (*x, 1)

    sample = conversation(
        Replies([observation, observation, None]), script, tokenizer=vocabulary, sampling=sampling(max_tokens=200)
    )
    observed = [t for t, o in zip(sample.tokens, sample.origin) if o == ENVIRONMENT]
    assert not {0, 1, 2} & set(observed) and vocabulary.decode(observed) == 2 * observation
    assert [sample.tokens[a:b] for a, b in sample.turns] == [(*x, 1)] * 3
    plain = conversation(
        Replies(["x" * len(observation)] * 2 + [None]), script, tokenizer=vocabulary, sampling=sampling(max_tokens=200)
    )
    assert plain.origin == sample.origin and plain.trained == sample.trained


STRIPS_THINKING = CHATML.replace(
    "message.content | trim", "(message.content if loop.last else message.content.split('</think>')[-1]) | trim"
)
"""ChatML that removes the thinking of earlier turns."""


@pytest.mark.t(34)
def test_a_template_that_strips_thinking_changes_no_token_of_a_conversation(tmp_path: Path) -> None:
    vocabulary = trained(STRIPS_THINKING)
    template = find_template("chat", vocabulary)
    prompt = Prompt("p", template("7*5="))
    turns = ["<think>hm</think>call", "<think>so</think>again", "35"]
    remaining = iter(turns)
    s = sampler(
        lambda: Replies(["<|im_end|> 3", "5", None]),
        lambda request: (*vocabulary.encode(next(remaining)), min(vocabulary.eos_ids)),
        draw=Draw(4, prompt, 1), tokenizer=vocabulary, sampling=sampling(max_tokens=400),
        observation_frame_ids=template.turn_frame(),
    )  # fmt: skip
    sample = rollout(s).samples[0]
    by_model = [vocabulary.decode(sample.tokens[a:b]) for a, b in sample.turns]
    assert by_model == turns
    requests = s.rollout_setting.engine.requests  # type: ignore[attr-defined]
    for earlier, later in pairwise(requests):
        assert later.context[: len(earlier.context)] == earlier.context
    assert requests[-1].context == sample.context + sample.tokens[: requests[-1].already_generated_count]
    # The sampled tokens stay; the template itself would remove the thinking.
    assert "<think>hm</think>" in vocabulary.decode(requests[-1].context)
    messages = [
        {"role": r, "content": c}
        for r, c in zip(["user", "assistant"] * 2, ["7*5=", *turns[:1], "<|im_end|> 3", *turns[1:2]])
    ]
    assert "<think>hm</think>" not in vocabulary.decode(transformers_ids(vocabulary, messages, tmp_path))
    kinds = [
        vocabulary.decode([t for t, o in zip(sample.tokens, sample.origin) if o == kind])
        for kind in (ENVIRONMENT, TEMPLATE)
    ]
    assert kinds[0] == "<|im_end|> 35" and kinds[1] == "\n<|im_start|>user\n\n<|im_start|>assistant\n" * 2


@pytest.mark.parametrize("ended", [True, False])
def test_a_chat_continues_as_its_template_renders_it(ended: bool, tmp_path: Path) -> None:
    """The tokens equal those of transformers for the same messages, also if a stop string ended the turn."""
    vocabulary = trained()
    template = find_template("chat", vocabulary)
    draw = Draw(4, Prompt("p", template("7*5=")), 1)
    end = (min(vocabulary.eos_ids),) if ended else ()
    remaining = iter([vocabulary.encode("call") + end, vocabulary.encode("35") + end])
    s = sampler(
        lambda: Replies(["see: 3", None]), lambda request: next(remaining),
        draw=draw, tokenizer=vocabulary, sampling=sampling(max_tokens=400),
        observation_frame_ids=template.turn_frame(),
    )  # fmt: skip
    sample = rollout(s).samples[0]
    messages = [{"role": r, "content": c} for r, c in (("user", "7*5="), ("assistant", "call"), ("user", "see: 3"))]
    context = s.rollout_setting.engine.requests[-1].context  # type: ignore[attr-defined]
    assert list(context) == transformers_ids(vocabulary, messages, tmp_path)
    assert [vocabulary.decode(sample.tokens[a:b]) for a, b in sample.turns] == ["call", "35"]
    assert sample.last_turn.text == "35"


def test_an_opening_observation_follows_the_prompt_without_template_tokens() -> None:
    vocabulary = trained()
    frame = find_template("chat", vocabulary).turn_frame()
    s = sampler(
        lambda: Replies([None], opening="3"), lambda request: (*vocabulary.encode("x"), min(vocabulary.eos_ids)),
        tokenizer=vocabulary, observation_frame_ids=frame,
    )  # fmt: skip
    assert set(rollout(s).samples[0].origin) == {ENVIRONMENT, 0}


def test_tool_calls_and_their_results_are_one_conversation() -> None:
    vocabulary = bytes_()
    turns = [
        'First <tool_call>{"name": "calculate", "arguments": {"expression": "37*48"}}</tool_call>',
        '<tool_call>{"name": "calculate"}</tool_call>',
        "7",
    ]
    remaining = iter(turns)
    make = user_environment(calculator_tools)
    s = sampler(
        make,
        lambda request: (*vocabulary.encode(next(remaining)), 1),
        tokenizer=vocabulary,
        sampling=sampling(max_tokens=999),
    )
    sample = rollout(s).samples[0]
    error = "error: calculate: missing a required argument: 'expression'"
    answers = [f"<tool_response>\n{x}\n</tool_response>" for x in ("1776", error)]
    assert sample.text == turns[0] + answers[0] + turns[1] + answers[1] + turns[2]
    assert [vocabulary.decode(sample.tokens[a:b]) for a, b in sample.turns] == turns


# How a conversation ends


def test_the_verifier_gets_the_last_turn() -> None:
    judged: list[Sample] = []

    async def verifier(prompt: Prompt, sample: Sample) -> Verdict:
        judged.append(sample)
        return Verdict(Outcome.correct if sample.text == prompt.row["answer"] else Outcome.wrong)

    good = conversation(Replies(["8", None]), turns_of("1", "7"), verifier=verifier)
    bad = conversation(Replies(["7", None]), turns_of("1", "8"), verifier=verifier)
    assert [s.verdict.outcome.name for s in (good, bad) if s.verdict] == ["correct", "wrong"]
    assert [s.text for s in judged] == ["7", "8"]
    assert judged[0].context + judged[0].tokens == good.context + good.tokens and judged[0].token_ends == (1, 1)
    assert good.context == PROMPT.token_ids  # the recorded sample is the whole conversation


def test_a_verdict_of_the_environment_replaces_the_verifier() -> None:
    def verifier(prompt: Prompt, sample: Sample) -> Verdict:
        raise AssertionError("the verifier was called")

    won = Verdict(Outcome.correct, 0.5, feedback="in two turns")
    sample = conversation(Replies(["1", won]), turns_of("2", "3"), verifier=verifier)
    assert sample.verdict == won and sample.text == "213"


def test_counts_of_observations_are_summed_over_the_conversation() -> None:
    environment = Replies(
        [ReplyWithCounts("1", calls=2), "2", ReplyWithCounts("3", calls=1, malformed=1), None],
        opening=ReplyWithCounts("0", calls=0.5),
    )
    sample = conversation(environment, turns_of(*"4567"))
    assert sample.counts == {"calls": 3.5, "malformed": 1, "failed": 0} and sample.text == "04152637"
    over_budget = conversation(
        Replies([ReplyWithCounts("222", calls=1)] * 9), turns_of(*["1="] * 9), sampling=sampling(max_tokens=12)
    )
    assert over_budget.counts == {"calls": 2, "failed": 0}  # the second observation exceeds the budget, and is counted
    plain = asyncio.run(sampler(None, turns_of("1")).sample(PROMPT.token_ids))
    assert plain[0].counts == {}


def test_a_conversation_aborted_by_its_environment_is_counted() -> None:
    lost = Verdict(Outcome.unverifiable, cause="Mine.step: no answer within 10 s")
    broken = conversation(Replies([ReplyWithCounts("1", calls=1), lost]), turns_of("2", "3"))
    assert broken.counts == {"calls": 1, "failed": 1} and broken.verdict == lost
    judged = conversation(Replies(["1", Verdict(Outcome.wrong)]), turns_of("2", "3"))
    unverifiable = conversation(Replies([None]), turns_of("2"), verifier=Replies([]).step)  # the verifier fails
    assert judged.counts == unverifiable.counts == {"failed": 0}
    assert unverifiable.verdict is not None and unverifiable.verdict.outcome is Outcome.unverifiable


def test_opening_observations_and_equal_random_numbers_for_all_samples_of_a_draw() -> None:
    environments = [Replies([None], opening="9="), Replies([None], opening="8=")]
    remaining = iter(environments)
    s = sampler(lambda: next(remaining), turns_of("9"), n=2)
    samples = rollout(s).samples
    assert [x.text for x in samples] == ["9=9", "8=9"] and samples[0].origin[:2] == (ENVIRONMENT,) * 2
    assert environments[0].resets == environments[1].resets and len(set(environments[0].resets)) == 1


@pytest.mark.parametrize("most", [1, 2, 3])
def test_a_conversation_is_cut_after_most_turns(most: int) -> None:
    environment = Replies(["1"] * 9)
    sample = conversation(environment, turns_of(*["2"] * 9), Turns(max_turns=most), sampling=sampling(max_tokens=99))
    assert len(sample.turns) == most and sample.finish is Finish.length
    assert sample.origin[-1] >= 0 and sample.verdict is not None  # its last turn was judged
    over = conversation(Replies(["1"] * (most - 1) + [None]), turns_of(*["2"] * 9), Turns(max_turns=most))
    assert len(over.turns) == most and over.finish is Finish.stop


def test_one_budget_covers_the_whole_conversation() -> None:
    """A turn has three tokens and an observation three: 3, 6, 9, 12, and two more."""
    script = turns_of(*["1="] * 9)
    cut = conversation(Replies(["222"] * 9), script, sampling=sampling(max_tokens=14))
    assert (len(cut.tokens), cut.finish, len(cut.turns)) == (14, Finish.length, 3)
    full = conversation(Replies(["222"] * 9), script, sampling=sampling(max_tokens=12))
    assert (len(full.tokens), full.finish) == (9, Finish.length)  # an observation that leaves no room is not appended
    assert full.origin[-1] >= 0 and full.verdict is not None
    opening = conversation(Replies([None], opening="1" * 12), script, sampling=sampling(max_tokens=12))
    assert (opening.tokens, opening.finish) == ((), Finish.length)


def test_a_cut_turn_does_not_reach_the_environment() -> None:
    environment = Replies([])
    sample = conversation(environment, turns_of("1" * 50), sampling=sampling(max_tokens=12))
    assert sample.finish is Finish.length and environment.messages == []


def test_an_observation_that_cannot_be_tokenized_makes_the_sample_unverifiable() -> None:
    strict = Tokenizer.of(Fast(models.WordLevel({"<end>": 0, "1": 1}, unk_token="")), [0])
    sample = conversation(Replies(["é", None]), lambda request: (1, 0), tokenizer=strict)
    assert sample.verdict is not None and sample.verdict.outcome is Outcome.unverifiable
    assert (
        sample.verdict.cause
        == "the observation cannot be tokenized: the model's tokenizer has no token for the character 'é'"
    )


def test_an_empty_observation_is_not_the_end() -> None:
    sample = conversation(Replies(["", "", None]), turns_of("1", "2", "3"))
    assert model_turns(sample) == ["123"] and sample.text == "123" and len(sample.tokens) == 6


def test_turns_need_an_environment() -> None:
    with pytest.raises(Usage, match="the recipe has none"):
        rollout(sampler(None, turns_of("1")))


def test_most_is_at_least_one() -> None:
    with pytest.raises(ValueError, match="max_turns is 0"):
        Turns(max_turns=0)


# After a kill


class Killed(Exception):
    """Stands for the death of the process."""


def killed_after(steps: int, observations: list[Any], **fields: Any) -> Replies:
    """An environment that raises `Killed` at the step after `steps`."""
    environment = Replies(observations, **fields)
    step = environment.step

    async def guarded(message: str) -> Observation:
        if len(environment.messages) >= steps:
            raise Killed
        return await step(message)

    environment.step = guarded  # type: ignore[method-assign]
    return environment


SCRIPT = turns_of("1", "2", "3", "4", "5")


@pytest.mark.t(49)
@pytest.mark.parametrize("after", range(5))
def test_a_conversation_killed_at_any_step_continues_as_if_never_killed(after: int) -> None:
    observations = ["6;", "7;", "8;", "9;", None]
    whole = conversation(Replies(observations), SCRIPT)
    log = MemoryReplay()
    with pytest.raises(Killed):
        conversation(killed_after(after, observations), SCRIPT, environment_reply_log=log)
    assert len(log.lines) == 1 + after
    again = Replies(observations)
    assert conversation(again, SCRIPT, environment_reply_log=log) == whole
    assert again.messages == ["1", "2", "3", "4", "5"]  # it was restored with the logged messages
    unused = Replies([])
    assert (
        conversation(unused, SCRIPT, environment_reply_log=log) == whole and unused.resets == []
    )  # all of it is in the log


def test_an_environment_with_restore_gets_no_step_twice() -> None:
    @dataclass
    class Live(Replies):
        restored: list[tuple[str, Observation]] = field(default_factory=list)

        async def restore(self, message: str, observation: Observation) -> Observation:
            self.restored.append((message, observation))
            return observation

    log = MemoryReplay()
    with pytest.raises(Killed):
        conversation(killed_after(2, ["6;", "7;"]), SCRIPT, environment_reply_log=log)
    live = Live(["9;", None])
    sample = conversation(live, SCRIPT, environment_reply_log=log)
    assert sample.text == "16;27;39;4"
    assert (live.messages, live.restored) == (["3", "4"], [("1", "6;"), ("2", "7;")])


def test_a_conversation_starts_over_if_the_environment_answers_differently_after_a_kill() -> None:
    log = MemoryReplay()
    with pytest.raises(Killed):
        conversation(killed_after(3, ["6;", "7;", "8;"]), SCRIPT, environment_reply_log=log)
    environments: list[Replies] = []

    def environment() -> Replies:
        environments.append(Replies(["6;", "0;", "0;", None]))
        return environments[-1]

    s = sampler(environment, SCRIPT, environment_reply_log=log)
    sample = rollout(s).samples[0]
    assert sample.text == "16;20;30;4"  # one conversation with one environment
    assert [w.messages for w in environments] == [["1", "2"], ["1", "2", "3", "4"]]
    assert environments[0].resets == environments[1].resets  # with the same random numbers
    assert conversation(Replies([]), SCRIPT, environment_reply_log=log) == sample


def test_a_conversation_starts_over_only_once() -> None:
    class Drifting(Replies):
        async def restore(self, message: str, observation: Observation) -> Observation:
            return None

    log = MemoryReplay()
    with pytest.raises(Killed):
        conversation(killed_after(1, ["6;"]), SCRIPT, environment_reply_log=log)
    with pytest.raises(Killed):
        conversation(killed_after(0, [], opening="5"), SCRIPT, environment_reply_log=log)
    assert (
        ReplyMismatch.__doc__ and conversation(Drifting(["4;", None]), SCRIPT, environment_reply_log=log).text == "14;2"
    )


def test_equal_messages_of_different_conversations_have_separate_log_entries() -> None:
    """Siblings with equal messages, another draw, another temperature: each has its own entries in the log."""
    log = MemoryReplay()
    answers = iter(["6;", "7;", "8;", "9;"])

    class Once(Replies):
        async def step(self, message: str) -> Observation:
            return next(answers) if message == "1" else None

    def texts(**changes: Any) -> list[str]:
        return [
            x.text
            for x in rollout(
                sampler(lambda: Once([]), turns_of("1", "2"), environment_reply_log=log, **changes)
            ).samples
        ]

    first = [texts(n=2), texts(draw=Draw(5, PROMPT, 1)), texts(sampling=sampling(max_tokens=40, temperature=0.0))]
    assert first == [["16;2", "17;2"], ["18;2"], ["19;2"]]
    again = [texts(n=2), texts(draw=Draw(5, PROMPT, 1)), texts(sampling=sampling(max_tokens=40, temperature=0.0))]
    assert again == first


def test_conversations_on_the_native_engine_differ_and_are_repeatable() -> None:
    """Conversations with equal prompts and observations diverge; a second run gives the same samples."""
    e: NativeEngine = engine(decoder())
    vocabulary = without_end_token()

    class Every(Replies):
        async def step(self, message: str) -> Observation:
            return "1" if len(self.messages) < 3 and not self.messages.append(message) else None

    def samples_of(one: NativeEngine) -> tuple[Sample, ...]:
        settings = sampling(max_tokens=60, stop=tuple("0123456789"))
        return rollout(sampler(lambda: Every([]), n=4, engine=one, tokenizer=vocabulary, sampling=settings)).samples

    samples = samples_of(e)
    assert len({x.tokens for x in samples}) == 4 and all(len(x.turns) > 1 for x in samples)
    assert samples_of(engine(decoder())) == samples
