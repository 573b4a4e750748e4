"""One run of an agent: its chat requests, answered by the policy, as a tree of calls that becomes samples."""

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from groupwise.core import BadData
from groupwise.data import (
    ENVIRONMENT,
    REQUESTS,
    THREAD,
    AgentMessage,
    AgentRequest,
    Draw,
    Finish,
    Ids,
    Sample,
    Sampler,
    Sampling,
)
from groupwise.data.rollout_json import to_json
from groupwise.environments import CallFormat, MalformedCall
from groupwise.environments import ToolCall as ToolCall
from groupwise.models import PromptTemplate, Tokenizer, without_second_end
from groupwise.rollout.agents.chat_request import ChatRequest, RequestError, meaning
from groupwise.rollout.gather_coroutines import together

__all__ = ["AnsweredCall", "CallPlan", "Episode"]

UNORDERED = (
    "note: an agent made two equal requests at the same time; their answers depend on which is first, so the run "
    "cannot be repeated to the bit: await the first answer, or ask for several with n"
)
MOST_CALLS = 1024
"""The most requests of an episode: an agent in a loop ends there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallPlan:
    """What is generated for a request: the ids before the answer, its limit and sampling, and its random stream.

    `parent` is the number of the earlier call that it continues, with the new ids `inserted_ids`; a call without a
    parent has the prompt `context`. `sampling` replaces the policy's, and an answer of another distribution is not
    `trained`. The answer to a chat (`is_chat`) may have tool calls. `new_request_messages` are the request's new ones,
    for people to read.
    """

    random_stream: Ids = ()
    context: Ids = ()
    parent: int | None = None
    inserted_ids: Ids = ()
    limit: int | None = None
    sampling: Sampling | None = None
    trained: bool = True
    is_chat: bool = True
    new_request_messages: tuple[AgentMessage, ...] = field(default=(), compare=False)


@dataclass(slots=True, eq=False)
class AnsweredCall:
    """A call with its answer. `conversation_sample` ends with the answer, whose tokens begin at `answer_start`.

    `history` is the meaning of the conversation's messages, with the answer's, and `tools` that of its tools. A
    `out_of_room` conversation has no room for the request's messages: its answer is empty, and so are all that continue
    it.
    """

    plan: CallPlan
    conversation_sample: Sample
    answer_start: int
    text: str = ""
    calls: Sequence[ToolCall] = ()
    malformed: bool = False
    out_of_room: bool = False
    history: tuple[Any, ...] = ()
    tools: str = ""

    @property
    def tokens(self) -> Ids:
        """The tokens of the answer."""
        return self.conversation_sample.tokens[self.answer_start :]

    @property
    def message(self) -> dict[str, Any]:
        """The answer as a message of an assistant, in OpenAI's form. The ids of its calls depend on its content."""
        message: dict[str, Any] = {"role": "assistant", "content": self.text or None if self.calls else self.text}
        if self.calls:
            key = hashlib.sha256(
                repr(
                    (self.plan.random_stream, self.conversation_sample.context, self.conversation_sample.tokens)
                ).encode()
            ).hexdigest()
            functions = [{"name": c.name, "arguments": json.dumps(dict(c.arguments))} for c in self.calls]
            message["tool_calls"] = [
                {"id": f"{key[:8]}{i}", "type": "function", "function": function}
                for i, function in enumerate(functions)
            ]
        return message

    @property
    def meaning(self) -> tuple[Any, ...]:
        """The meaning of the answer (`chat_request.meaning`)."""
        functions = [{"function": {"name": c.name, "arguments": dict(c.arguments)}} for c in self.calls]
        return meaning({"role": "assistant", "content": self.text, "tool_calls": functions})


