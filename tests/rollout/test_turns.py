"""Conversations: token in, token out; whose words are whose; budgets, ends, and what a journal brings back."""

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

from groupwise.data import (
    ENVIRONMENT,
    TEMPLATE,
    CountedText,
    Draw,
    Environment,
    Finish,
    GenerationRequest,
    Ids,
    Observation,
    Outcome,
    Prompt,
    Rollout,
    Sample,
    Usage,
    Verdict,
    pack,
)
from groupwise.environments import calculator_tools, user_environment
from groupwise.learner.forward import forward
from groupwise.models import Tokenizer, find_template
from groupwise.rollout import DrawSampler, NativeEngine, Turns
from groupwise.rollout.conversation import ReplayMismatch
from tests.models.directories import bytes_
from tests.models.test_templates import CHATML, trained, transformers_ids
from tests.rollout.fakes import Scripted, decoder, endless, engine, right, sampling, tokenizer

END = 0
PROMPT = Prompt("p", (3, 1, 4), given={"answer": "7"})


@dataclass
class Dialogue:
    """Answers from a list, and remembers what it heard. An entry that is called makes the answer."""

    replies: list[Any]
    opening: str | None = None
    heard: list[str] = field(default_factory=list)
    begun: list[float] = field(default_factory=list)

    async def reset(self, prompt: Prompt, random: Random) -> Observation:
        self.begun.append(random.random())
        return self.opening

    async def step(self, said: str) -> Observation:
        self.heard.append(said)
        return self.replies[len(self.heard) - 1]

    async def recall(self, said: str, reply: Observation) -> Observation:
        return await self.step(said)


def says(*turns: str) -> Callable[[GenerationRequest], Ids]:
    """An engine's script: the n-th turn of the model's in a conversation, with its end token."""
    reader = tokenizer()

    def rest(ask: GenerationRequest) -> Ids:
        done = ask.context[len(ask.context) - ask.at :].count(END)
        return (*reader.encode(turns[done]), END)

    return rest


@dataclass
class Kept:
    """A journal in memory."""

    lines: dict[str, Observation] = field(default_factory=dict)

    def __contains__(self, question: str) -> bool:
        return question in self.lines

    def __getitem__(self, question: str) -> Observation:
        return self.lines[question]

    def write(self, question: str, reply: Observation) -> None:
        self.lines[question] = reply


def sampler(
    environment: Callable[[], Environment] | None, script: Any = None, n: int = 1, **changes: Any
) -> DrawSampler:
    fields: dict[str, Any] = {
        "draw": Draw(4, PROMPT, n), "engine": Scripted(script), "verifier": right, "tokenizer": tokenizer(),
        "sampling": sampling(max_tokens=40), "seed": 11, "world": environment,
    }  # fmt: skip
    return DrawSampler(**{**fields, **changes})


def rollout(s: DrawSampler, turns: Turns = Turns()) -> Rollout:  # noqa: B008
    return asyncio.run(turns(s.draw, s))


def talked(environment: Environment, script: Any, turns: Turns = Turns(), **changes: Any) -> Sample:  # noqa: B008
    return rollout(sampler(lambda: environment, script, **changes), turns).samples[0]


def spoken(sample: Sample) -> list[str]:
    """The model's turns, read off its tokens."""
    return [tokenizer().decode(sample.tokens[a:b]) for a, b in sample.turns]


# Whose words are whose


@pytest.mark.t(35)
def test_the_model_speaks_the_environment_answers_and_only_the_model_is_trained() -> None:
    environment = Dialogue(["35;", None])
    sample = talked(environment, says("7*5=", "+1=36"))
    assert environment.heard == ["7*5=", "+1=36"]
    assert (sample.text, sample.finish) == ("7*5=35;+1=36", Finish.stop)
    assert spoken(sample) == ["7*5=", "+1=36"]
    ours = [i for i, o in enumerate(sample.origin) if o == ENVIRONMENT]
    assert tokenizer().decode([sample.tokens[i] for i in ours]) == "35;"
    assert set(sample.origin) == {0, ENVIRONMENT} and sample.limit == 40
    batch = pack([Rollout(Draw(0, PROMPT, 1), (sample,))])
    assert not set(batch.place.tolist()) & set(ours) and batch.tokens == len(sample.tokens) - len(ours)
    assert batch.length.tolist() == [len(sample.tokens)] and not batch.logp_engine.isnan().any()


