"""The `Sampler` for one prompt: a strategy's access to engine, verifier, environment and random numbers."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, TypeVar

from groupwise.core import Usage, describe_error
from groupwise.core.errors import ends_run
from groupwise.data import (
    ENVIRONMENT,
    TEMPLATE,
    WRITTEN,
    Draw,
    Finish,
    GenerationRequest,
    Ids,
    Observation,
    Outcome,
    ReplyWithCounts,
    Sample,
    Sampling,
    Verdict,
)
from groupwise.data.verdicts import invalidity, unverifiable, with_threshold
from groupwise.models import PromptTemplate, RandomPurpose, conversation_turn, encode_answer, keyed_random, turn_end
from groupwise.rollout.agents.request_log import RequestLog
from groupwise.rollout.agents.runner import record_of
from groupwise.rollout.conversation import ReplayableEnvironment, ReplyMismatch
from groupwise.rollout.gather_coroutines import together
from groupwise.rollout.rollout_setting import RolloutSetting
from groupwise.rollout.sampling_round import SamplingRound

__all__ = ["SinglePromptSampler"]

T = TypeVar("T")


@dataclass(slots=True, kw_only=True, eq=False)
class SinglePromptSampler:
    """Access to the engine, the verifier, the environment and random numbers, for one draw (the samples of one prompt).

    `rollout_setting.sampling.max_tokens` is the budget of a whole sample, including all extensions and inserted tokens.
    """

    draw: Draw
    rollout_setting: RolloutSetting
    random_purpose: int = RandomPurpose.SAMPLE
    shared_round: SamplingRound | None = None
    """The draws that are sampled at the same time; None for a draw alone."""
    started_sample_count: int = 0
    pending_calls_by_callee: Counter[str] = field(default_factory=Counter)
    """The number of pending calls of this draw, by callee (engine, verifier, environment)."""
    conversations: dict[Ids, ReplayableEnvironment] = field(default_factory=dict)
    """Conversations with environments, by the random stream of their sample."""
    answer_prefix_ids: Ids = ()
    """The untrained tokens with which each answer begins."""

    @property
    def sampling(self) -> Sampling:
        """The recipe's sampling settings, which `extend` and `sample` use."""
        return self.rollout_setting.sampling

    def prompt(self, text: str) -> Ids:
        """The token ids of a prompt that the strategy writes, in the recipe's template, after the draw's pictures."""
        if self.rollout_setting.encode_prompt is None:
            return self.rollout_setting.tokenizer.encode(text)
        if pictures := self.draw.prompt.pictures:
            return self.rollout_setting.encode_prompt(text, pictures=pictures)
        return self.rollout_setting.encode_prompt(text)

    def ids(self, text: str, *, control: bool = False) -> Ids:
        """The token ids of a text without a template.

        With `control`, a control token such as `</think>` in it is that token, as in a template: only for text of the
        recipe, never for text of a row, an environment or a model.
        """
        tokenizer = self.rollout_setting.tokenizer
        return tokenizer.encode_template(text) if control else tokenizer.encode(text)

    def room(self, context: Ids) -> int:
        """The longest possible answer to this prompt, in tokens; 0 if the prompt fills the model's positions."""
        budget = self.rollout_setting.sampling.max_tokens
        return (
            budget
            if self.rollout_setting.max_positions is None
            else max(min(budget, self.rollout_setting.max_positions - len(context)), 0)
        )

    def start(self, context: Ids, n: int = 1, *, group: int = 0, role: str = "answer") -> list[Sample]:
        """Create `n` empty samples of a prompt, each with its own random numbers. `extend` generates their tokens."""
        first, self.started_sample_count = self.started_sample_count, self.started_sample_count + n
        shared = Sample(
            context=context, content_hash=self.draw.prompt.content_hash, stream=(), limit=self.room(context),
            group=group, role=role,
        )  # fmt: skip
        begun = shared.insert(self.answer_prefix_ids, TEMPLATE) if role == "answer" else shared
        return [replace(begun, stream=(i,)) for i in range(first, first + n)]

    def with_prefix(self, prefix: Ids) -> "SinglePromptSampler":
        """A copy of the sampler, to use in its place: answers (the role `answer`) begin with these untrained tokens."""
        return replace(self, answer_prefix_ids=prefix)

    async def extend(
        self,
        sample: Sample,
        *,
        limit: int | None = None,
        sampling: Sampling | None = None,
        top: int = 0,
        stride: int = 1,
    ) -> Sample:
        """Generate until the sample ends, or for `limit` tokens; in that case it stays open (`finish` is None).

        A finished sample is returned unchanged, unless an observation was appended after its end. A sample that ends in
        a written end token is finished. `sampling` replaces the recipe's, except its `max_tokens`. The log-probs are
        then under another distribution than the learner's, so such a sample must not be trained. `top` is the number of
        likeliest tokens to record at each new token (`Sample.top_logprobs`), and `stride` the stride of the denoising
        steps that a token spans, at temperature 0.
        """
        if sample.finish is not None and (not sample.origin or sample.trained[-1]):
            return sample
        ended = sample.origin[-1:] == (WRITTEN,) and sample.tokens[-1] in self.rollout_setting.tokenizer.eos_ids
        budget = sample.limit - len(sample.tokens)
        left, finish = budget if limit is None else min(limit, budget), Finish.stop if ended else None
        while left > 0 and not ended:
            request = GenerationRequest(
                context=sample.context + sample.tokens,
                limit=left,
                draw_id=self.draw.id,
                stream=sample.stream,
                already_generated_count=len(sample.tokens),
                sampling=sampling or self.rollout_setting.sampling,
                random_purpose=self.random_purpose,
                content_hash=sample.content_hash,
                pictures=self.draw.prompt.pictures,
                previous_actions=sample.actions,
                num_top_logprobs=top,
                steps_per_token=stride,
                denoising_steps=self.rollout_setting.denoising_steps,
            )
            with self._awaiting("the engine"):
                new = await self.rollout_setting.engine.sample(request)
            sample = sample.with_tokens(new.tokens, new.versions, new.logp, new.routes, new.actions, new.top_logprobs)
            left, finish = left - len(new.tokens), new.finish
            if finish is not Finish.cut:
                break
        if finish is not Finish.stop:
            finish = Finish.length if len(sample.tokens) >= sample.limit else None
        text, ends = self.rollout_setting.tokenizer.decode_with_ends(sample.tokens)
        return replace(sample, finish=finish, text=text, token_ends=ends)

    def write(self, sample: Sample, text: str, *, closes: bool = False) -> Sample:
        """Append a text and the end token as a training target (origin WRITTEN). The sample is finished.

        With `closes`, the text ends as the chat template ends a conversation, in tokens that are not trained.
        """
        template = self.rollout_setting.encode_prompt
        if closes and isinstance(template, PromptTemplate) and template.name == "chat":
            written = sample.insert(self.rollout_setting.tokenizer.encode(text), WRITTEN).insert(
                turn_end(template), TEMPLATE
            )
        else:
            written = sample.insert(encode_answer(self.rollout_setting.tokenizer, text), WRITTEN)
        written = written.with_finish(Finish.stop)
        return written.with_text(*self.rollout_setting.tokenizer.decode_with_ends(written.tokens))

    async def sample(self, context: Ids, n: int = 1, *, group: int = 0, role: str = "answer") -> list[Sample]:
        """Generate `n` complete answers to one context."""
        return await together(self.extend(s) for s in self.start(context, n, group=group, role=role))

    async def verify(self, samples: Sequence[Sample]) -> list[Sample]:
        """Grade the samples: returns them in the given order, each with its verdict.

        A verifier of groups gets the samples of each group in one call. If the verifier raises an exception, the sample
        is unverifiable. Only an error that ends the run is raised (`ends_run`): it is not the fault of one answer.
        """
        verifier = self.rollout_setting.verifier
        if not verifier.by_group(self.draw.prompt):
            return [judged for (judged,) in await together(self._judged([sample]) for sample in samples)]
        group_ids = list(dict.fromkeys(sample.group for sample in samples))
        groups = [[i for i, sample in enumerate(samples) if sample.group == group] for group in group_ids]
        judged = await together(self._judged([samples[i] for i in group]) for group in groups)
        by_index = {
            i: sample
            for group, members in zip(groups, judged, strict=True)
            for i, sample in zip(group, members, strict=True)
        }
        return [by_index[i] for i in range(len(samples))]

    async def reply(self, sample: Sample) -> Observation:
        """The environment's observation after the sample's last turn; for an empty sample, the opening observation.

        `ReplyMismatch` if the environment cannot be restored after a kill. The next call has a new environment, so the
        conversation must start over from the empty sample. Usage if the recipe has no environment.
        """
        if self.rollout_setting.create_environment is None:
            fix = "add --environment calculator_tools, or my_file:MyEnvironment with --use my_file.py"
            raise Usage("the strategy needs an environment, and the recipe has none", fix=fix)
        conversation = self.conversations.get(sample.stream)
        if conversation is None:
            conversation = ReplayableEnvironment(
                self.rollout_setting.create_environment(),
                self.rollout_setting.environment_reply_log,
                self._log_key,
                self.draw.prompt,
                self.random,
            )
            self.conversations[sample.stream] = conversation
        with self._awaiting("the environment"):
            try:
                reply = await conversation.reply(sample)
                if not isinstance(reply, Verdict):
                    return reply
                return with_threshold(
                    _validated(reply, sample.last_turn.text, "environment"), self.rollout_setting.correct_threshold
                )
            except ReplyMismatch:
                restarted = replace(
                    conversation,
                    environment=self.rollout_setting.create_environment(),
                    replays_from_log=False,
                    replayed_messages=[],
                )
                self.conversations[sample.stream] = restarted
                raise

    async def episode(self, number: int) -> tuple[Sample, ...]:
        """Run the recipe's agent once: the sample of its last answer, and one for each further conversation.

        All have the verdict on the run: the agent's reward, else the verifier's verdict on the last answer. An episode
        in the replay log is not run again. Usage if the recipe has no agent.
        """
        if (runner := self.rollout_setting.agent_runner) is None:
            raise Usage("the strategy needs an agent, and the recipe has none", fix="add --agent my_file.py:agent")
        log, key = self.rollout_setting.environment_reply_log, f"episode {number} of {self._log_key}"
        with self._awaiting("the agent"):
            ended = await runner.replayed(str(log[key]), self, self.draw, number) if log and key in log else None
            use = "draw" if self.random_purpose == RandomPurpose.SAMPLE else "evaluation"
            name = f"{use}-{self.draw.id}-{number}"
            requests = None if ended else RequestLog(log, key)
            episode, verdict = ended or await runner.run(self, self.draw, number, name=name, requests=requests)
        if log is not None and ended is None:
            log.write(key, record_of(episode, verdict))
        if not episode.answered_calls:
            (start,) = self.start(self.draw.prompt.token_ids)
            verdict = verdict if verdict and verdict.cause else unverifiable("the agent made no request")
            return (replace(start, stream=(number,), finish=Finish.length).with_verdict(verdict),)
        if verdict is None:
            (judged,) = await self.verify([episode.last])
            verdict = judged.verdict
        assert verdict is not None, "verify returns a verdict"
        verdict = with_threshold(
            _validated(verdict, episode.last.text, "agent"), self.rollout_setting.correct_threshold
        )
        answer, *threads = episode.samples()
        start = len(answer.tokens) - len(episode.last.tokens)
        failed = {"failed": int(verdict.outcome is Outcome.unverifiable)}
        plain = replace(verdict, step_scores={})
        return answer.with_verdict(verdict, start=start).add_counts(failed), *(t.with_verdict(plain) for t in threads)

    def append(self, sample: Sample, text: str) -> Sample:
        """Append an environment's reply, enclosed in the tokens of the chat template (`frame`), and reopen the sample.

        The counts of a `ReplyWithCounts` are added to the sample's. BadData for text that cannot be tokenized.
        """
        before, ids, after = conversation_turn(
            self.rollout_setting.tokenizer, self.rollout_setting.observation_frame_ids, sample.tokens, text
        )
        if isinstance(text, ReplyWithCounts):
            sample = sample.add_counts(text.counts)
        return sample.insert(before, TEMPLATE).insert(ids, ENVIRONMENT).insert(after, TEMPLATE).with_finish(None)

    async def score(self, context: Ids, sample: Sample, *, temperature: float = 1.0) -> tuple[float, ...]:
        """The log-prob of each of the sample's tokens as an answer to `context`, at this temperature.

        The context has the pictures of the draw's prompt.
        """
        pictures = self.draw.prompt.pictures
        with self._awaiting("the engine"):
            return await self.rollout_setting.engine.score(
                context, sample.tokens, temperature=temperature, pictures=pictures
            )

    async def share(self, value: T) -> dict[int, T]:
        """Pass a value to the strategies of all draws of the sampling round; returns the values by draw, in order.

        Waits until every other draw has shared a value, or its strategy has ended. The order of calls does not matter.
        """
        if self.shared_round is None:
            return {self.draw.id: value}
        with self._awaiting("the other prompts of the round"):
            return await self.shared_round.share(self.draw.id, value)

    async def outside(self, call: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Call a tool, an environment or a judge. TimeoutError after `verdict_deadline` seconds."""
        with self._awaiting(_callee(call)):
            async with asyncio.timeout(self.rollout_setting.verdict_deadline):
                return await call(*args)

    def random(self, *key: int) -> Random:
        """A random generator, keyed by the draw (prompt) and `key`: the order of calls does not matter."""
        return keyed_random(
            (self.rollout_setting.seed, RandomPurpose.STRATEGY), self.random_purpose, self.draw.id, *key
        )

    @property
    def _log_key(self) -> str:
        """The draw's key in the replay log."""
        return f"{self.random_purpose} {self.draw.id} {self.rollout_setting.sampling.temperature}"

    async def _judged(self, samples: Sequence[Sample]) -> list[Sample]:
        """Grade one sample, or a whole group for a verifier that grades groups, in one call of the verifier.

        If the call fails, all of them are unverifiable.
        """
        with self._awaiting("the verifier"):
            limit = asyncio.timeout(self.rollout_setting.verdict_deadline)
            try:
                async with limit:
                    values = await self.rollout_setting.verifier.grade_group(self.draw.prompt, samples)
                pairs = zip(samples, values, strict=True)
                verdicts = [
                    with_threshold(_validated(value, s.text), self.rollout_setting.correct_threshold)
                    for s, value in pairs
                ]
            except Exception as error:
                if ends_run(error):
                    raise
                cause = describe_error(error)
                if isinstance(error, TimeoutError) and limit.expired():
                    cause = f"no verdict within {self.rollout_setting.verdict_deadline:g} seconds"
                verdicts = [Verdict(Outcome.unverifiable, cause=cause)] * len(samples)
        return [sample.with_verdict(verdict) for sample, verdict in zip(samples, verdicts, strict=True)]

    @contextmanager
    def _awaiting(self, callee: str) -> Iterator[None]:
        self.pending_calls_by_callee[callee] += 1
        try:
            yield
        finally:
            self.pending_calls_by_callee[callee] -= 1


def _validated(verdict: Any, text: str, source: str = "verifier") -> Verdict:
    """The verdict on a text, or an unverifiable one with the cause if it is invalid."""
    cause = ""
    if not isinstance(verdict, Verdict) or not isinstance(verdict.outcome, Outcome):
        cause = f"the {source} returned {verdict!r:.200}, which is not a Verdict"
    elif what := invalidity(verdict, text):
        cause = f"the {source} returned {what}"
    return Verdict(Outcome.unverifiable, cause=cause) if cause else verdict


def _callee(call: Any) -> str:
    return getattr(call, "__name__", type(call).__name__)
