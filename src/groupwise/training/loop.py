"""The loop: draws to rollouts, rollouts to a batch, the batch to new weights, and all of it written down."""

from collections.abc import Awaitable, Callable, Sequence

import torch

from groupwise.config.recipe import Recipe
from groupwise.config.text import at
from groupwise.data import LARGEST_GAP, Batch, Engine, Logp, Measure, couples
from groupwise.learner import Learner, StepPlan, StepResult, make_plan, measure_plan
from groupwise.methods import Method
from groupwise.models import Purpose, permutation
from groupwise.rollout import Buffer
from groupwise.training.guards import Guards
from groupwise.training.observe import engine_sampled
from groupwise.training.recorder import Recorder

OLD = Logp("policy")


async def run(
    recipe: Recipe,
    buffer: Buffer,
    engine: Engine,
    learner: Learner,
    logbook: Recorder,
    guards: Guards,
    evaluate: Callable[[], Awaitable[dict[str, float]]],
) -> None:
    """One run, from where the logbook stands to `recipe.iterations`, or to where somebody asked it to stop."""
    await engine.load(learner.version, learner.weights())
    if logbook.done < 0:
        logbook.evaluation(await evaluate())
        logbook.save(learner, buffer, guards)
    while logbook.done < recipe.iterations and not logbook.stopping:
        iteration = logbook.done
        method = at(recipe.method, iteration)
        with logbook.phase("sample"):
            collected = await logbook.unless_stopped(
                buffer.take(recipe.prompts, method.group_size, method.strategy, method.filter, method.refill)
            )
        if collected is None:
            break
        guards.check_verdicts(*collected.unverifiable)
        guards.check_signal(len(collected.selected), collected.causes)
        batch = buffer.pack(collected.selected, version=learner.version)
        taken: list[StepResult] = []
        with logbook.phase("learn"):
            if len(batch):
                batch, taken = learn(recipe, method, learner, batch, iteration)
        line = logbook.iteration(collected, batch, taken, method.objective)
        guards.check_steps([t.skipped for t in taken], str(logbook.dumps))
        if engine_sampled(taken):
            guards.check_gap(line[LARGEST_GAP])
        if taken:
            learner.remember(batch, line)
        await engine.load(learner.publish(), learner.weights())
        if due(recipe.evaluate.every, iteration + 1, recipe.iterations):
            with logbook.phase("evaluate"):
                line |= await evaluate()
        logbook.write(line)
        if due(recipe.save.every, iteration + 1, recipe.iterations):
            logbook.save(learner, buffer, guards)


def learn(
    recipe: Recipe, method: Method, learner: Learner, batch: Batch, iteration: int
) -> tuple[Batch, list[StepResult]]:
    """An iteration's optimizer steps, and the batch with all that was computed on the way."""
    plans = [plan(recipe, method, batch, iteration, sweep) for sweep in range(method.epochs)]
    written = method.proximal == "sampled" and bool(batch.logp_engine.isnan().any())  # by no engine
    wanted = measures(method, plans) | ({OLD} if written else frozenset())
    read = measure_plan(plans[0], batch, microbatch_tokens=recipe.machine.microbatch_tokens)
    batch = learner.compute_measures(batch, read, wanted, method.routing)
    if method.proximal == "sampled":
        sampled = batch.logp_engine.to(learner.dtype)
        batch = batch.having(logp_old=torch.where(sampled.isnan(), batch.logp_old, sampled) if written else sampled)
    batch = credited(batch, method)
    return batch, [learner.step(batch, step, method.objective, method.routing) for steps in plans for step in steps]


def plan(recipe: Recipe, method: Method, batch: Batch, iteration: int, sweep: int) -> tuple[StepPlan, ...]:
    """One sweep over the iteration, cut into steps and microbatches; its order is keyed by the run's seed."""
    return make_plan(
        batch,
        size=recipe.prompts // method.minibatches,
        shuffle=method.shuffle,
        permutation=lambda n: permutation((recipe.seed, Purpose.SHUFFLE), iteration, sweep, n).tolist(),
        microbatch_tokens=recipe.machine.microbatch_tokens,
        couples=couples(method.objective),
    )


def measures(method: Method, plans: Sequence[Sequence[StepPlan]]) -> frozenset[Measure]:
    """What must be read before the first step. One step alone sees the old policy in its own forward."""
    several = sum(map(len, plans)) > 1
    if method.proximal == "sampled":
        return method.needs - {OLD}
    return method.needs | {OLD} if several or method.memory else method.needs


def credited(batch: Batch, method: Method) -> Batch:
    """Verdicts to a reward, a number a sample, a number a token; masked tokens leave."""
    reward = torch.zeros_like(batch.score)
    for part in method.shaping:
        reward = part(reward, batch)
    batch = batch.having(reward=reward)
    x = reward
    for part in method.advantage:
        x = part(x, batch)
    batch = batch.having(advantage=method.credit(x, batch))
    for part in method.mask:
        batch = batch.keep(part(batch))
    return batch


def due(every: int, done: int, last: int) -> bool:
    """After every `every`-th iteration (0: none between), and always after the last."""
    return done == last or (every > 0 and done % every == 0)
