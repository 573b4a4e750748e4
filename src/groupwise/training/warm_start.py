"""The supervised phase: next-token loss on demonstrations, through the learner that reinforcement learning uses."""

import asyncio
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from groupwise.data import WRITTEN, Batch, Draw, Finish, Outcome, Prompt, Rollout, Sample, Verdict, pack
from groupwise.learner import Learner, StepResult, make_plan
from groupwise.models import Purpose, permutation
from groupwise.objective import Objective, reinforce, token_mean
from groupwise.runs.checkpoints import newest_checkpoint, save_checkpoint
from groupwise.runs.disk import DISK, Disk, delete, storage_errors
from groupwise.runs.logs import RunLogs
from groupwise.tasks import Demonstration
from groupwise.training.build import Runtime
from groupwise.training.guards import Guards

NEXT_TOKEN = Objective(surrogate=reinforce, aggregate=token_mean)
"""With an advantage of 1 on every written token, the surrogate is its log-prob."""
HOME = "warm_start"
"""The phase's own directory in that of the run: its metrics, a line a step, and its checkpoint."""


def supervised(
    learner: Learner,
    demonstrations: Sequence[Demonstration],
    *,
    per_step: int,
    order: Callable[[int], Sequence[int]],
    microbatch_tokens: int,
) -> Iterator[StepResult]:
    """The learner's steps from where it stands to its last, each taken when it is asked for.

    `order(sweep)` is how the demonstrations are dealt in that sweep over them; a step may reach into the next one.
    """
    n = len(demonstrations)
    while (step := learner.steps_taken) < learner.steps:
        places = range(step * per_step, (step + 1) * per_step)
        sweeps = {sweep: order(sweep) for sweep in range(places[0] // n, places[-1] // n + 1)}
        batch = written([demonstrations[sweeps[i // n][i % n]] for i in places])
        (plan,) = make_plan(
            batch, size=per_step, shuffle="prompts", permutation=range, microbatch_tokens=microbatch_tokens
        )
        yield learner.step(batch, plan, NEXT_TOKEN)


def written(demonstrations: Sequence[Demonstration]) -> Batch:
    """Demonstrations as samples of written tokens, which alone are trained, and of an environment's within them."""

    def rollout(i: int, d: Demonstration) -> Rollout:
        n = len(d.answer)
        sample = Sample(context=d.context, stream=(0,), limit=n, finish=Finish.stop)
        sample = sample.with_tokens(d.answer, d.origin or (WRITTEN,) * n, (math.nan,) * n)
        return Rollout(Draw(i, Prompt(str(i), d.context), 1), (sample.with_verdict(Verdict(Outcome.correct)),))

    batch = pack([rollout(i, d) for i, d in enumerate(demonstrations)])
    return batch.having(advantage=torch.ones(batch.tokens, dtype=torch.float64))


async def warm_start(
    run: Path,
    place: Runtime,
    stopping: Callable[[], str],
    say: Callable[[str], None],
    *,
    changed: bool = False,
    disk: Disk = DISK,
) -> bool:
    """The phase of a run, if it has one, from where it stands. False if it was asked to stop before its end, and saved.

    A run that is killed goes on from the phase's newest checkpoint, to the bits of one never killed.
    """
    recipe, settings = place.recipe, place.recipe.warm_start
    if settings is None:
        return True
    home, steps = run / HOME, settings.steps
    with storage_errors("the warm start", run):
        if not home.is_dir():
            disk.mkdir(home)
            disk.sync(run)
    demonstrations, _ = place.demonstrations
    learner = Learner(place.model, optimizer=settings.optimizer, steps=steps)
    guards = Guards(max_unverifiable=1.0, max_gap=math.inf)
    checkpoint = newest_checkpoint(home)
    state, saved = (checkpoint.state, checkpoint.iteration) if checkpoint else ({}, 0)
    record = RunLogs.resume(home, state, saved, changed=changed, disk=disk)
    if checkpoint:
        learner.restore(checkpoint.tensors(), checkpoint.state["learner"])
        guards.restore(checkpoint.state["guards"])

    def save() -> None:
        tensors, state = learner.state()
        whole = {"learner": state, "guards": guards.state(), **record.state()}
        save_checkpoint(home, learner.steps_taken, tensors, whole, keep=1, disk=disk)

    def order(sweep: int) -> list[int]:
        return permutation((recipe.seed, Purpose.DEMONSTRATE), 0, sweep, len(demonstrations)).tolist()

    size = {"per_step": settings.per_step, "microbatch_tokens": recipe.machine.microbatch_tokens}
    for taken in supervised(learner, demonstrations, order=order, **size):
        guards.check_steps([taken.skipped], "the demonstrations")
        done = learner.steps_taken
        record.metrics(told := line(done, taken))
        if done == steps or done * 10 // steps > (done - 1) * 10 // steps:
            say(f"warm start {done:>{len(str(steps))}}/{steps}  loss {told['loss']:.4f}")
        await asyncio.sleep(0)  # a signal may have come
        if done % settings.save_every == 0 or done == steps or stopping():
            save()
        if stopping() and done < steps:
            break
    record.close()
    return learner.steps_taken == steps


def forget(run: Path, disk: Disk) -> None:
    """The phase's checkpoint is needed no more, once the run has one of its own."""
    if (old := run / HOME / "checkpoints").is_dir():
        with storage_errors("the warm start", run):
            delete(old, disk)


def line(step: int, taken: StepResult) -> dict[str, float]:
    """A step's numbers."""
    return {
        "step": step,
        "loss": taken.loss,
        "tokens": taken.batch.tokens,
        "grad_norm": taken.grad_norm,
        "learning_rate": taken.learning_rate,
    }