@dataclass(slots=True, eq=False)
class Episode:
    """Answers the requests of one run of an agent, and keeps the tokens of its calls.

    A request whose messages begin with an earlier conversation, compared by meaning, continues its tokens: only the new
    messages are tokenised. Any other request opens a conversation. The random numbers of a call are keyed by the draw,
    the episode's number, the tokens and settings of the request, and the count of equal requests. The first request
    that is the row's own prompt has the numbers of an ordinary answer. Answers are returned in the order of their
    requests once no request of the episode waits, so an agent in this process runs the same with any speed of engines.
    """

    sampler: Sampler
    draw: Draw
    episode_index: int
    template: PromptTemplate
    tool_call_format: CallFormat
    training_temperature: float
    """The policy's temperature in training: a request with another one gets an untrained answer."""
    warning_callback: Callable[[str], object] = lambda line: None
    """Gets a line for a request whose answer cannot be repeated to the bit, or is not trained."""
    answered_calls: dict[int, AnsweredCall] = field(default_factory=dict)
    """The calls by number, in the order of their requests."""
    request_count: int = 0
    latest_request_error: RequestError | None = None
    """The error that is the reply to the latest request; None if that has an answer."""
    _counts: Counter[bytes] = field(default_factory=Counter)
    _open: Counter[bytes] = field(default_factory=Counter)
    _running: int = 0
    _waiting: list[tuple[int, asyncio.Future[None]]] = field(default_factory=list)

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the policy."""
        return self.template.tokenizer

    async def answer(self, request: ChatRequest) -> list[AnsweredCall]:
        """The `n` answers to a request. RequestError if it has none."""
        first, self.request_count = self.request_count, self.request_count + request.n
        if self.request_count > MOST_CALLS:
            raise RequestError(f"an episode has at most {MOST_CALLS} calls", status=429, code="rate_limit_exceeded")
        plan = self._planned(request)
        content = self._content(plan)
        if self._open[content]:
            self.warning_callback(UNORDERED)
        plans = [replace(plan, random_stream=self._stream(content, plan)) for _ in range(request.n)]
        self._open[content] += 1
        self._running += 1
        try:
            answers = await together(self.generate(first + i, each, request.stop) for i, each in enumerate(plans))
        finally:
            self._open[content] -= 1
            self._running -= 1
            self._release()
        for one in answers if plan.is_chat else ():
            one.history, one.tools = (*request.meanings, one.meaning), _canonical(request.tools)
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((first, turn))
        self._release()
        await turn
        return answers

    async def generate(self, number: int, plan: CallPlan, stop: Sequence[str] | None = None) -> AnsweredCall:
        """Generate the answer of the call with this number, and keep it. Its text ends before the request's `stop`."""
        parent = None if plan.parent is None else self.answered_calls[plan.parent]
        base = self._base(plan)
        if parent is not None and (parent.out_of_room or len(base.tokens) >= base.limit):
            full = parent.conversation_sample.with_finish(Finish.length)
            answer = AnsweredCall(plan, full, len(full.tokens), out_of_room=True)
        else:
            sample = replace(base, stream=plan.random_stream)
            sample = await self.sampler.extend(sample, limit=plan.limit, sampling=plan.sampling)
            answer = AnsweredCall(
                plan, sample if plan.trained else _untrained(sample, len(base.tokens)), len(base.tokens)
            )
            answer.text = _before(self.tokenizer.decode(answer.tokens), stop or ())
        if plan.is_chat:
            try:
                answer.text, answer.calls = self.tool_call_format.parse(answer.text)
            except MalformedCall:
                answer.malformed = True
        self.answered_calls[number] = answer
        return answer

    def _planned(self, request: ChatRequest) -> CallPlan:
        """The plan of a request, without its stream."""
        policy, wanted = self.sampler.sampling, request.temperature
        trained = wanted is None or wanted == self.training_temperature
        if not trained:
            self.warning_callback(
                f"note: an agent sends a temperature other than {self.training_temperature:g}, that of training; such "
                "answers are not trained: leave temperature out of its requests"
            )
        try:
            sampling = policy if trained or wanted is None else replace(policy, temperature=wanted)
            sampling = sampling if request.stop is None else replace(sampling, stop=request.stop)
            settings: dict[str, Any] = {
                "limit": request.limit,
                "trained": trained,
                "is_chat": request.completions_prompt is None,
            }
            settings["sampling"] = None if sampling == policy else sampling
            if (number := self._parent(request)) is None:
                return CallPlan(context=self._opening(request), new_request_messages=request.new_messages(), **settings)
            parent = self.answered_calls[number]
            settings["new_request_messages"] = request.new_messages(len(parent.history))
            return CallPlan(parent=number, inserted_ids=self._inserted(parent, request), **settings)
        except BadData as error:
            raise RequestError(error.what, fix=error.fix) from error
        except ValueError as error:
            raise RequestError(str(error)) from error

    def _opening(self, request: ChatRequest) -> Ids:
        """The ids of the prompt of a new conversation."""
        if request.completions_prompt is not None:
            return self.tokenizer.encode(request.completions_prompt, bos=True)
        if request.tools and self.template.name != "chat":
            what = "a plain template has no place for tools"
            raise RequestError(what, fix="use --template chat", param="tools")
        if request.tools and "tools" not in self.template.template_source:
            fix = "describe the tools in a message, or take a model whose template does"
            raise RequestError("the model's chat template does not use tools", fix=fix, param="tools")
        return self.template(list(request.messages), list(request.tools) if request.tools else None)

    def _parent(self, request: ChatRequest) -> int | None:
        """The number of the call whose conversation, with its answer, is the longest beginning of the request.

        Only messages of users, tools and the system may follow: any other history is opened as a new conversation.
        """
        meanings, tools = request.meanings, _canonical(request.tools)
        fitting = [
            number
            for number, one in self.answered_calls.items()
            if one.history
            and one.tools == tools
            and len(one.history) < len(meanings)
            and meanings[: len(one.history)] == one.history
            and all(role != "assistant" for role, *_ in meanings[len(one.history) :])
        ]
        longest = max((len(self.answered_calls[number].history) for number in fitting), default=0)
        fitting = [number for number in fitting if len(self.answered_calls[number].history) == longest]
        return min(fitting, key=lambda number: self.answered_calls[number].plan.random_stream, default=None)

    def _inserted(self, parent: AnsweredCall, request: ChatRequest) -> Ids:
        """The ids between a call's answer and the next one, in the template's frame."""
        ids = self.template.later_messages(request.messages[len(parent.history) :])
        return without_second_end(self.tokenizer, parent.conversation_sample.tokens, ids)

    def _base(self, plan: CallPlan) -> Sample:
        """The sample before the answer of a plan. Its tokens end with the new messages."""
        if plan.parent is None:
            (start,) = self.sampler.start(plan.context)
            return start
        parent = self.answered_calls[plan.parent].conversation_sample
        return parent.insert(plan.inserted_ids, ENVIRONMENT).with_finish(None)

    def _content(self, plan: CallPlan) -> bytes:
        """A digest of the tokens before an answer and of its settings."""
        base = self._base(plan)
        return _digest(
            base.context + base.tokens, [plan.limit, None if plan.sampling is None else to_json(plan.sampling)]
        )

    def _stream(self, content: bytes, plan: CallPlan) -> Ids:
        """The key of a call's random numbers within its draw."""
        count = self._counts[content]
        self._counts[content] += 1
        if not count and plan == CallPlan(context=self.draw.prompt.token_ids):
            return (self.episode_index,)
        return self.episode_index, int.from_bytes(content[:8], "little") >> 1, count  # below 2**63, as on the wire

    def _release(self) -> None:
        """Return the answers that wait, in the order of their requests, if no request of the episode runs."""
        if self._running:
            return
        waiting, self._waiting = sorted(self._waiting, key=lambda pair: pair[0]), []
        for _, turn in waiting:
            if not turn.done():
                turn.set_result(None)

    # The samples

    def samples(self) -> tuple[Sample, ...]:
        """The samples of the episode: the one with the last answer first, the others in the order of their streams.

        Where two calls continue the same answer, the first by its stream continues the sample; the other begins one,
        after the common tokens. So each token is in one sample, and no order of arrival matters.
        """
        children: dict[int | None, list[int]] = {}
        for number, one in sorted(self.answered_calls.items(), key=lambda pair: pair[1].plan.random_stream):
            children.setdefault(one.plan.parent, []).append(number)
        paths = sorted(_paths(children), key=lambda path: self.answered_calls[path[0]].plan.random_stream)
        paths.sort(key=lambda path: max(self.answered_calls) not in path)
        return tuple(self._sample(path, "answer" if i == 0 else THREAD) for i, path in enumerate(paths))

    @property
    def last(self) -> Sample:
        """The last answer as a sample, for the verifier."""
        last = self.answered_calls[max(self.answered_calls)]
        return last.conversation_sample.after(last.answer_start)

    def _sample(self, path: Sequence[int], role: str) -> Sample:
        """The sample of calls that continue each other."""
        calls = [self.answered_calls[number] for number in path]
        at, sample = calls[0].answer_start, calls[-1].conversation_sample
        counts = {
            REQUESTS: len(calls),
            "calls": sum(len(one.calls) for one in calls),
            "malformed": sum(one.malformed for one in calls),
        }
        finish = Finish.length if sample.finish is None else sample.finish
        stream, limit = calls[0].plan.random_stream, sample.limit - at
        requests = tuple(_request(number, one, at) for number, one in zip(path, calls, strict=True))
        cut = sample.after(at) if at else sample
        cut = replace(cut, stream=stream, role=role, finish=finish, limit=limit, requests=requests)
        return cut.add_counts(counts)


