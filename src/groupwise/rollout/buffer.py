"""The buffer: samples rollouts until an iteration has enough that pass the filter."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch

from groupwise.data import (
    Batch,
    Curriculum,
    Draw,
    Filter,
    Outcome,
    Prompt,
    Rollout,
    Strategy,
    Task,
    WorkerLost,
    name_of,
    pack,
)
from groupwise.models import Purpose
from groupwise.rollout.sampler import DrawSampler
from groupwise.rollout.setting import RolloutSetting
from groupwise.rollout.strategy import Independent
from groupwise.rollout.together import together

__all__ = ["Buffer", "Rollouts", "answers"]

UnverifiableRule = Literal["exclude", "wrong", "drop_group"]


@dataclass(frozen=True, slots=True)
class Rollouts:
    """All rollouts of one iteration in draw order, selected or not.

    `rounds` is the number of sampling rounds, `missing` the number of selected rollouts that are still wanted.
    """

    all: tuple[Rollout, ...]
    rounds: int
    missing: int = 0

    @property
    def selected(self) -> list[Rollout]:
        """Rollouts with at least one selected sample."""
        return [r for r in self.all if any(r.selected or ())]

    @property
    def dropped(self) -> list[Rollout]:
        """Rollouts without a selected sample; `cause` holds the reason."""
        return [r for r in self.all if not any(r.selected or ())]

    @property
    def causes(self) -> Mapping[str, int]:
        """Number of dropped rollouts for each cause."""
        return Counter(r.cause for r in self.dropped)

    @property
    def unverifiable(self) -> tuple[int, int, str]:
        """The number of unverifiable samples, the number of samples with a verdict, and the first cause."""
        verdicts = [s.verdict for r in self.all for s in r.samples if s.verdict is not None]
        causes = [v.cause for v in verdicts if v.outcome is Outcome.unverifiable]
        return len(causes), len(verdicts), causes[0] if causes else ""

    @property
    def metrics(self) -> dict[str, int]:
        """Counts of the sampling rounds. Each rollout counts once: as selected, or under the cause of its drop."""
        unverifiable, answers, _ = self.unverifiable
        counts = {
            "rollout/rounds": self.rounds,
            "rollout/draws": len(self.all),
            "rollout/selected": len(self.selected),
            "rollout/dropped": len(self.dropped),
            "rollout/missing": self.missing,
            "rollout/unverifiable": unverifiable,
            "rollout/answers": answers,
        }
        return counts | {f"rollout/dropped/{cause}": n for cause, n in sorted(self.causes.items())}


@dataclass(slots=True, eq=False)
class Buffer:
    """Samples rollouts until an iteration has enough selected ones. Its only state is the curriculum's."""

    task: Task
    curriculum: Curriculum[Any]
    setting: RolloutSetting
    unverifiable: UnverifiableRule = "exclude"
    _state: Any = field(init=False)

    def __post_init__(self) -> None:
        self._state = self.curriculum.init(self.task, self.setting.seed)

    async def take(self, n: int, group_size: int, strategy: Strategy, filter: Filter, refill: int) -> Rollouts:
        """Sample rollouts until `n` are selected. A refill round draws exactly the missing number of prompts.

        There are at most `refill` rounds after the first. A call that raises changes no state and can be repeated.
        Raises WorkerLost when a rollout exceeds its deadline.
        """
        state, collected, rounds = self._state, [], 0
        missing = n
        while missing and rounds <= refill:
            state, draws = self.curriculum.draw(state, self.task, missing, group_size)
            if not draws:
                break
            finished = await together(self._rollout(draw, strategy) for draw in draws)
            rollouts = [self._filtered(rollout, filter) for rollout in finished]
            state = self.curriculum.observe(state, rollouts)
            collected += rollouts
            missing -= sum(any(r.selected or ()) for r in rollouts)
            rounds += 1
        self._state = state
        return Rollouts(tuple(collected), rounds, missing)

    def pack(self, rollouts: Sequence[Rollout], *, version: int = 0) -> Batch:
        """The selected samples as one batch. With `unverifiable = "wrong"`, unverifiable outcomes become wrong."""
        batch = pack(rollouts, version=version)
        if self.unverifiable != "wrong":
            return batch
        return batch.having(
            outcome=batch.outcome.masked_fill(batch.outcome == Outcome.unverifiable, int(Outcome.wrong))
        )

    def state(self) -> Any:
        """The curriculum's state as JSON. A resumed run needs no other state of the rollout side."""
        return self._state

    def restore(self, state: Any) -> None:
        """Continue from a state that `state()` returned."""
        self._state = state

    async def _rollout(self, draw: Draw, strategy: Strategy) -> Rollout:
        return await _within_deadline(strategy, DrawSampler(draw=draw, setting=self.setting))

    def _filtered(self, rollout: Rollout, filter: Filter) -> Rollout:
        """The rollout with `selected` for each sample. The filter gets the same batch as the method's statistics."""
        batch = self.pack([rollout])
        unverifiable = batch.outcome == Outcome.unverifiable
        selected = torch.zeros_like(unverifiable)
        judged = (~unverifiable).nonzero().squeeze(1)
        cause = ""
        if not len(judged):
            cause = "unverifiable" if len(unverifiable) else "empty"
        elif self.unverifiable == "drop_group" and bool(unverifiable.any()):
            cause = "unverifiable"
        else:
            selected[judged] = filter(batch.take(judged))
            cause = "" if bool(selected.any()) else name_of(filter)
        marks = iter(selected.tolist())  # one for each packed sample: the answers that the strategy did not exclude
        by_strategy = rollout.selected or (True,) * len(rollout.samples)
        marked = tuple(s.role == "answer" and b and next(marks) for s, b in zip(rollout.samples, by_strategy))
        return replace(rollout, selected=marked, cause=cause)


async def answers(
    prompts: Sequence[Prompt],
    n: int,
    setting: RolloutSetting,
    *,
    purpose: int = Purpose.EVALUATE,
    strategy: Strategy = Independent(),  # noqa: B008
) -> list[Rollout]:
    """Sample and verify `n` answers to each prompt, independent of a run: no state is read or written.

    Prompt i is draw i under `purpose`, so repeated calls use the same random numbers.
    """
    draws = [Draw(i, prompt, n) for i, prompt in enumerate(prompts)]
    samplers = [DrawSampler(draw=draw, setting=setting, purpose=purpose) for draw in draws]
    return await together(_within_deadline(strategy, sampler) for sampler in samplers)


async def _within_deadline(strategy: Strategy, sampler: DrawSampler) -> Rollout:
    deadline, pending = sampler.setting.deadline, list[str]()

    def record_pending() -> None:
        pending.extend(f"{callee} ({n} times)" for callee, n in sampler.awaiting.items() if n)

    timer = asyncio.get_running_loop().call_later(deadline, record_pending)  # fires just before the timeout
    limit = asyncio.timeout(deadline)
    try:
        async with limit:
            return await strategy(sampler.draw, sampler)
    except TimeoutError:
        if not limit.expired():
            raise
        raise WorkerLost(
            f"draw {sampler.draw.id} produced no rollout within {deadline:g} seconds",
            evidence=f"it waited for {', '.join(pending) or 'its strategy'}",
            fix="check whether the engine or the verifier hangs, or raise machine.deadline",
        ) from None
    finally:
        timer.cancel()
