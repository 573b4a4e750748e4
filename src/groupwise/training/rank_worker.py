"""Several ranks of a run: rank 0 starts the others, unless they are given, and each of them follows its messages.

    python -m groupwise.training.rank_worker SETTINGS

A follower samples nothing and writes nothing. It holds a copy of the learner, gets its microbatches of each optimizer
step, and takes the same steps. It ends when rank 0 ends.
"""

import json
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from groupwise.cluster.external import ExternalProcesses, ExternalRank
from groupwise.cluster.local import LocalProcesses
from groupwise.cluster.network_interface import interface_towards
from groupwise.cluster.processes import CLOSING, GRACE, NamedProcesses
from groupwise.cluster.rank_messages import (
    message,
    read_message,
    received_recipe,
    recipe_of_followers,
    save_shard,
    start_message,
)
from groupwise.cluster.rank_work_thread import waits_reported
from groupwise.cluster.ray import ProcessResources, node_address
from groupwise.cluster.ray_ranks import RayProcesses
from groupwise.config.recipe import Cluster, Machine, Recipe
from groupwise.config.resolve_devices import find_device
from groupwise.config.user_code import Permissions, UserCode, load_use
from groupwise.core import GroupwiseError, Usage, WorkerLost
from groupwise.data import NeededMeasure, Return
from groupwise.engines.remote.replica_devices import gpu_count, rank_devices, visible_device
from groupwise.learner import Learner, ReplicatedRanks, SingleProcess
from groupwise.learner.distributed import CPU, START, ConnectionClosed
from groupwise.learner.rank_pulse import RankPulse, SilentRanks, Store
from groupwise.learner.rank_store import (
    LOOPBACK,
    TCPStore,
    call_ranks,
    host_store,
    join_store,
    release_ranks,
    wait_for_call,
)
from groupwise.methods import Method, ScheduleInput
from groupwise.models.return_freed_memory import return_freed_memory
from groupwise.runs.checkpoints import Checkpoint, read_checkpoint
from groupwise.runs.run_layout import RunLayout
from groupwise.training.build_run import RunObjects, new_learner, policy_outline, read_policy
from groupwise.training.stored_answer_evaluation import IsLikeliestToken, method_of

MODULE = __name__
"""The module of the program of a rank. Rank 0 imports it, so this is not `__main__`."""


@dataclass(slots=True)
class RankRendezvous:
    """The rendezvous of a run's ranks: their store, the address of its host, and the pulse of rank 0."""

    store: Store | None
    store_host: str
    pulse: RankPulse

    def close(self) -> None:
        """Close the store, once the ranks are closed too."""
        if self.store is not None:
            release_ranks(self.store)
        self.store = None


@contextmanager
def rank_store(recipe: Recipe, layout: RunLayout) -> Iterator[RankRendezvous | None]:
    """A context in which other ranks can reach rank 0, this process; None with one rank.

    External ranks wait there from their start, while rank 0 reads its data. Restarted by torchrun, it finds the run.
    """
    cluster = recipe.cluster
    if cluster.ranks == 1:
        yield None
        return
    if cluster.launch == "external":
        external = ExternalRank.read(cluster.ranks)
        if external.rank:
            what = f"this process is rank {external.rank}, and only rank 0 samples and writes"
            raise Usage(what, fix="start each rank by the command groupwise train or groupwise resume")
        external.record_run(layout.run_directory, cluster.ranks, cluster.deadline)
        store, host = external.store(cluster.ranks, cluster.deadline), external.store_host
    else:
        host = node_address() if cluster.launch == "ray" else LOOPBACK
        store = host_store(cluster.ranks, host)
    pulse = RankPulse(store, 0, cluster.ranks, cluster.deadline)
    meeting = RankRendezvous(store, host, pulse)
    del store  # an error that is kept holds this frame
    try:
        with pulse:
            yield meeting
    finally:
        meeting.close()


