"""From the number of prompts that an iteration wants to rollouts worth training on."""

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
    """All that an iteration drew, in draw order, kept or not, in how many rounds, and how many are `missing` yet."""

    all: tuple[Rollout, ...]
    rounds: int
    missing: int = 0

    @property
    def selected(self) -> list[Rollout]:
        """The kept ones."""
        return [f for f in self.all if any(f.selected or ())]

    @property
    def dropped(self) -> list[Rollout]:
        """The others; each says why in `cause`."""
        return [f for f in self.all if not any(f.selected or ())]

    @property
    def causes(self) -> Mapping[str, int]:
        """Why rollouts were dropped, and how many for each reason."""
        return Counter(f.cause for f in self.dropped)

    @property
    def unverifiable(self) -> tuple[int, int, str]:
        """How many answers could not be judged, of how many, and the first cause."""
        verdicts = [s.verdict for f in self.all for s in f.samples if s.verdict is not None]
        causes = [v.cause for v in verdicts if v.outcome is Outcome.unverifiable]
        return len(causes), len(verdicts), causes[0] if causes else ""

    @property
    def metrics(self) -> dict[str, int]:
        """What the rounds brought: every rollout is counted once, among the kept or under the cause of its leaving."""
        unjudged, answers, _ = self.unverifiable
        line = {
            "rollout/rounds": self.rounds,
            "rollout/rollouts": len(self.all),
            "rollout/selected": len(self.selected),
            "rollout/dropped": len(self.dropped),
            "rollout/missing": self.missing,
            "rollout/unverifiable": unjudged,
            "rollout/answers": answers,
        }
        return line | {f"rollout/dropped/{cause}": n for cause, n in sorted(self.causes.items())}


@dataclass(slots=True, eq=False)
class Buffer:
    """Draws prompts until an iteration has what it wants. All that it remembers is the curriculum's state.

    `deadline` bounds a rollout, from its launch to its last verdict; `verdict_deadline` each verdict; in seconds.
    `world` makes an environment for each sample, for the strategies that ask one; `journal` keeps what these answer,
    and `frame` is what a chat template writes before and behind it.
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
    _state: Any = field(init=False)

    def __post_init__(self) -> None:
        self._state = self.curriculum.init(self.task, self.seed)

    async def take(self, n: int, group_size: int, strategy: Strategy, keep: Filter, refill: int) -> Rollouts:
        """Rollouts until `n` are kept: at most `refill` further rounds, each for exactly those still missing.

        Nothing is remembered of a take that fails: it can be done again. WorkerLost for a rollout beyond its deadline.
        """
        state, taken, rounds = self._state, [], 0
        missing = n
        while missing and rounds <= refill:
            state, draws = self.curriculum.draw(state, self.task, missing, group_size)
            if not draws:
                break
            rollouts = [self._filtered(f, keep) for f in await together(self._rollout(d, strategy) for d in draws)]
            state = self.curriculum.observe(state, rollouts)
            taken += rollouts
            missing -= sum(any(f.selected or ()) for f in rollouts)
            rounds += 1
        self._state = state
        return Rollouts(tuple(taken), rounds, missing)

    def pack(self, rollouts: Sequence[Rollout], *, version: int = 0) -> Batch:
        """The kept samples as one batch. With `unverifiable = "wrong"`, unverifiable outcomes are wrong in it."""
        batch = pack(rollouts, version=version)
        if self.unverifiable != "wrong":
            return batch
        return batch.having(
            outcome=batch.outcome.masked_fill(batch.outcome == Outcome.unverifiable, int(Outcome.wrong))
        )

    def state(self) -> Any:
        """The curriculum's state: JSON, and all that a resumed run needs of the rollout side."""
        return self._state

    def restore(self, state: Any) -> None:
        self._state = state

    async def _rollout(self, draw: Draw, strategy: Strategy) -> Rollout:
        sampler = DrawSampler(
            draw=draw, engine=self.engine, verifier=self.verifier, tokenizer=self.tokenizer, sampling=self.sampling,
            seed=self.seed, deadline=self.verdict_deadline, environment=self.environment, replay=self.replay,
            frame=self.frame,
        )  # fmt: skip
        return await _in_time(strategy, sampler, self.deadline)

    def _filtered(self, rollout: Rollout, keep: Filter) -> Rollout:
        """The rollout with `kept` for each sample. Keep sees what the method's statistics will see."""
        batch = self.pack([rollout])
        unjudged = batch.outcome == Outcome.unverifiable
        stays = torch.zeros_like(unjudged)
        judged = (~unjudged).nonzero().squeeze(1)
        cause = ""
        if not len(judged):
            cause = "unverifiable" if len(unjudged) else "empty"
        elif self.unverifiable == "drop_group" and bool(unjudged.any()):
            cause = "unverifiable"
        else:
            stays[judged] = keep(batch.take(judged))
            cause = "" if bool(stays.any()) else name_of(keep)
        marks = iter(stays.tolist())  # of what was packed: answers that the strategy itself did not leave out
        before = rollout.selected or (True,) * len(rollout.samples)
        kept = tuple(s.role == "answer" and b and next(marks) for s, b in zip(rollout.samples, before))
        return replace(rollout, selected=kept, cause=cause)


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
    journal: Replay | None = None,
    frame: tuple[Ids, Ids] = ((), ()),
) -> list[Rollout]:
    """`n` answers to each prompt with their verdicts, beside any run: no state is read or written.

    Prompt i is draw i under `purpose`, so the same question is asked with the same random numbers whenever it is asked.
    """
    samplers = [
        DrawSampler(
            draw=Draw(i, prompt, n), engine=engine, verifier=verifier, tokenizer=tokenizer, sampling=sampling,
            seed=seed, purpose=purpose, deadline=verdict_deadline, environment=environment, replay=journal,
            frame=frame,
        )
        for i, prompt in enumerate(prompts)
    ]  # fmt: skip
    return await together(_in_time(strategy, s, deadline) for s in samplers)


async def _in_time(strategy: Strategy, sampler: DrawSampler, deadline: float) -> Rollout:
    waited: list[str] = []

    def look() -> None:
        waited.extend(f"{what} ({n} times)" for what, n in sampler.awaiting.items() if n)

    watch = asyncio.get_running_loop().call_later(deadline, look)  # due just before the timeout itself
    limit = asyncio.timeout(deadline)
    try:
        async with limit:
            return await strategy(sampler.draw, sampler)
    except TimeoutError:
        if not limit.expired():
            raise
        raise WorkerLost(
            f"draw {sampler.draw.id} brought no rollout within {deadline:g} seconds",
            evidence=f"it waited for {', '.join(waited) or 'its strategy'}",
            fix="look whether the engine or the verifier hangs, or raise machine.deadline",
        ) from None
    finally:
        watch.cancel()
