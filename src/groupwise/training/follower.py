"""Several ranks of a run on this host: rank 0 starts the others, and each of them follows its messages.

    python -m groupwise.training.follower SETTINGS

A follower samples nothing and writes nothing. It holds a copy of the learner, gets the rollouts of each iteration, and
takes the same optimizer steps. It ends when rank 0 ends.
"""

import json
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from groupwise.cluster.local import GRACE, LocalProcesses
from groupwise.config.recipe import Recipe
from groupwise.config.text import at, read_recipe, write
from groupwise.config.user_code import Permissions, Use, load_use
from groupwise.data import GroupwiseError, Rollout, WorkerLost, pack
from groupwise.data.rollout_json import rollout_from_json
from groupwise.learner import Alone, Learner, Ranks, Replicas
from groupwise.learner.ranks import START, host_store, join_store
from groupwise.methods import Now
from groupwise.models.freed_memory import return_freed_memory
from groupwise.rollout.buffer import with_rule
from groupwise.runs.checkpoints import Checkpoint, read_checkpoint
from groupwise.training.build import Runtime, find_device, new_learner, policy_outline, read_policy
from groupwise.training.loop import learn
from groupwise.training.messages import message, parts, save_part, start_message

MODULE = "groupwise.training.follower"


@contextmanager
def several_ranks(ready: Runtime, checkpoint: Checkpoint | None = None) -> Iterator[None]:
    """A context in which the other ranks of the recipe share the learner's steps. With one rank it does nothing.

    A sharded learner starts in it, from the `checkpoint` if there is one. `WorkerLost` names a rank that died, with its
    last lines, or that did not answer.
    """
    cluster = ready.recipe.cluster
    if cluster.ranks == 1:
        yield
        return
    store = host_store(cluster.ranks)
    settings = {"port": store.port, "size": cluster.ranks, "lanes": cluster.lanes, "deadline": cluster.deadline}
    settings |= {"sharded": cluster.sharded}
    settings |= {"use": list(ready.use.paths.values()), "trust_remote_code": ready.use.trust_remote_code}
    others = range(1, cluster.ranks)
    commands = {f"rank {rank}": ["-m", MODULE, json.dumps({"rank": rank, **settings})] for rank in others}
    os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback())
    with LocalProcesses(commands, {**os.environ, "TORCH_CPP_LOG_LEVEL": "ERROR"}) as processes:
        processes.wait_until(lambda: store.check([f"started/{rank}" for rank in others]), START.total_seconds())
        ranks = kind_of_ranks(cluster.sharded)(store, 0, cluster.ranks, cluster.lanes, deadline=cluster.deadline)
        try:
            start(ready, ranks, checkpoint)
            yield
        except WorkerLost as error:
            named_by(processes, error)
            raise
        finally:
            if not cluster.sharded:
                ready.learner.ranks = Alone(cluster.lanes)
            ranks.close()


def kind_of_ranks(sharded: bool) -> type[Replicas]:
    """The class of the ranks. Lazy: importing `Shards` takes a second."""
    if not sharded:
        return Replicas
    from groupwise.learner.shards import Shards

    return Shards


def start(ready: Runtime, ranks: Replicas, checkpoint: Checkpoint | None) -> None:
    """Start the learner on all ranks: from that of rank 0, or sharded from rank 0's model and the checkpoint."""
    recipe = recipe_of_followers(ready.recipe)
    if not ready.recipe.cluster.sharded:
        ranks.send(start_message(recipe, ready.learner))
        ready.learner.ranks = ranks
        return
    ranks.send(message({"recipe": recipe, "checkpoint": str(checkpoint.path.absolute()) if checkpoint else ""}))
    learner = ready.start_learner(ranks)
    if checkpoint:
        learner.restore(checkpoint.tensors(), checkpoint.state["learner"])


def recipe_of_followers(recipe: Recipe) -> str:
    """The recipe for the other ranks, as TOML. It has no verifier: that may be a function in memory."""
    return write(replace(recipe, verifier="", also=()))


def named_by(processes: LocalProcesses, error: WorkerLost) -> None:
    """Raise `WorkerLost` with the cause, if one of the processes has ended."""
    try:
        processes.check(GRACE)
    except WorkerLost as cause:
        raise WorkerLost(cause.what, evidence=cause.evidence, fix=error.fix) from error


def loopback() -> str:
    """The name of the network interface that only this host reaches."""
    names = [name for _, name in socket.if_nameindex()]
    return next((name for name in ("lo", "lo0") if name in names), names[0])


def follow(ranks: Replicas, use: Use) -> None:
    """Take the optimizer steps of a run until rank 0 ends."""
    if (content := ranks.receive()) is None:
        return
    header, tensors = parts(content)
    recipe = read_recipe(header["recipe"], (), use)
    torch.set_num_threads(recipe.machine.threads)
    learner = follower(recipe, use, ranks)
    if not ranks.shards:
        learner.restore(tensors, header["learner"])
    elif header["checkpoint"]:
        checkpoint = read_checkpoint(Path(header["checkpoint"]))
        learner.restore(checkpoint.tensors(), checkpoint.state["learner"])
    while (content := ranks.receive()) is not None:
        return_freed_memory()
        header, _ = parts(content)
        if header["do"] == "steps":
            learner.memories = header["memories"]
            rollouts = [rollout_from_json(data) for data in header["rollouts"]]
            steps(recipe, learner, rollouts, header["iteration"], header["version"])
        elif header["do"] == "weights":
            learner.weights()
        else:
            save_part(learner, Path(header["directory"]))


def follower(recipe: Recipe, use: Use, ranks: Ranks) -> Learner:
    """The learner of a rank above 0. Shards need no weights: they come from rank 0 and the checkpoint."""
    model = policy_outline(recipe) if ranks.shards else None
    return new_learner(model or read_policy(recipe, use, find_device(recipe.machine)), recipe, ranks)


def steps(recipe: Recipe, learner: Learner, rollouts: list[Rollout], iteration: int, version: int) -> None:
    """Take the steps of one iteration, as rank 0 does."""
    method = at(recipe.method, Now(iteration, recipe.iterations, learner.memories))
    batch = with_rule(pack(rollouts, version=version, roles=recipe.method.trains), recipe.method.unverifiable)
    learn(recipe, method, learner, batch, iteration)


def main(settings: dict[str, Any]) -> int:
    """Join the run of these settings. Returns the exit code."""
    try:
        use = load_use(Permissions(use=settings["use"], trust_remote_code=settings["trust_remote_code"]))
        rank, size, deadline = (settings[name] for name in ("rank", "size", "deadline"))
        store = join_store(settings["port"], size, deadline=deadline)
        ranks = kind_of_ranks(settings["sharded"])
        follow(ranks(store, rank, size, settings["lanes"], deadline=deadline), use)
    except GroupwiseError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.code
    return 0


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
