"""The supervised phase: next-token loss on demonstrations, with the same learner as reinforcement learning."""

import asyncio
import math
from collections.abc import Callable, Iterator, Sequence

import torch

from groupwise.data import (
    GRAD_NORM,
    LOSS,
    TRAINED_TOKENS,
    WRITTEN,
    Batch,
    Draw,
    Finish,
    Outcome,
    Prompt,
    Rollout,
    Sample,
    Verdict,
    pack,
)
from groupwise.learner import Learner, SingleProcess, StepResult, make_plan
from groupwise.models import RandomPurpose, permutation
from groupwise.objective import Objective, policy_gradient, token_mean
from groupwise.runs.atomic_writes import DISK, FileSystem, delete, storage_errors
from groupwise.runs.checkpoints import newest_checkpoint, save_checkpoint
from groupwise.runs.run_layout import RunLayout
from groupwise.runs.run_logs import RunLogs
from groupwise.tasks import Demonstration
from groupwise.training.build_run import RunObjects
from groupwise.training.run_guards import RunGuards

NEXT_TOKEN = Objective(surrogate=policy_gradient, aggregate=token_mean)
"""The loss of supervised training, as an objective: minus the log-prob of each token, if its advantage is 1."""


def supervised_steps(
    learner: Learner,
    demonstrations: Sequence[Demonstration],
    *,
    per_step: int,
    order: Callable[[int], Sequence[int]],
    microbatch_tokens: int,
) -> Iterator[StepResult]:
    """Take the remaining supervised steps, one each time that the iterator advances; yields their results.

    `order(epoch)` is the order of the demonstrations in that epoch. A step may continue into the next epoch.
    """
    n = len(demonstrations)
    while (step := learner.steps_taken) < learner.steps:
        indices = range(step * per_step, (step + 1) * per_step)
        epochs = {epoch: order(epoch) for epoch in range(indices[0] // n, indices[-1] // n + 1)}
        batch = demonstration_batch([demonstrations[epochs[i // n][i % n]] for i in indices])
        (plan,) = make_plan(
            batch, size=per_step, shuffle="prompts", permutation=range, microbatch_tokens=microbatch_tokens,
            lanes=learner.ranks.lanes,
        )  # fmt: skip
        yield learner.step(batch, plan, NEXT_TOKEN)


def demonstration_batch(demonstrations: Sequence[Demonstration]) -> Batch:
    """Demonstrations as a batch with advantage 1. Tokens of the environment within them are not trained."""

    def rollout(i: int, d: Demonstration) -> Rollout:
        n = len(d.answer_ids)
        sample = Sample(context=d.prompt_ids, stream=(0,), limit=n, finish=Finish.stop)
        sample = sample.with_tokens(d.answer_ids, d.token_origins or (WRITTEN,) * n, (math.nan,) * n)
        return Rollout(Draw(i, Prompt(str(i), d.prompt_ids), 1), (sample.with_verdict(Verdict(Outcome.correct)),))

    batch = pack([rollout(i, d) for i, d in enumerate(demonstrations)])
    return batch.having(advantage=torch.ones(batch.tokens, dtype=torch.float64))


async def warm_start(
    layout: RunLayout,
    objects: RunObjects,
    stopping: Callable[[], str],
    notify: Callable[[str], None],
    *,
    changed: bool = False,
    disk: FileSystem = DISK,
) -> bool:
    """Run or continue the supervised phase of a run, if it has one. False if it was stopped, and saved, before its end.

    A killed run continues from the phase's newest checkpoint and reaches the same bits as one that was never killed.
    """
    recipe, settings = objects.recipe, objects.recipe.warm_start
    if settings is None:
        return True
    folder, steps = RunLayout(layout.warm_start), settings.steps
    with storage_errors("the warm start", layout.run_directory):
        if not folder.run_directory.is_dir():
            disk.mkdir(folder.run_directory)
            disk.sync(layout.run_directory)
    demonstrations, _ = objects.demonstrations
    learner = Learner(
        objects.model, optimizer=settings.optimizer, steps=steps, ranks=SingleProcess(recipe.cluster.reduction_lanes)
    )
    guards = RunGuards(max_unverifiable=1.0, max_logprob_diff=math.inf)
    checkpoint = newest_checkpoint(folder)
    state, saved = (checkpoint.state, checkpoint.iteration) if checkpoint else ({}, 0)
    logs = RunLogs.resume(folder, state, saved, changed=changed, disk=disk)
    if checkpoint:
        learner.restore(checkpoint.tensors(), checkpoint.state["learner"])
        guards.restore(checkpoint.state["guards"])

    def save() -> None:
        tensors, state = learner.state()
        contents = {"learner": state, "guards": guards.state(), **logs.state()}
        save_checkpoint(folder, learner.steps_taken, tensors, contents, keep=1, disk=disk)

    def order(epoch: int) -> list[int]:
        return permutation((recipe.seed, RandomPurpose.DEMONSTRATE), 0, epoch, len(demonstrations)).tolist()

    size = {"per_step": settings.per_step, "microbatch_tokens": recipe.machine.microbatch_tokens}
    for result in supervised_steps(learner, demonstrations, order=order, **size):
        guards.check_steps([result.skip_reason], "the demonstrations")
        done = learner.steps_taken
        logs.metrics(metrics := step_metrics(done, result))
        if done == steps or done * 10 // steps > (done - 1) * 10 // steps:
            notify(f"warm start {done:>{len(str(steps))}}/{steps}  loss {metrics[LOSS]:.4f}")
        await asyncio.sleep(0)  # lets a pending signal stop the loop
        if done % settings.save_every == 0 or done == steps or stopping():
            save()
        if stopping() and done < steps:
            break
    logs.close()
    return learner.steps_taken == steps


def remove_checkpoint(layout: RunLayout, disk: FileSystem) -> None:
    """Delete the warm start's checkpoints. Call it only if the run has a checkpoint of its reinforcement learning."""
    if layout.warm_start.is_dir() and (old := RunLayout(layout.warm_start).checkpoints).is_dir():
        with storage_errors("the warm start", layout.run_directory):
            delete(old, disk)


def step_metrics(step: int, result: StepResult) -> dict[str, float]:
    """The metrics of a supervised step: loss, tokens, gradient norm, learning rate."""
    return {
        "step": step,
        LOSS: result.loss,
        TRAINED_TOKENS: result.batch.tokens,
        GRAD_NORM: result.grad_norm,
        "learning_rate": result.learning_rate,
    }
