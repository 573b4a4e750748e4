"""The buffer: generates rollouts (all samples of a prompt) until enough of an iteration's pass the filter."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from jaxtyping import Bool
from torch import Tensor

from groupwise.core import Usage, WorkerLost
from groupwise.data import (
    THREAD,
    Batch,
    Curriculum,
    CurriculumWithMetrics,
    Draw,
    Filter,
    Outcome,
    Prompt,
    Rollout,
    Sample,
    Strategy,
    Task,
    name_of,
    pack,
)
from groupwise.data.rollout_json import from_json, to_json
from groupwise.models import RandomPurpose
from groupwise.rollout.gather_coroutines import together
from groupwise.rollout.rollout_setting import RolloutSetting
from groupwise.rollout.sampler import SinglePromptSampler
from groupwise.rollout.sampling_round import SamplingRound
from groupwise.rollout.strategies.independent import Independent
from groupwise.rollout.strategies.multi_round import is_graded
from groupwise.rollout.strategy_metrics import mechanism_numbers

__all__ = ["IterationRollouts", "PendingIteration", "RolloutBuffer", "answers"]

UnverifiableRule = Literal["exclude", "wrong", "drop_group"]


def with_rule(batch: Batch, rule: UnverifiableRule) -> Batch:
    """The batch; with the rule `wrong`, the outcome of its unverifiable samples becomes wrong."""
    if rule != "wrong":
        return batch
    return batch.having(outcome=batch.outcome.masked_fill(batch.outcome == Outcome.unverifiable, int(Outcome.wrong)))


def eligible_answers(answers: Batch, rule: UnverifiableRule) -> Bool[Tensor, " s"]:
    """Which answers a filter may select: all but unverifiable ones; with `drop_group`, none of a rollout with one."""
    unverifiable = answers.outcome == Outcome.unverifiable
    if rule != "drop_group":
        return ~unverifiable
    rollout = answers.rollouts.index[answers.groups.index]
    return ~unverifiable & ~torch.isin(rollout, rollout[unverifiable])


@dataclass(frozen=True, slots=True)
class IterationRollouts:
    """All rollouts of one iteration, selected for training or not, in the order in which their prompts were drawn.

    `sampling_round_count` is the number of sampling rounds, `missing_selected_rollout_count` the number of selected
    rollouts that are still wanted. `strategy_metrics` are metrics of the strategy and the curriculum.
    """

    sampled_rollouts: tuple[Rollout, ...]
    sampling_round_count: int
    missing_selected_rollout_count: int = 0
    strategy_metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def selected(self) -> list[Rollout]:
        """The rollouts with at least one sample that is selected for training."""
        return [r for r in self.sampled_rollouts if any(r.selected or ())]

    @property
    def dropped(self) -> list[Rollout]:
        """The rollouts without a sample selected for training; `cause` holds the reason."""
        return [r for r in self.sampled_rollouts if not any(r.selected or ())]

    @property
    def causes(self) -> Mapping[str, int]:
        """The number of dropped rollouts for each reason."""
        return Counter(r.cause for r in self.dropped)

    @property
    def unverifiable(self) -> tuple[int, int, str]:
        """The number of unverifiable answers, the number of answers with a verdict, and the first cause."""
        samples = [s for r in self.sampled_rollouts for s in r.samples if s.role == "answer"]
        verdicts = [s.verdict for s in samples if s.verdict is not None]
        causes = [v.cause for v in verdicts if v.outcome is Outcome.unverifiable]
        return len(causes), len(verdicts), causes[0] if causes else ""

    @property
    def all_right(self) -> bool:
        """Whether every answer is correct, and there is at least one answer."""
        samples = [s for r in self.sampled_rollouts for s in r.samples if s.role == "answer"]
        return bool(samples) and all(s.verdict is not None and s.verdict.outcome is Outcome.correct for s in samples)

    @property
    def culprit(self) -> Literal["verifier", "environment"]:
        """The user code to correct: `environment` if it aborted the first unverifiable answer, else `verifier`."""
        samples = (s for r in self.sampled_rollouts for s in r.samples if s.role == "answer" and s.verdict is not None)
        unverifiable = (s for s in samples if s.verdict and s.verdict.outcome is Outcome.unverifiable)
        first = next(unverifiable, None)
        return "environment" if first is not None and first.counts.get("failed") else "verifier"

    @property
    def metrics(self) -> dict[str, float]:
        """Counts of an iteration's sampling, and `strategy_metrics`.

        A rollout counts once: as selected, or under the reason of its drop.
        """
        unverifiable, answers, _ = self.unverifiable
        counts: dict[str, float] = {
            "rollout/rounds": self.sampling_round_count,
            "rollout/draws": len(self.sampled_rollouts),
            "rollout/selected": len(self.selected),
            "rollout/dropped": len(self.dropped),
            "rollout/missing": self.missing_selected_rollout_count,
            "rollout/unverifiable": unverifiable,
            "rollout/answers": answers,
        }
        return (
            counts
            | {f"rollout/dropped/{cause}": n for cause, n in sorted(self.causes.items())}
            | {**self.strategy_metrics}
        )


@dataclass(slots=True, eq=False)
class PendingIteration:
    """The sampling of an iteration that the learner has not reached: its progress, or its `completed_rollouts`.

    `finished_rollouts` are the rollouts of complete rounds, before the filter; `current_round_draws` are the draws of
    the current round.
    """

    finished_rollouts: list[Rollout] = field(default_factory=list)
    current_round_draws: tuple[Draw, ...] = ()
    finished_rounds: int = 0
    completed_rollouts: IterationRollouts | None = None


@dataclass(slots=True, eq=False)
class RolloutBuffer:
    """Generates rollouts until an iteration has enough to train on. It also numbers the prompts that a run draws.

    `pending_iterations` holds the future iterations whose sampling has started, in order.
    """

    task: Task
    curriculum: Curriculum[Any]
    rollout_setting: RolloutSetting
    unverifiable_rule: UnverifiableRule = "exclude"
    trained_roles: tuple[str, ...] = ("answer",)
    """The roles of samples to train on. Filters read only answers; other samples follow an answer of their rollout."""
    pending_iterations: list[PendingIteration] = field(default_factory=list)
    _drawn: int = field(init=False)
    _state: Any = field(init=False)

    def __post_init__(self) -> None:
        self._drawn, self._state = 0, self.curriculum.init(self.task, self.rollout_setting.seed)

    async def take(
        self, n: int, group_size: int, strategy: Strategy, filter: Filter, max_refills: int
    ) -> IterationRollouts:
        """Generate rollouts until `n` are selected. A refill round draws exactly as many prompts as are missing.

        There are at most `max_refills` rounds after the first. A call that raises changes no state and can be repeated.
        Raises WorkerLost when a rollout exceeds its deadline.
        """
        before = self._drawn, self._state
        try:
            return await self.complete(PendingIteration(), n, group_size, strategy, filter, max_refills)
        except BaseException:
            self._drawn, self._state = before
            raise

    async def complete(
        self, pending: PendingIteration, n: int, group_size: int, strategy: Strategy, filter: Filter, max_refills: int
    ) -> IterationRollouts:
        """As `take`, from the progress of `pending`, which it updates. Several calls may run at once.

        A call that raises leaves its progress in `pending`: a later call repeats the round under way, with its draws.
        """
        one_by_one = getattr(filter, "scope", "rollout") == "rollout"
        finished, collected = pending.finished_rollouts, list[Rollout]()
        if finished:
            collected = self._marked(finished, filter, one_by_one)
        missing = _missing(n, collected)
        while missing and pending.finished_rounds <= max_refills:
            pending.current_round_draws = pending.current_round_draws or self._draws(missing, group_size)
            if not pending.current_round_draws:
                break
            one_round = SamplingRound(draw.id for draw in pending.current_round_draws)
            new = await together(self._rollout(draw, strategy, one_round) for draw in pending.current_round_draws)
            finished += new
            if one_by_one:
                collected += self._marked(new, filter, one_by_one)
            else:
                collected = self._marked(finished, filter, one_by_one)
            self._state = self.curriculum.observe(self._state, collected[-len(new) :])
            missing = _missing(n, collected)
            pending.finished_rounds, pending.current_round_draws = pending.finished_rounds + 1, ()
        if pending.finished_rounds:
            self._state = self.curriculum.end_iteration(self._state, collected)
        numbers = mechanism_numbers(collected, strategy, self.curriculum, self.trained_roles)
        if isinstance(self.curriculum, CurriculumWithMetrics):
            inner = self.curriculum.numbers(self._state, collected)
            numbers |= {f"curriculum/{name}": float(x) for name, x in inner.items()}
        pending.finished_rollouts, pending.completed_rollouts = (
            [],
            IterationRollouts(tuple(collected), pending.finished_rounds, missing, numbers),
        )
        return pending.completed_rollouts

    def pack(self, rollouts: Sequence[Rollout], *, version: int = 0) -> Batch:
        """The selected samples as one batch. With `unverifiable_rule = "wrong"`, unverifiable outcomes become wrong."""
        return self._packed(rollouts, version=version, roles=self.trained_roles)

    def _packed(self, rollouts: Sequence[Rollout], *, version: int = 0, roles: Sequence[str] = ("answer",)) -> Batch:
        batch = pack(rollouts, version=version, roles=roles, max_tokens=self.rollout_setting.sampling.max_tokens)
        return with_rule(batch, self.unverifiable_rule)

    def state(self) -> dict[str, Any]:
        """Prompts drawn so far, the curriculum's state, and rollouts of later iterations, as JSON.

        A resumed run needs no other rollout state.
        """
        state = {"drawn": self._drawn, "curriculum": self._state}
        return state | (
            {"pending": [to_json(pending) for pending in self.pending_iterations]} if self.pending_iterations else {}
        )

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a state that `state()` returned."""
        self._drawn, self._state = state["drawn"], state["curriculum"]
        self.pending_iterations[:] = (from_json(PendingIteration, pending) for pending in state.get("pending", ()))

    def _draws(self, n: int, group_size: int) -> tuple[Draw, ...]:
        """The next `n` draws, with their numbers; fewer if the curriculum has no more."""
        self._state, draws = self.curriculum.draw(self._state, self.task, n, group_size)
        first, self._drawn = self._drawn, self._drawn + len(draws)
        return tuple(replace(draw, id=first + i) for i, draw in enumerate(draws))

    async def _rollout(self, draw: Draw, strategy: Strategy, one_round: SamplingRound) -> Rollout:
        rollout = await _within_deadline(
            strategy, SinglePromptSampler(draw=draw, rollout_setting=self.rollout_setting, shared_round=one_round)
        )
        return _checked(rollout, draw)

    def _marked(self, rollouts: Sequence[Rollout], filter: Filter, one_by_one: bool) -> list[Rollout]:
        """Apply the filter: returns the rollouts with `selected` (the samples to train on) and `cause` (of a drop).

        The filter gets each rollout alone, or all as one batch.
        """
        batch = self._packed(rollouts)
        rollout = batch.rollouts.index[batch.groups.index]
        eligible = eligible_answers(batch, self.unverifiable_rule)
        selected = torch.zeros_like(eligible)
        alone = [eligible & (rollout == i) for i in range(len(rollouts))] if one_by_one else [eligible]
        for rows in (which.nonzero().squeeze(1) for which in alone):
            if len(rows):
                selected[rows] = filter(batch.take(rows))
        marks = iter(selected.tolist())  # one for each packed sample: the answers that the strategy did not exclude
        marked = []
        for index, one in enumerate(rollouts):
            by_strategy = one.selected or (True,) * len(one.samples)
            pairs = list(zip(one.samples, by_strategy, strict=True))
            which = tuple(s.role == "answer" and b and next(marks) for s, b in pairs)
            if any(which):
                kept = {s.stream[:1] for w, (s, _) in zip(which, pairs, strict=True) if w}
                which = tuple(
                    w or (b and self._also_trained(s) and (s.role != THREAD or s.stream[:1] in kept))
                    for w, (s, b) in zip(which, pairs, strict=True)
                )
            answers = rollout == index
            cause = ""
            if not bool(answers.any()):
                cause = one.cause or "empty"
            elif not bool(eligible[answers].any()):
                cause = "unverifiable"
            elif not any(which):
                cause = name_of(filter)
            marked.append(replace(one, selected=which, cause=cause))
        return marked

    def _also_trained(self, sample: Sample) -> bool:
        """Whether to train a sample whose role is not "answer", in a rollout with selected answers."""
        if sample.role == "answer" or sample.role not in self.trained_roles:
            return False
        if sample.verdict is None:
            problem = f"method.trained_roles names the role {sample.role}, but a sample with this role has no verdict"
            raise Usage(
                problem,
                fix="let the strategy verify it or give it a verdict, or leave the role out of method.trained_roles",
            )
        return self.unverifiable_rule == "wrong" or is_graded(sample)