@contextmanager
def several_ranks(
    layout: RunLayout,
    objects: RunObjects,
    learner: Learner | None,
    meeting: RankRendezvous | None,
    checkpoint: Checkpoint | None,
    notify: Callable[[str], None],
) -> Iterator[Learner]:
    """A context with the learner, in which the other ranks of the run share its steps.

    A sharded learner starts in it, from the `checkpoint` if there is one. `WorkerLost` names a rank that died, with its
    last lines, or that did not answer; `notify` gets a line about each long wait for a rank.
    """
    cluster = objects.recipe.cluster
    if meeting is None or meeting.store is None:
        assert learner is not None, "only several ranks hold shards"
        yield learner
        return
    call_ranks(store := meeting.store)
    with interface_towards(meeting.store_host), processes_of(layout, objects, meeting) as processes:
        late = partial(late_ranks, store, cluster.ranks)
        processes.wait_for(late, START.total_seconds(), notify)
        kind = kind_of_ranks(cluster.sharded)
        device = find_device(objects.recipe.machine)
        ranks = kind(store, meeting.pulse, cluster.reduction_lanes, deadline=cluster.deadline, device=device)
        try:
            with waits_reported(ranks, notify):
                learner = start(objects, learner, ranks, checkpoint)
                yield learner
        except WorkerLost as error:
            raise named_by(processes, error) from error
        finally:
            if learner is not None and not cluster.sharded:
                learner.ranks = SingleProcess(cluster.reduction_lanes)
            ranks.close()


def late_ranks(store: Store, ranks: int) -> list[str]:
    """The names of the ranks above 0 that have not started."""
    return [f"rank {rank}" for rank in range(1, ranks) if not store.check([f"started/{rank}"])]


def processes_of(layout: RunLayout, objects: RunObjects, meeting: RankRendezvous) -> NamedProcesses:
    """The other ranks of a run, by its launcher."""
    cluster, device = objects.recipe.cluster, find_device(objects.recipe.machine)
    names = [f"rank {rank}" for rank in range(1, cluster.ranks)]
    if cluster.launch == "external":
        return ExternalProcesses(names, meeting.pulse)
    assert isinstance(meeting.store, TCPStore), "rank 0 hosts it"
    settings: dict[str, Any] = {"host": meeting.store_host, "port": meeting.store.port, "cluster": asdict(cluster)}
    settings |= {
        "use": list(objects.user_code.paths.values()),
        "trust_remote_code": objects.user_code.trust_remote_code,
        "device": device.type,
    }
    arguments = {name: ["-m", MODULE, json.dumps({"rank": i, **settings})] for i, name in enumerate(names, 1)}
    environment = {"TORCH_CPP_LOG_LEVEL": "ERROR"}
    if cluster.launch == "ray":
        return RayProcesses(arguments, environment, ProcessResources.of_process(objects.recipe))
    _, *others = rank_devices(cluster.ranks, str(device), gpu_count())
    return LocalProcesses(arguments, environment, layout.logs, own=dict(zip(names, map(visible_device, others))))


def kind_of_ranks(sharded: bool) -> type[ReplicatedRanks]:
    """The class of the ranks. Lazy: importing `ShardedRanks` takes a second."""
    if not sharded:
        return ReplicatedRanks
    from groupwise.learner.fsdp import ShardedRanks

    return ShardedRanks


def start(
    objects: RunObjects, learner: Learner | None, ranks: ReplicatedRanks, checkpoint: Checkpoint | None
) -> Learner:
    """Start the learner on all ranks: from rank 0's learner, or sharded from rank 0's model and the checkpoint."""
    recipe = recipe_of_followers(objects.recipe)
    if learner is not None:
        ranks.send(start_message(recipe, learner))
        learner.ranks = ranks
        return learner
    ranks.send(message({"recipe": recipe, "checkpoint": str(checkpoint.path.absolute()) if checkpoint else ""}))
    learner = objects.new_learner(ranks)
    if checkpoint:
        learner.restore(checkpoint.tensors(), checkpoint.state["learner"])
    return learner


def named_by(processes: NamedProcesses, error: WorkerLost) -> WorkerLost:
    """The end of the process that caused an error; if none has ended, the error with what the processes printed.

    A killed rank has ended when its pulse is missed. External ranks show their pulses alone, which the error has read.
    """
    silent = isinstance(error, SilentRanks)
    patience = 0.0 if silent else CLOSING if isinstance(error, ConnectionClosed) else GRACE
    known = silent and isinstance(processes, ExternalProcesses)
    if not known and (cause := processes.cause(patience)):
        return WorkerLost(cause.what, evidence=f"{cause.evidence}\n{error.what}", fix=error.fix)
    printed = [text for name, lines in processes.printed().items() if lines for text in (f"{name} printed:", *lines)]
    return WorkerLost(error.what, evidence="\n".join([error.evidence, *printed]), fix=error.fix)


