"""The training loop: sample rollouts, pack them into a batch, update the weights, record metrics."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from fractions import Fraction
from functools import partial
from typing import Any

import torch
from torch import Tensor

from groupwise.cluster.rank_messages import send_iteration
from groupwise.cluster.rank_work_thread import in_thread
from groupwise.config.recipe import Recipe
from groupwise.data import (
    LARGEST_GAP,
    THREAD,
    Batch,
    Engine,
    Logp,
    Mask,
    NeededMeasure,
    Return,
    Rollout,
    Segments,
    SharesDevice,
    Value,
    unsplit_unit,
    with_fields,
)
from groupwise.learner import Learner, StepPlan, StepResult, make_plan, measure_plan
from groupwise.methods import Method, ScheduleInput
from groupwise.models import RandomPurpose, keep_pictures, permutation
from groupwise.rollout import IterationRollouts, PendingIteration, RolloutBuffer
from groupwise.training.async_sampling import AHEAD, AheadSampler
from groupwise.training.iteration_records import (
    has_engine_logprobs,
    lag_metrics,
    method_metrics,
    of_stored_answers,
    without_policy,
)
from groupwise.training.run_guards import RunGuards
from groupwise.training.run_recorder import RunRecorder
from groupwise.training.signal_watchdog import BlockedStop

OLD_LOGP = Logp("policy")
LOADING = 20.0
"""Seconds after a stop is requested until weights must be loaded; service managers end a process after 30 or more."""


async def run(
    recipe: Recipe,
    buffer: RolloutBuffer,
    engine: Engine,
    learner: Learner,
    recorder: RunRecorder,
    guards: RunGuards,
    evaluate: Callable[[], Awaitable[dict[str, float]]],
) -> None:
    """Train from iteration `recorder.done` to `recipe.iterations`, or until `recorder.stopping`, or a solved task."""
    await load(engine, learner, recorder, learner.version)
    if recorder.done < 0:
        recorder.evaluation(await evaluate(), learner)
        recorder.save(learner, buffer, guards)
    sampling = partial(take, recipe, buffer, learner)
    async with AheadSampler(
        buffer.pending_iterations, sampling, max_staleness=recipe.cluster.max_staleness, last=recipe.iterations
    ) as ahead:
        while recorder.done < recipe.iterations and not (recorder.stopping or recorder.solved):
            iteration = recorder.done
            with recorder.phase("sample"):
                collected = await recorder.unless_stopped(ahead.next(iteration))
            if collected is None:
                break
            solved = guards.check_rollouts(collected)
            method = recipe.method.at(ScheduleInput(iteration, recipe.iterations, learner.method_states))
            batch = buffer.pack(collected.selected, version=learner.version)
            if not solved:
                ahead.begin(iteration)
            await sleep(engine, recorder)
            steps = partial(train, recipe, method, learner, collected, batch, iteration)
            batch, results = await take_steps(
                steps, learner, recorder, ahead, max_staleness=recipe.cluster.max_staleness
            )
            line = recorder.iteration(collected, batch, results, method.objective)
            line = of_stored_answers(line, batch) if recipe.trains_stored_answers else line
            line = without_policy(line) if recipe.trains_reward_model else line
            line |= lag_metrics(batch) if recipe.cluster.max_staleness else {}
            check_steps(guards, results, line, recorder)
            line |= remember(method, learner, batch, results, line)
            with recorder.phase("publish"):
                await load(engine, learner, recorder, learner.publish())
            if solved or due(recipe.evaluate.every, iteration + 1, recipe.iterations):
                with recorder.phase("evaluate"):
                    line |= await evaluate()
            recorder.write(line, learner)
            recorder.solved = solved
            if not solved and due(recipe.save.every, iteration + 1, recipe.iterations):
                recorder.save(learner, buffer, guards)


async def sleep(engine: Engine, recorder: RunRecorder) -> None:
    """Let an engine that shares the learner's device free its memory; it wakes when it loads weights."""
    if isinstance(engine, SharesDevice):
        with recorder.phase("sleep"):
            await engine.sleep()


async def take_steps(
    steps: Callable[[], tuple[Batch, list[StepResult]]],
    learner: Learner,
    recorder: RunRecorder,
    ahead: AheadSampler,
    *,
    max_staleness: int,
) -> tuple[Batch, list[StepResult]]:
    """Take an iteration's optimizer steps; with lag, the event loop samples meanwhile."""
    with recorder.phase("learn", watched_as=AHEAD if max_staleness else ""):
        apart = max_staleness or learner.ranks.size > 1
        taken = await in_thread(steps) if apart else steps()
    if max_staleness:
        recorder.add_seconds("engine_idle", ahead.idle)
        with recorder.phase("wait", watched_as=AHEAD):
            await ahead.settle()
    return taken