@pytest.mark.t(35)
def test_engine_and_learner_agree_on_every_token_of_the_models_and_no_other_has_a_gradient() -> None:
    """A native engine goes on behind words that it did not say; the learner reads the whole conversation at once."""
    model = decoder(spread=0.6)
    reader = tokenizer(0, 1, 2, 3, 4, 5)
    environment = [Dialogue(["12+", "3;", "7"] * 20, opening="1" * i) for i in range(3)]
    made = iter(environment)
    s = sampler(
        lambda: next(made), n=3, engine=engine(model, reader), tokenizer=reader, sampling=sampling(max_tokens=90)
    )
    samples = rollout(s, Turns(most=50)).samples
    assert all(len(x.turns) > 3 for x in samples)
    batch = pack([Rollout(s.draw, samples)])
    logp, entropy = forward(model, batch, temperature=1.0)
    assert float(entropy.mean()) > 0.5
    torch.testing.assert_close(logp.detach(), batch.logp_engine, atol=1e-10, rtol=0)
    spoken = [t for x in samples for a, b in x.turns for t in x.tokens[a:b]]
    assert [
        x.tokens[i] for x, n in zip(batch.samples, batch.sequences.lengths.tolist()) for i in _places(batch, x)
    ] == spoken
    assert sum(x.tokens[b - 1] in reader.eos for x in samples for _, b in x.turns) >= sum(
        len(x.turns) - 1 for x in samples
    )


def _places(batch: Any, sample: Sample) -> list[int]:
    i = batch.samples.index(sample)
    return batch.place[batch.sequences.index == i].tolist()


@pytest.mark.t(33)
def test_what_is_trained_are_the_ids_that_were_sampled() -> None:
    """A tokenizer that would write its own text otherwise: `ab` is one id, and the engine says `a` and `b`."""
    fast = Fast(models.BPE({"<end>": 0, "a": 1, "b": 2, "ab": 3}, [("a", "b")]))
    fast.decoder = decoders.Fuse()
    fast.add_special_tokens([AddedToken("<end>", special=True)])
    reader = Tokenizer.of(fast, [0])
    said = (1, 2, 1, 2, 0)
    assert reader.encode(reader.decode(said)) == (3, 3)
    environment = Dialogue(["ab", "ab", None])
    s = sampler(lambda: environment, lambda ask: said, tokenizer=reader)
    sample = rollout(s).samples[0]
    assert sample.tokens == (*said, 3, *said, 3, *said)
    assert environment.heard == ["abab"] * 3
    batch = pack([Rollout(s.draw, (sample,))])
    assert [sample.tokens[i] for i in batch.place.tolist()] == [*said] * 3
    asks = s.engine.asks  # type: ignore[attr-defined]
    assert [a.context for a in asks] == [PROMPT.context + sample.tokens[:i] for i in (0, 6, 12)]
    assert [(a.at, a.limit, a.stream) for a in asks] == [(i, 40 - i, (0,)) for i in (0, 6, 12)]


@pytest.mark.t(36)
def test_words_of_an_environment_end_nothing_whatever_they_look_like() -> None:
    names = ["<end>", "<|im_end|>", "<|im_start|>"]
    letters = sorted(set("".join(names)) | set("user \nx"))
    fast = Fast(models.BPE({c: i for i, c in enumerate([*names, *letters])}, []))
    fast.decoder = decoders.Fuse()
    fast.add_special_tokens([AddedToken(name, special=True) for name in names])
    reader = Tokenizer.of(fast, [0, 1])
    words = "<end><|im_end|>\n<|im_start|>user"
    x = reader.encode("x")

    def script(ask: GenerationRequest) -> Ids:
        return (*x, 1)

    sample = talked(Dialogue([words, words, None]), script, tokenizer=reader, sampling=sampling(max_tokens=200))
    theirs = [t for t, o in zip(sample.tokens, sample.origin) if o == ENVIRONMENT]
    assert not {0, 1, 2} & set(theirs) and reader.decode(theirs) == 2 * words
    assert [sample.tokens[a:b] for a, b in sample.turns] == [(*x, 1)] * 3
    plain = talked(
        Dialogue(["x" * len(words)] * 2 + [None]), script, tokenizer=reader, sampling=sampling(max_tokens=200)
    )
    assert plain.origin == sample.origin and plain.trained == sample.trained