def _missing(n: int, rollouts: Sequence[Rollout]) -> int:
    """How many of `n` wanted rollouts are not selected yet."""
    return max(n - sum(any(r.selected or ()) for r in rollouts), 0)


async def answers(
    prompts: Sequence[Prompt],
    n: int,
    setting: RolloutSetting,
    *,
    purpose: int = RandomPurpose.EVALUATE,
    strategy: Strategy = Independent(),  # noqa: B008
) -> list[Rollout]:
    """Generate and verify `n` answers to each prompt, independently of a run: no state is read or written.

    Prompt i is draw i under `purpose`, so repeated calls use the same random numbers.
    """
    draws = [Draw(i, prompt, n) for i, prompt in enumerate(prompts)]
    one_round = SamplingRound(draw.id for draw in draws)
    samplers = [
        SinglePromptSampler(draw=draw, rollout_setting=setting, random_purpose=purpose, shared_round=one_round)
        for draw in draws
    ]
    return await together(_within_deadline(strategy, sampler) for sampler in samplers)


async def _within_deadline(strategy: Strategy, sampler: SinglePromptSampler) -> Rollout:
    deadline, pending = sampler.rollout_setting.rollout_deadline, list[str]()

    def record_pending() -> None:
        pending.extend(f"{callee} ({n} times)" for callee, n in sampler.pending_calls_by_callee.items() if n)

    timer = asyncio.get_running_loop().call_later(deadline, record_pending)  # fires just before the timeout
    limit = asyncio.timeout(deadline)
    try:
        async with limit:
            return await strategy(sampler.draw, sampler)
    except TimeoutError:
        if not limit.expired():
            raise
        raise WorkerLost(
            f"the samples of draw {sampler.draw.id} were not finished within {deadline:g} seconds",
            evidence=f"it waited for {', '.join(pending) or 'its strategy'}",
            fix="check whether the engine or the verifier hangs, or raise machine.rollout_deadline",
        ) from None
    finally:
        timer.cancel()
        if sampler.shared_round is not None:
            sampler.shared_round.end(sampler.draw.id)


def _checked(rollout: Rollout, draw: Draw) -> Rollout:
    """A strategy's rollout, checked.

    `Usage` if it answers another prompt, if two samples share random numbers, or if `selected` has another length.
    """
    if rollout.draw.id != draw.id:
        problem = f"the strategy was called with draw {draw.id} and returned draw {rollout.draw.id}"
        raise Usage(problem, fix="return Rollout(draw, samples) with the draw that the strategy was called with")
    streams = Counter(sample.stream for sample in rollout.samples)
    twins = [stream for stream, n in streams.items() if n > 1]
    if twins:
        problem = f"the strategy returned {streams[twins[0]]} samples with the same random numbers (stream {twins[0]})"
        fix = "create samples with sampler.start or sampler.sample, and each copy with sample.fork(at, i) and another i"
        raise Usage(problem, fix=fix)
    if rollout.selected is not None and len(rollout.selected) != len(rollout.samples):
        problem = (
            f"the strategy returned {len(rollout.samples)} samples, and `selected` has {len(rollout.selected)} marks"
        )
        raise Usage(problem, fix="return Rollout(draw, samples, selected) with one boolean for each sample, or None")
    return rollout