def check_steps(
    guards: RunGuards, results: Sequence[StepResult], line: Mapping[str, Any], recorder: RunRecorder
) -> None:
    """Raise the guards' error if too many steps were skipped, or engine and learner differ too much."""
    guards.check_steps([t.skip_reason for t in results], str(recorder.dumps))
    if has_engine_logprobs(results):
        guards.check_gap(line[LARGEST_GAP])


def remember(
    method: Method, learner: Learner, batch: Batch, results: Sequence[StepResult], line: Mapping[str, Any]
) -> dict[str, float]:
    """Update the method's states after an iteration with steps. Returns the metrics of components and states."""
    if not results:
        return {}
    metrics = method_metrics(method, learner.method_states, results)
    learner.remember(batch, {**line, **metrics})
    return metrics


async def load(engine: Engine, learner: Learner, recorder: RunRecorder, version: int) -> None:
    """Load the learner's weights into the engine.

    `BlockedStop` if the engine still waits, for example for its replicas, `LOADING` seconds after a stop is requested.
    A resume then continues from the last checkpoint.
    """

    async def loaded() -> bool:
        sharded = learner.ranks.shards
        weights = await in_thread(learner.weights) if sharded else learner.weights()
        await engine.load(version, weights)
        return True

    if not await recorder.unless_stopped(loaded(), LOADING):
        raise BlockedStop(recorder.stopping, "publish")


def take(
    recipe: Recipe, buffer: RolloutBuffer, learner: Learner, iteration: int, pending: PendingIteration | None
) -> Awaitable[IterationRollouts]:
    """Generate the rollouts of an iteration, by the method as its schedules and states have it now."""
    method = recipe.method.at(ScheduleInput(iteration, recipe.iterations, learner.method_states))
    wanted = recipe.prompts, method.group_size, method.strategy, method.filter, method.max_refills
    return buffer.take(*wanted) if pending is None else buffer.complete(pending, *wanted)


def train(
    recipe: Recipe, method: Method, learner: Learner, collected: IterationRollouts, batch: Batch, iteration: int
) -> tuple[Batch, list[StepResult]]:
    """`learn` on all ranks; without samples, nothing."""
    if not len(batch):
        return batch, []
    send_iteration(learner, iteration)
    keep_rollout_pictures(learner, collected.selected)
    return learn(recipe, method, learner, batch, iteration)


def keep_rollout_pictures(learner: Learner, rollouts: Sequence[Rollout]) -> None:
    """Store the pictures of the rollouts' prompts with the policy, whose side models share its store."""
    for prompt in (rollout.draw.prompt for rollout in rollouts):
        keep_pictures(learner.model, prompt.content_hash, prompt.pictures)


def learn(
    recipe: Recipe, method: Method, learner: Learner, batch: Batch, iteration: int
) -> tuple[Batch, list[StepResult]]:
    """Take the optimizer steps of an iteration. Returns the batch with log-probs and advantages, and step results."""
    lanes = learner.ranks.lanes
    plans = [plan(recipe, method, batch, iteration, epoch, lanes) for epoch in range(method.epochs)]
    # Tokens that the engine did not sample have no log-prob of it.
    no_engine = method.old_logprobs == "engine" and bool(batch.logp_engine.isnan().any())
    needed = needed_measures(method, plans) | ({OLD_LOGP} if no_engine else frozenset())
    first = measure_plan(plans[0], batch, microbatch_tokens=recipe.machine.microbatch_tokens, lanes=lanes)
    batch = learner.compute_measures(batch, first, needed, method.router_replay)
    if method.old_logprobs == "engine":
        sampled = batch.logp_engine.to(learner.dtype)
        batch = batch.having(logp_old=torch.where(sampled.isnan(), batch.logp_old, sampled) if no_engine else sampled)
    batch = compute_advantages(batch, method)
    results = [
        learner.step(batch, step, method.objective, method.router_replay, method.auxiliary_losses)
        for steps in plans
        for step in steps
    ]
    learner.end_iteration()
    return batch, results


