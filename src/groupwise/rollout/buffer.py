"""The buffer: samples rollouts until an iteration has enough that pass the filter."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch

from groupwise.data import (
    Batch,
    Curriculum,
    Draw,
    Engine,
    Environment,
    Filter,
    Ids,
    Outcome,
    Prompt,
    Replay,
    Rollout,
    Sampling,
    Strategy,
    Task,
    Verifier,
    WorkerLost,
    name_of,
    pack,
)
from groupwise.models import Purpose, Tokenizer
from groupwise.rollout.sampler import DrawSampler
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
    """Samples rollouts until an iteration has enough selected ones. Its only state is the curriculum's.

    `deadline` bounds a whole rollout, from its start to its last verdict; `verdict_deadline` bounds one verdict; both
    in seconds. `environment` creates an environment for each sample, if the strategy uses one. `replay` records the
    observations. `frame` holds the tokens that the chat template writes before and after an observation. `template`
    encodes prompts that a strategy writes. `positions` is the most tokens of a sequence of the model.
    """

    task: Task
    curriculum: Curriculum[Any]
    engine: Engine
    verifier: Verifier
    tokenizer: Tokenizer
    sampling: Sampling = field(kw_only=True)
    seed: int = field(kw_only=True)
    unverifiable: UnverifiableRule = field(kw_only=True, default="exclude")
    deadline: float = field(kw_only=True, default=600.0)
    verdict_deadline: float = field(kw_only=True, default=60.0)
    environment: Callable[[], Environment] | None = field(kw_only=True, default=None)
    replay: Replay | None = field(kw_only=True, default=None)
    frame: tuple[Ids, Ids] = field(kw_only=True, default=((), ()))
    template: Callable[[str], Ids] | None = field(kw_only=True, default=None)
    positions: int | None = field(kw_only=True, default=None)
    threshold: float | None = field(kw_only=True, default=None)
    _state: Any = field(init=False)

    def __post_init__(self) -> None:
        self._state = self.curriculum.init(self.task, self.seed)

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
        sampler = DrawSampler(
            draw=draw, engine=self.engine, verifier=self.verifier, tokenizer=self.tokenizer, sampling=self.sampling,
            seed=self.seed, deadline=self.verdict_deadline, environment=self.environment, replay=self.replay,
            frame=self.frame, template=self.template, positions=self.positions, threshold=self.threshold,
        )  # fmt: skip
        return await _within_deadline(strategy, sampler, self.deadline)

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
    engine: Engine,
    verifier: Verifier,
    sampling: Sampling,
    tokenizer: Tokenizer,
    *,
    seed: int,
    purpose: int = Purpose.EVALUATE,
    strategy: Strategy = Independent(),  # noqa: B008
    deadline: float = 600.0,
    verdict_deadline: float = 60.0,
    environment: Callable[[], Environment] | None = None,
    replay: Replay | None = None,
    frame: tuple[Ids, Ids] = ((), ()),
    template: Callable[[str], Ids] | None = None,
    positions: int | None = None,
    threshold: float | None = None,
) -> list[Rollout]:
    """Sample and verify `n` answers to each prompt, independent of a run: no state is read or written.

    Prompt i is draw i under `purpose`, so repeated calls use the same random numbers.
    """
    samplers = [
        DrawSampler(
            draw=Draw(i, prompt, n), engine=engine, verifier=verifier, tokenizer=tokenizer, sampling=sampling,
            seed=seed, purpose=purpose, deadline=verdict_deadline, environment=environment, replay=replay,
            frame=frame, template=template, positions=positions, threshold=threshold,
        )
        for i, prompt in enumerate(prompts)
    ]  # fmt: skip
    return await together(_within_deadline(strategy, s, deadline) for s in samplers)


async def _within_deadline(strategy: Strategy, sampler: DrawSampler, deadline: float) -> Rollout:
    pending: list[str] = []

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
