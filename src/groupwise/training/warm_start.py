"""The phase for which the table `warm_start` of a recipe is short."""

from groupwise.config.recipe import Cluster, Recipe, Save
from groupwise.config.task_sources import sources
from groupwise.methods.warm_start_method import warm_start_method


def warm_start_phase(recipe: Recipe) -> Recipe | None:
    """The recipe of the warm start, a phase of the method `sft`; None without a warm start.

    Its prompts have the template, system message and tools of the run's. One process trains it, in the lanes of the
    run, so that its bits do not depend on the run's ranks.
    """
    if (table := recipe.warm_start) is None:
        return None
    return Recipe(
        model=recipe.model,
        lora=recipe.lora,
        task=table.task,
        columns=table.columns,
        template=sources(recipe)[0].template,
        system=recipe.system,
        template_arguments=recipe.template_arguments,
        environment=recipe.environment,
        method=warm_start_method(),
        prompts=table.prompts,
        iterations=table.steps,
        seed=recipe.seed,
        sampling=recipe.sampling,
        optimizer=table.optimizer,
        machine=recipe.machine,
        cluster=Cluster(reduction_lanes=recipe.cluster.reduction_lanes),
        save=Save(every=table.save_every, keep=1),
    )