def plan(
    recipe: Recipe, method: Method, batch: Batch, iteration: int, epoch: int, lanes: int = 1
) -> tuple[StepPlan, ...]:
    """The steps and microbatches of one epoch over an iteration's batch, in an order keyed by the run's seed."""
    return make_plan(
        batch,
        size=Fraction(recipe.prompts, method.minibatches),
        shuffle=method.shuffle,
        permutation=lambda n: permutation((recipe.seed, RandomPurpose.SHUFFLE), iteration, epoch, n).tolist(),
        microbatch_tokens=recipe.machine.microbatch_tokens,
        unsplit_unit=unsplit_unit(method.objective),
        lanes=lanes,
    )


def needed_measures(method: Method, plans: Sequence[Sequence[StepPlan]]) -> frozenset[NeededMeasure]:
    """The measures to compute before the first step. Old log-probs are left out if nothing needs them."""
    several = sum(map(len, plans)) > 1
    if method.old_logprobs == "engine":
        return method.needs_before_steps - {OLD_LOGP}
    return method.needs_before_steps | {OLD_LOGP} if several or method.states else method.needs_before_steps


def compute_advantages(batch: Batch, method: Method) -> Batch:
    """Apply a method's shaping, advantage, mask and credit: rewards, then advantages per sample, then per token.

    Statistics over samples have all samples but further conversations of an episode, which follow its answer. Those
    over tokens, in credit, have the tokens that the masks keep; only a mask that reads the advantage runs after credit.
    """
    compared, leader = compared_samples(batch)
    reward = torch.zeros_like(compared.verdict_score)
    for part in method.shaping:
        reward = part(reward, compared)
    compared = compared.having(reward=reward)
    x = reward
    for part in method.advantage:
        x = part(x, compared)
    if leader is not None:
        reward, x = reward[leader], x[leader]
    batch = batch.having(reward=reward)
    batch = keep(batch, [mask for mask in method.mask if not reads_advantage(mask)])
    for name, target in method.value_targets:
        batch = batch.having(measures={Return(name): target(x, batch) + batch[Value(name)].to(x.dtype)})
    batch = batch.having(advantage=method.credit(x, batch))
    return keep(batch, [mask for mask in method.mask if reads_advantage(mask)])


def compared_samples(batch: Batch) -> tuple[Batch, Tensor | None]:
    """The samples that are compared, and for each sample of the batch the index of the one whose advantage it gets.

    These are all samples, and None, but for agents: a further conversation of an episode (the role `thread`) gets the
    reward and the advantage of its episode's answer. If a filter has dropped that, the episode's first conversation is
    compared in its place.
    """
    if all(sample.role != THREAD for sample in batch.samples):
        return batch, None
    keys = batch.episode_keys
    first: dict[Any, int] = {keys[i]: i for i, sample in enumerate(batch.samples) if sample.role == "answer"}
    for i, sample in enumerate(batch.samples):
        if sample.role == THREAD:
            first.setdefault(keys[i], i)
    chosen = [i for i, sample in enumerate(batch.samples) if sample.role != THREAD or first[keys[i]] == i]
    order = {i: at for at, i in enumerate(chosen)}
    leader = [order[i] if i in order else order[first[keys[i]]] for i in range(len(batch))]
    compared = batch.take(chosen)
    compared = compared.having(groups=Segments(answer_groups(compared), compared.groups.count))
    return compared, torch.tensor(leader, dtype=torch.long, device=batch.verdict_score.device)


def answer_groups(batch: Batch) -> Tensor:
    """The group of each sample, where a further conversation of an episode is in the group of its prompt's answers."""
    index = batch.groups.index.tolist()
    rollouts = batch.rollouts.index.tolist()
    answers = {(rollouts[g], s.group): g for g, s in zip(index, batch.samples, strict=True) if s.role == "answer"}
    merged = [
        answers.get((rollouts[g], s.group), g) if s.role == THREAD else g
        for g, s in zip(index, batch.samples, strict=True)
    ]
    return torch.tensor(merged, dtype=torch.long, device=batch.verdict_score.device)


def reads_advantage(mask: Mask) -> bool:
    """Whether a mask, or a component in its fields, declares that it reads the advantage."""
    return any(getattr(part, "reads_advantage", False) for part in with_fields((mask,)))


def keep(batch: Batch, masks: Sequence[Mask]) -> Batch:
    """The batch without the tokens that the masks remove, one mask after the other."""
    for mask in masks:
        batch = batch.keep(mask(batch))
    return batch


def due(every: int, done: int, last: int) -> bool:
    """Whether a periodic action is due: after every `every`-th iteration (0: never), and after the last."""
    return done == last or (every > 0 and done % every == 0)