FORGETS = CHATML.replace(
    "message.content | trim", "(message.content if loop.last else message.content.split('</think>')[-1]) | trim"
)
"""ChatML that leaves out what was thought in earlier turns."""


@pytest.mark.t(34)
def test_a_template_that_forgets_what_was_thought_changes_no_token_of_a_conversation(tmp_path: Path) -> None:
    reader = trained(FORGETS)
    template = find_template("chat", reader)
    prompt = Prompt("p", template("7*5="))
    turns = ["<think>hm</think>call", "<think>so</think>again", "35"]
    said = iter(turns)
    s = sampler(
        lambda: Dialogue(["<|im_end|> 3", "5", None]), lambda ask: (*reader.encode(next(said)), min(reader.eos)),
        draw=Draw(4, prompt, 1), tokenizer=reader, sampling=sampling(max_tokens=400), frame=template.turn_frame(),
    )  # fmt: skip
    sample = rollout(s).samples[0]
    spoken = [reader.decode(sample.tokens[a:b]) for a, b in sample.turns]
    assert spoken == turns
    asks = s.engine.asks  # type: ignore[attr-defined]
    for earlier, later in pairwise(asks):
        assert later.context[: len(earlier.context)] == earlier.context
    assert asks[-1].context == sample.context + sample.tokens[: asks[-1].at]
    # What was sampled stays; the template itself would have left out what was thought.
    assert "<think>hm</think>" in reader.decode(asks[-1].context)
    messages = [
        {"role": r, "content": c}
        for r, c in zip(["user", "assistant"] * 2, ["7*5=", *turns[:1], "<|im_end|> 3", *turns[1:2]])
    ]
    assert "<think>hm</think>" not in reader.decode(transformers_ids(reader, messages, tmp_path))
    kinds = [
        reader.decode([t for t, o in zip(sample.tokens, sample.origin) if o == kind])
        for kind in (ENVIRONMENT, TEMPLATE)
    ]
    assert kinds[0] == "<|im_end|> 35" and kinds[1] == "\n<|im_start|>user\n\n<|im_start|>assistant\n" * 2


@pytest.mark.parametrize("ended", [True, False])
def test_a_chat_goes_on_as_its_template_writes_it(ended: bool, tmp_path: Path) -> None:
    """Token by token what transformers makes of the same messages; also where a stop string ended the turn."""
    reader = trained()
    template = find_template("chat", reader)
    draw = Draw(4, Prompt("p", template("7*5=")), 1)
    end = (min(reader.eos),) if ended else ()
    said = iter([reader.encode("call") + end, reader.encode("35") + end])
    s = sampler(
        lambda: Dialogue(["see: 3", None]), lambda ask: next(said),
        draw=draw, tokenizer=reader, sampling=sampling(max_tokens=400), frame=template.turn_frame(),
    )  # fmt: skip
    sample = rollout(s).samples[0]
    messages = [{"role": r, "content": c} for r, c in (("user", "7*5="), ("assistant", "call"), ("user", "see: 3"))]
    context = s.engine.asks[-1].context  # type: ignore[attr-defined]
    assert list(context) == transformers_ids(reader, messages, tmp_path)
    assert [reader.decode(sample.tokens[a:b]) for a, b in sample.turns] == ["call", "35"]
    assert sample.last_turn.text == "35"


def test_words_that_open_a_chat_stand_behind_the_prompt_as_they_are() -> None:
    reader = trained()
    frame = find_template("chat", reader).turn_frame()
    s = sampler(
        lambda: Dialogue([None], opening="3"), lambda ask: (*reader.encode("x"), min(reader.eos)),
        tokenizer=reader, frame=frame,
    )  # fmt: skip
    assert set(rollout(s).samples[0].origin) == {ENVIRONMENT, 0}