def _request(number: int, call: AnsweredCall, at: int) -> AgentRequest:
    """A call as a request of the sample that begins at the token `at` of its conversation."""
    sample, calls = call.conversation_sample, call.meaning[2]
    before, end = len(sample.context) + call.answer_start, len(sample.tokens)
    return AgentRequest(
        number, call.plan.new_request_messages, call.answer_start - at, end - at, before, calls, call.plan.parent
    )


def _paths(children: Mapping[int | None, Sequence[int]]) -> Iterator[list[int]]:
    """The calls of each sample by number, in order. `children` are the calls that continue a call."""
    opened = list(children.get(None, ()))
    while opened:
        path = [opened.pop()]
        while below := children.get(path[-1], ()):
            opened += below[1:]
            path.append(below[0])
        yield path


def _before(text: str, stop: Sequence[str]) -> str:
    """The text before the first stop string in it."""
    return text[: min((at for s in stop if (at := text.find(s)) >= 0), default=len(text))]


def _untrained(sample: Sample, start: int) -> Sample:
    """A copy whose tokens from `start` on are not trained."""
    n = len(sample.tokens) - start
    return replace(
        sample, origin=(*sample.origin[:start], *(ENVIRONMENT,) * n), logp=(*sample.logp[:start], *(float("nan"),) * n)
    )


def _canonical(tools: Sequence[Mapping[str, Any]]) -> str:
    return json.dumps(list(tools), sort_keys=True)


def _digest(ids: Ids, settings: Any) -> bytes:
    return hashlib.sha256(json.dumps([ids, settings]).encode()).digest()
