"""What this version refuses to run on several devices, and why: checks raise it, and a plan marks its splits."""

from groupwise.config.recipe import Recipe
from groupwise.engines import Speculative, Vllm
from groupwise.models import ClassifierShape, DecoderShape
from groupwise.models.decoder.decoder import ModelSizes
from groupwise.planning.read_model_shape import MixtureOfExpertsShape


def sharding_obstacles(recipe: Recipe, shape: ModelSizes) -> list[str]:
    """Why the learner cannot be sharded over ranks with the bits of replicas; empty if it can."""
    reasons = {
        "compiled layers do not gather weights": recipe.machine.compile,
        "weights in 4 bits have no rows that ranks could hold": recipe.machine.quantization is not None,
        f"the layers of a {shape.kind_label} are not gathered by all ranks in one order": (
            shape.kind_name not in (ModelSizes.kind_name, ClassifierShape.kind_name)
        ),
    }
    return [reason for reason, applies in reasons.items() if applies]


def split_obstacle(recipe: Recipe, shape: DecoderShape, *, learners: int, split: int, together: bool) -> str:
    """Why this version does not run a split of the devices; empty if it does.

    `learners` share the weights, each engine spans `split` devices, and `together` all devices sample and learn.
    """
    if learners & (learners - 1):
        return "the number of ranks is a power of two"
    if learners > 1 and (obstacles := sharding_obstacles(recipe, shape)):
        return obstacles[0]
    if split > 1 and not isinstance(recipe.engine, Vllm):
        return "only engines of vLLM compute on several devices"
    if learners == 1 and together:
        return ""
    if isinstance(recipe.engine, Speculative):
        return "the engine Speculative samples in the learner's process only"
    if isinstance(shape, MixtureOfExpertsShape):
        return "engines in other processes do not run modules of transformers"
    if recipe.machine.quantization and not isinstance(recipe.engine, Vllm):
        return "native engines in other processes take no base in 4 bits"
    return ""


def hosts_obstacle(recipe: Recipe, *, hosts: int, host_devices: int, learners: int, split: int, together: bool) -> str:
    """Why this version does not run a split of the devices of several hosts; empty if it does, or for one host."""
    if hosts == 1:
        return ""
    if together:
        return "engines that free their memory for the learner are on its host"
    _, left = divmod(host_devices, split)
    if left:
        return f"engines of {split} devices do not fill hosts of {host_devices} devices"
    if learners > host_devices and learners % host_devices:
        return f"{learners} ranks do not fill hosts of {host_devices} devices"
    if recipe.lora is not None and not isinstance(recipe.engine, Vllm):
        return "engines on other hosts take an adapter merged, as those of vLLM do"
    return ""