def test_a_call_of_a_tool_and_its_answer_are_one_conversation() -> None:
    reader = bytes_()
    turns = [
        'First <tool_call>{"name": "calculate", "arguments": {"expression": "37*48"}}</tool_call>',
        '<tool_call>{"name": "calculate"}</tool_call>',
        "7",
    ]
    said = iter(turns)
    make = user_environment(calculator_tools)
    s = sampler(make, lambda ask: (*reader.encode(next(said)), 1), tokenizer=reader, sampling=sampling(max_tokens=999))
    sample = rollout(s).samples[0]
    error = "error: calculate: missing a required argument: 'expression'"
    answers = [f"<tool_response>\n{x}\n</tool_response>" for x in ("1776", error)]
    assert sample.text == turns[0] + answers[0] + turns[1] + answers[1] + turns[2]
    assert [reader.decode(sample.tokens[a:b]) for a, b in sample.turns] == turns


# How a conversation ends


def test_the_last_turn_is_what_the_verifier_sees() -> None:
    seen: list[Sample] = []

    async def verifier(prompt: Prompt, sample: Sample) -> Verdict:
        seen.append(sample)
        return Verdict(Outcome.correct if sample.text == prompt.given["answer"] else Outcome.wrong)

    good = talked(Dialogue(["8", None]), says("1", "7"), verifier=verifier)
    bad = talked(Dialogue(["7", None]), says("1", "8"), verifier=verifier)
    assert [s.verdict.outcome.name for s in (good, bad) if s.verdict] == ["correct", "wrong"]
    assert [s.text for s in seen] == ["7", "8"]
    assert seen[0].context + seen[0].tokens == good.context + good.tokens and seen[0].ends == (1, 1)
    assert good.context == PROMPT.context  # what is recorded is the whole


def test_an_environment_may_give_the_verdict_and_the_verifier_is_not_asked() -> None:
    def verifier(prompt: Prompt, sample: Sample) -> Verdict:
        raise AssertionError("asked")

    won = Verdict(Outcome.correct, 0.5, feedback="in two turns")
    sample = talked(Dialogue(["1", won]), says("2", "3"), verifier=verifier)
    assert sample.verdict == won and sample.text == "213"


def test_what_an_environment_counts_is_added_up_over_the_conversation() -> None:
    environment = Dialogue(
        [CountedText("1", calls=2), "2", CountedText("3", calls=1, malformed=1), None],
        opening=CountedText("0", calls=0.5),
    )
    sample = talked(environment, says(*"4567"))
    assert sample.counts == {"calls": 3.5, "malformed": 1, "failed": 0} and sample.text == "04152637"
    unheard = talked(Dialogue([CountedText("222", calls=1)] * 9), says(*["1="] * 9), sampling=sampling(max_tokens=12))
    assert unheard.counts == {"calls": 2, "failed": 0}  # the second left no room, and was given
    plain = asyncio.run(sampler(None, says("1")).sample(PROMPT.context))
    assert plain[0].counts == {}


def test_a_conversation_that_its_environment_broke_off_is_counted() -> None:
    lost = Verdict(Outcome.unverifiable, cause="Mine.step: no answer within 10 s")
    broken = talked(Dialogue([CountedText("1", calls=1), lost]), says("2", "3"))
    assert broken.counts == {"calls": 1, "failed": 1} and broken.verdict == lost
    judged = talked(Dialogue(["1", Verdict(Outcome.wrong)]), says("2", "3"))
    unjudged = talked(Dialogue([None]), says("2"), verifier=Dialogue([]).step)  # fails, but is no environment
    assert judged.counts == unjudged.counts == {"failed": 0}
    assert unjudged.verdict is not None and unjudged.verdict.outcome is Outcome.unverifiable


