"""Notes about side models that an objective takes for the policy which generated the samples."""

from groupwise.config.recipe import Recipe
from groupwise.data import sampled_by
from groupwise.learner import SamplingPolicy


def outdated_sampling_policy(recipe: Recipe) -> list[str]:
    """A note for each side model that should be the policy which generated the samples, and may differ from it."""
    models = dict(recipe.method.models_in_use)
    lines = []
    for name in sorted(sampled_by(recipe.method.objective) & models.keys()):
        path = f"method.models.{name}"
        if not isinstance(models[name], SamplingPolicy):
            reason, fix = f"{models[name]} may differ from it", f"set {path} to SamplingPolicy()"
        elif recipe.cluster.max_staleness:
            reason, fix = (
                "with cluster.max_staleness the samples come from older weights than its copy",
                "set cluster.max_staleness to 0",
            )
        else:
            continue
        lines.append(f"  note: the objective takes {path} for the policy that sampled, but {reason}; {fix}")
    return lines
