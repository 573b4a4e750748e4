"""The messages of rank 0 to the other ranks of a run: a line of JSON, then safetensors. Nothing is pickled.

The field `do` of all but the first message is `iteration`, `held_out`, `weights` and `score` (those methods of
`Learner`), `save`, or one of the learner's own (`Learner.follow`).
"""

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors.torch import load
from torch import Tensor

from groupwise.cluster.rank_work_thread import interruptible
from groupwise.config.recipe import Recipe
from groupwise.config.recipe_toml import read_recipe, write
from groupwise.config.user_code import UserCode
from groupwise.learner import Learner, Ranks
from groupwise.learner.microbatch_sharing import readable
from groupwise.runs.checkpoints import OtherRankCheckpointShards, tensor_bytes, write_shard

SHARDS = "the shards of a checkpoint"
"""The name of the replies to `save`, in errors."""


def recipe_of_followers(recipe: Recipe) -> str:
    """The recipe for the other ranks, as TOML. It has no verifier: that may be a function in memory."""
    return write(replace(recipe, verifier=None, extra_tasks=()))


def received_recipe(header: Mapping[str, Any], use: UserCode) -> Recipe:
    """The recipe in the first message. `use` holds the loaded files that it names code from."""
    return read_recipe(header["recipe"], (), use)


def start_message(recipe: str, learner: Learner) -> bytes:
    """The recipe as TOML, and the state of the learner, from which the other ranks continue."""
    tensors, state = learner.state()
    return message({"recipe": recipe, "learner": state}, tensors)


def send_iteration(learner: Learner, iteration: int) -> None:
    """Tell the other ranks, if there are any, that an iteration begins. The learner sends them its microbatches."""
    learner.sharing.tell(do="iteration", iteration=iteration, method_states=learner.method_states)


def send_held_out(learner: Learner) -> None:
    """Tell the other ranks, if there are any, that measures of held-out answers come next."""
    learner.sharing.tell(do="held_out", method_states=learner.method_states)


def other_shards(ranks: Ranks) -> OtherRankCheckpointShards:
    """The shards of a checkpoint that the other ranks write."""
    if not ranks.shards:
        return OtherRankCheckpointShards()
    from groupwise.learner.fsdp import ShardedRanks  # late: the import takes a second

    assert isinstance(ranks, ShardedRanks)

    def ask(draft: Path) -> list[dict[str, Any]]:
        ranks.send(message({"do": "save", "directory": str(draft.absolute())}))
        return ranks.replies({}, SHARDS)[1:]

    def write(draft: Path) -> dict[str, Mapping[str, Any]]:
        replies = interruptible(lambda: ask(draft))
        for reply in replies:
            if "errno" in reply:
                raise OSError(reply["errno"], os.strerror(reply["errno"]), str(draft))
        return {reply.pop("name"): reply for reply in replies}

    return OtherRankCheckpointShards(ranks.size - 1, write)


def save_shard(learner: Learner, directory: Path) -> None:
    """Write this rank's shard of a checkpoint, and reply to rank 0, whose shard has the tensors without rows."""
    from groupwise.learner.fsdp import ShardedRanks

    ranks, (tensors, _) = learner.ranks, learner.state()
    assert isinstance(ranks, ShardedRanks)
    try:
        rows = {name: x for name, x in tensors.items() if x.ndim}
        reply = write_shard(directory, ranks.rank, ranks.size, rows)
    except OSError as error:
        reply = {"errno": error.errno}
    ranks.replies(reply, SHARDS)


def message(header: Mapping[str, Any], tensors: Mapping[str, Tensor] | None = None) -> bytes:
    """A message as bytes: a JSON object, and tensors.

    >>> read_message(message({"iteration": 3}))
    ({'iteration': 3}, {})
    """
    return json.dumps(header).encode() + b"\n" + (tensor_bytes(tensors) if tensors else b"")


def read_message(content: bytes) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The JSON object and the tensors of a message. `BadData` for other bytes."""
    header, _, tensors = content.partition(b"\n")
    with readable():
        return dict(json.loads(header)), load(tensors) if tensors else {}