def test_an_environment_may_speak_first_and_all_of_a_draw_meet_the_same_numbers() -> None:
    environment = [Dialogue([None], opening="9="), Dialogue([None], opening="8=")]
    made = iter(environment)
    s = sampler(lambda: next(made), says("9"), n=2)
    samples = rollout(s).samples
    assert [x.text for x in samples] == ["9=9", "8=9"] and samples[0].origin[:2] == (ENVIRONMENT,) * 2
    assert worlds[0].begun == worlds[1].begun and len(set(worlds[0].begun)) == 1


@pytest.mark.parametrize("most", [1, 2, 3])
def test_one_that_never_ends_is_cut_after_so_many_turns(most: int) -> None:
    environment = Dialogue(["1"] * 9)
    sample = talked(environment, says(*["2"] * 9), Turns(most=most), sampling=sampling(max_tokens=99))
    assert len(sample.turns) == most and sample.finish is Finish.length
    assert sample.origin[-1] >= 0 and sample.verdict is not None  # its last turn was judged
    over = talked(Dialogue(["1"] * (most - 1) + [None]), says(*["2"] * 9), Turns(most=most))
    assert len(over.turns) == most and over.finish is Finish.stop


def test_one_budget_holds_the_whole_conversation() -> None:
    """`1=` and the end token take three, the environment's words three: 3, 6, 9, and two more."""
    script = says(*["1="] * 9)
    cut = talked(Dialogue(["222"] * 9), script, sampling=sampling(max_tokens=14))
    assert (len(cut.tokens), cut.finish, len(cut.turns)) == (14, Finish.length, 3)
    none_left = talked(Dialogue(["222"] * 9), script, sampling=sampling(max_tokens=12))
    assert (len(none_left.tokens), none_left.finish) == (9, Finish.length)  # words that leave no room are not heard
    assert none_left.origin[-1] >= 0 and none_left.verdict is not None
    opening = talked(Dialogue([None], opening="1" * 12), script, sampling=sampling(max_tokens=12))
    assert (opening.tokens, opening.finish) == ((), Finish.length)


def test_an_answer_that_is_cut_is_no_question() -> None:
    environment = Dialogue([])
    sample = talked(environment, says("1" * 50), sampling=sampling(max_tokens=12))
    assert sample.finish is Finish.length and environment.heard == []


def test_words_without_tokens_make_the_answer_unverifiable() -> None:
    strict = Tokenizer.of(Fast(models.WordLevel({"<end>": 0, "1": 1}, unk_token="")), [0])
    sample = talked(Dialogue(["é", None]), lambda ask: (1, 0), tokenizer=strict)
    assert sample.verdict is not None and sample.verdict.outcome is Outcome.unverifiable
    assert sample.verdict.cause == "the environment spoke: the model's tokenizer has no token for the character 'é'"


def test_nothing_to_say_is_not_the_end() -> None:
    sample = talked(Dialogue(["", "", None]), says("1", "2", "3"))
    assert spoken(sample) == ["123"] and sample.text == "123" and len(sample.tokens) == 6


def test_a_recipe_without_an_environment() -> None:
    with pytest.raises(Usage, match="names none"):
        rollout(sampler(None, says("1")))


def test_at_least_one_turn() -> None:
    with pytest.raises(ValueError, match="most is 0"):
        Turns(most=0)


# After a kill


class Killed(Exception):
    """What a kill looks like from within."""


def deaf(after: int, replies: list[Any], **how: Any) -> Dialogue:
    """An environment that takes the process with it when it is asked once more."""
    environment = Dialogue(replies, **how)
    step = environment.step

    async def last(said: str) -> Observation:
        if len(environment.heard) >= after:
            raise Killed
        return await step(said)

    environment.step = last  # type: ignore[method-assign]
    return world


SCRIPT = says("1", "2", "3", "4", "5")


@pytest.mark.t(49)
@pytest.mark.parametrize("after", range(5))
def test_a_conversation_killed_at_any_answer_goes_on_as_if_never_killed(after: int) -> None:
    replies = ["6;", "7;", "8;", "9;", None]
    whole = talked(Dialogue(replies), SCRIPT)
    journal = Kept()
    with pytest.raises(Killed):
        talked(deaf(after, replies), SCRIPT, journal=journal)
    assert len(journal.lines) == 1 + after
    again = Dialogue(replies)
    assert talked(again, SCRIPT, journal=journal) == whole
    assert again.heard == ["1", "2", "3", "4", "5"]  # it heard again what brings it to where it stood
    silent = Dialogue([])
    assert talked(silent, SCRIPT, journal=journal) == whole and silent.begun == []  # all of it is known now


