"""The messages of rank 0 to the other ranks of a run: a line of JSON, then safetensors. Nothing is pickled."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from safetensors.torch import load
from torch import Tensor

from groupwise.data import Rollout
from groupwise.data.rollout_json import rollout_to_json
from groupwise.learner import Learner, Replicas
from groupwise.runs.checkpoints import tensor_bytes


def start_message(recipe: str, learner: Learner) -> bytes:
    """The recipe as TOML, and the state of the learner, from which the other ranks continue."""
    tensors, state = learner.state()
    return message({"recipe": recipe, "learner": state}, tensors)


def send_iteration(learner: Learner, rollouts: Sequence[Rollout], iteration: int) -> None:
    """Send the rollouts of an iteration to the other ranks, if there are any, which then take its optimizer steps."""
    if isinstance(learner.ranks, Replicas):
        plain = [rollout_to_json(rollout) for rollout in rollouts]
        header = {"iteration": iteration, "version": learner.version, "memories": learner.memories, "rollouts": plain}
        learner.ranks.send(message(header))


def message(header: Mapping[str, Any], tensors: Mapping[str, Tensor] | None = None) -> bytes:
    """A message from its two parts.

    >>> parts(message({"iteration": 3}))
    ({'iteration': 3}, {})
    """
    return json.dumps(header).encode() + b"\n" + (tensor_bytes(tensors) if tensors else b"")


def parts(content: bytes) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The JSON object and the tensors of a message."""
    header, _, tensors = content.partition(b"\n")
    return json.loads(header), load(tensors) if tensors else {}