def follow(ranks: ReplicatedRanks, use: UserCode) -> None:
    """Take the optimizer steps of a run until rank 0 ends."""
    if (content := ranks.receive()) is None:
        return
    header, tensors = read_message(content)
    recipe = received_recipe(header, use)
    torch.set_num_threads(recipe.machine.threads)
    learner = follower(recipe, use, ranks)
    if not ranks.shards:
        learner.restore(tensors, header["learner"])
    elif header["checkpoint"]:
        checkpoint = read_checkpoint(Path(header["checkpoint"]))
        learner.restore(checkpoint.tensors(), checkpoint.state["learner"])
    method = recipe.method
    while (content := ranks.receive()) is not None:
        return_freed_memory()
        header, tensors = read_message(content)
        if header["do"] == "iteration":
            learner.method_states = header["method_states"]
            method = recipe.method.at(ScheduleInput(header["iteration"], recipe.iterations, learner.method_states))
        elif header["do"] == "held_out":
            learner.method_states = header["method_states"]
            method = method_of(recipe, learner)
        elif header["do"] == "weights":
            learner.weights(header["names"])
        elif header["do"] == "score":
            learner.score(tuple(header["context"]), tuple(header["tokens"]))
        elif header["do"] == "save":
            save_shard(learner, Path(header["directory"]))
        else:
            learner.follow(header, tensors, method.objective, method.auxiliary_losses, batch_measures(method))


def batch_measures(method: Method) -> set[NeededMeasure]:
    """The measures that a method's batch may have, and those of held-out answers."""
    returns = {Return(name) for name, _ in method.value_targets}
    return {*method.needs, *returns, IsLikeliestToken()}


def follower(recipe: Recipe, use: UserCode, ranks: ReplicatedRanks) -> Learner:
    """The learner of a rank above 0. Shards of a decoder need no whole model, and read others in the host's memory."""
    model = policy_outline(recipe) if ranks.shards else None
    device = CPU if ranks.shards else ranks.device
    return new_learner(model or read_policy(recipe, use, device), recipe, ranks)


def follow_external(recipe: Recipe, use: UserCode) -> bool:
    """Follow a run as one of its external ranks above 0, until rank 0 ends. False, at once, in any other process."""
    cluster = recipe.cluster
    if not (external := external_rank(cluster)) or not external.rank:
        return False
    device = external.device(str(find_device(recipe.machine)), gpu_count())
    store = external.store(cluster.ranks, cluster.deadline)
    others = [f"rank {rank}" for rank in range(cluster.ranks) if rank != external.rank]
    with RankPulse(store, external.rank, cluster.ranks, cluster.deadline) as pulse:
        try:
            join(store, external.store_host, pulse, cluster, use, torch.device(device))
        except WorkerLost as error:
            named = named_by(ExternalProcesses(others, pulse), error)
            place = f"rank 0 is at {external.store_host}:{external.store_port}"
            raise WorkerLost(named.what, evidence=f"{named.evidence}\n{place}", fix=named.fix) from error
    return True


def external_rank(cluster: Cluster) -> ExternalRank | None:
    """The rank of this process if its launcher is external; None with another launcher."""
    return ExternalRank.read(cluster.ranks) if cluster.launch == "external" and cluster.ranks > 1 else None


def join(store: Store, host: str, pulse: RankPulse, cluster: Cluster, use: UserCode, device: torch.device) -> None:
    """Join the ranks of a run on a device, and follow it until rank 0 ends.

    On its host, the kernel ends this process with rank 0, which its user may also stop and continue (Ctrl-Z).
    """
    patience = math.inf if cluster.launch == "local" else cluster.deadline
    if wait_for_call(store, patience):
        with interface_towards(host):
            kind, waits = kind_of_ranks(cluster.sharded), {"deadline": cluster.deadline, "patience": patience}
            follow(kind(store, pulse, cluster.reduction_lanes, **waits, device=device), use)


def main(settings: dict[str, Any]) -> int:
    """Join the run of these settings. Returns the exit code."""
    try:
        use = load_use(Permissions(use=settings["use"], trust_remote_code=settings["trust_remote_code"]))
        cluster = Cluster(**settings["cluster"])
        store = join_store(settings["port"], cluster.ranks, deadline=cluster.deadline, host=settings["host"])
        device = find_device(Machine(device=settings["device"]))  # of a GPU's host it sees that GPU alone
        with RankPulse(store, settings["rank"], cluster.ranks, cluster.deadline) as pulse:
            join(store, settings["host"], pulse, cluster, use, device)
    except GroupwiseError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.code
    return 0


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