def test_an_environment_that_remembers_by_itself_is_not_asked_twice() -> None:
    @dataclass
    class Live(Dialogue):
        recalled: list[tuple[str, Observation]] = field(default_factory=list)

        async def recall(self, said: str, reply: Observation) -> Observation:
            self.recalled.append((said, reply))
            return reply

    journal = Kept()
    with pytest.raises(Killed):
        talked(deaf(2, ["6;", "7;"]), SCRIPT, journal=journal)
    live = Live(["9;", None])
    sample = talked(live, SCRIPT, journal=journal)
    assert sample.text == "16;27;39;4"
    assert (live.heard, live.recalled) == (["3", "4"], [("1", "6;"), ("2", "7;")])


def test_an_environment_that_says_something_else_after_a_kill_begins_again() -> None:
    journal = Kept()
    with pytest.raises(Killed):
        talked(deaf(3, ["6;", "7;", "8;"]), SCRIPT, journal=journal)
    made: list[Dialogue] = []

    def environment() -> Dialogue:
        made.append(Dialogue(["6;", "0;", "0;", None]))
        return made[-1]

    s = sampler(environment, SCRIPT, journal=journal)
    sample = rollout(s).samples[0]
    assert sample.text == "16;20;30;4"  # one conversation with one environment, not the old words with a new one
    assert [w.heard for w in made] == [["1", "2"], ["1", "2", "3", "4"]]
    assert made[0].begun == made[1].begun  # and it begins with the same numbers
    assert talked(Dialogue([]), SCRIPT, journal=journal) == sample


def test_one_that_drifts_for_ever_is_not_tried_for_ever() -> None:
    class Drifting(Dialogue):
        async def recall(self, said: str, reply: Observation) -> Observation:
            return None

    journal = Kept()
    with pytest.raises(Killed):
        talked(deaf(1, ["6;"]), SCRIPT, journal=journal)
    with pytest.raises(Killed):
        talked(deaf(0, [], opening="5"), SCRIPT, journal=journal)
    assert ReplayMismatch.__doc__ and talked(Drifting(["4;", None]), SCRIPT, journal=journal).text == "14;2"


def test_equal_questions_of_other_conversations_are_other_questions() -> None:
    """Siblings that say the same, another draw, another law: each has its own answers in the journal."""
    journal = Kept()
    answers = iter(["6;", "7;", "8;", "9;"])

    class Once(Dialogue):
        async def step(self, said: str) -> Observation:
            return next(answers) if said == "1" else None

    def told(**changes: Any) -> list[str]:
        return [x.text for x in rollout(sampler(lambda: Once([]), says("1", "2"), journal=journal, **changes)).samples]

    first = [told(n=2), told(draw=Draw(5, PROMPT, 1)), told(sampling=sampling(max_tokens=40, temperature=0.0))]
    assert first == [["16;2", "17;2"], ["18;2"], ["19;2"]]
    again = [told(n=2), told(draw=Draw(5, PROMPT, 1)), told(sampling=sampling(max_tokens=40, temperature=0.0))]
    assert again == first


def test_a_native_engine_goes_on_with_numbers_of_its_own() -> None:
    """Two conversations that begin alike and hear alike diverge; and the same again is the same."""
    e: NativeEngine = engine(decoder())
    reader = endless()

    class Every(Dialogue):
        async def step(self, said: str) -> Observation:
            return "1" if len(self.heard) < 3 and not self.heard.append(said) else None

    def told(one: NativeEngine) -> tuple[Sample, ...]:
        stop = sampling(max_tokens=60, stop=tuple("0123456789"))
        return rollout(sampler(lambda: Every([]), n=4, engine=one, tokenizer=reader, sampling=stop)).samples

    samples = told(e)
    assert len({x.tokens for x in samples}) == 4 and all(len(x.turns) > 1 for x in samples)
    assert told(engine(decoder())) == samples
