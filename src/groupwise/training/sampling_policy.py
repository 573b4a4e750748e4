"""Notes about side models that an objective takes for the policy which generated the samples."""

from groupwise.data import sampled_by
from groupwise.learner import EMA
from groupwise.methods import Method
from groupwise.rewards import everything


def outdated_sampling_policy(method: Method) -> list[str]:
    """A note for each side model that should be the policy which generated the samples, and is not.

    It is, if it is copied from the policy after the last optimizer step of every iteration, and only then.
    """
    steps, models = method.minibatches * method.epochs, dict(method.models_in_use)
    lines = []
    for name in sorted(sampled_by(method.objective) & models.keys()):
        model, path = models[name], f"method.models.{name}"
        if not isinstance(model, EMA):
            reason, fix = f"{model} does not follow it", f"replace it by EMA(keep=0, every={steps})"
        elif model.keep > 0:
            reason, fix = f"{model} averages it", f"set {path}.keep to 0"
        elif model.every != steps:
            reason = f"{model} is a copy after every {model.every} steps, and an iteration has {steps}"
            fix = f"set {path}.every to {steps}"
        elif steps > 1 and method.filter is not everything:
            reason, fix = "an iteration has fewer steps if the filter drops prompts", "set method.filter to everything"
        else:
            continue
        lines.append(f"  note: the objective takes {path} for the policy that sampled, but {reason}; {fix}")
    return lines
