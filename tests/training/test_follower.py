"""Runs on several ranks: equal bits on 1, 2 and 4, also after kill -9 of a rank; and what is refused."""

import os
import re
import shutil
import signal
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from threading import Event, Thread, get_native_id
from types import FrameType
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

import groupwise as gw
from groupwise.checks.check_machine import check_sharding
from groupwise.cluster.local import LocalProcesses
from groupwise.cluster.rank_messages import message, read_message, recipe_of_followers, start_message
from groupwise.config.recipe import Cluster, Recipe
from groupwise.config.recipe_toml import read_recipe
from groupwise.config.resolve_devices import resolved
from groupwise.config.user_code import UserCode
from groupwise.core import BadData, InvalidValue, Usage, WorkerLost
from groupwise.engines import Served
from groupwise.inference import evaluate_model
from groupwise.learner import Learner, ReplicatedRanks, SingleProcess
from groupwise.learner.distributed import ConnectionClosed
from groupwise.learner.fsdp import ShardedRanks
from groupwise.learner.rank_pulse import SilentRanks
from groupwise.models import FlowShape
from groupwise.models.decoder.decoder import ModelSizes
from groupwise.runs.checkpoints import newest_checkpoint, shard_names
from groupwise.runs.run_layout import RunLayout
from groupwise.training import rank_worker
from groupwise.training.build_run import RunInputs, RunObjects, new_learner, read_policy
from groupwise.training.progress_output import ProgressPrinter
from groupwise.training.rank_worker import named_by
from groupwise.training.signal_watchdog import SignalWatchdog
from tests.processes import PATIENCE, state_of

LANES, ITERATIONS = 4, 3
DEADLINE = PATIENCE
SMALL = {
    "iterations": ITERATIONS, "prompts": 2, "method.group_size": 4, "method.minibatches": 1, "sampling.max_tokens": 12,
    "evaluate.problems": 2, "save.every": 1, "cluster.reduction_lanes": LANES, "cluster.deadline": DEADLINE,
    "machine.dtype": "bfloat16",
}  # fmt: skip
"""In bfloat16, whose checkpoints have masters: whole ranks hold weights beside them, and shards hold them alone."""


def files(run: Path) -> tuple[bytes, bytes]:
    """The last checkpoint's tensors, and the metrics."""
    layout = RunLayout(run)
    return (layout.checkpoint(ITERATIONS) / "tensors.safetensors").read_bytes(), layout.metrics.read_bytes()


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with four lanes in one process."""
    return gw.train(out=tmp_path_factory.mktemp("one"), **SMALL).directory


@pytest.fixture
def pids(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The processes of the ranks that a run has started, from rank 1 on."""
    started: list[int] = []
    enter = LocalProcesses.__enter__

    def entered(self: LocalProcesses) -> LocalProcesses:
        enter(self)
        started.extend(self.pids.values())
        return self

    monkeypatch.setattr(LocalProcesses, "__enter__", entered)
    return started


def wait_until_idle(pid: int) -> None:
    """Wait until for half a second no thread of the process has run, and of this one only the caller's.

    A starved thread of this process may still have something to send, for which an idle rank waits.
    """
    idle, end, own = 0, time.monotonic() + DEADLINE, get_native_id()
    while idle < 10 and time.monotonic() < end:
        tasks = [t for p in (pid, os.getpid()) for t in Path(f"/proc/{p}/task").iterdir() if t.name != str(own)]
        idle = idle + 1 if {state_of(task) for task in tasks} <= {"S", ""} else 0
        time.sleep(0.05)
    assert idle == 10, "the rank is still busy"


@pytest.mark.parametrize("shard", ["none", "full"])
def test_signals_end_a_run_whose_rank_is_stopped(
    shard: str, tmp_path: Path, pids: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first signal requests a stop, which needs the rank; the second ends the run before `cluster.deadline`.

    A replica is stopped while it learns, a shard while it saves. Before, rank 0 says that it waits.
    """
    lines: list[str] = []
    waits, first, over = Event(), Event(), Event()
    handle = SignalWatchdog._signal

    def interrupt() -> None:
        """Two signals, once rank 0 waits; together they would count as one. None after the run: it would end pytest."""
        for before in (waits, first):
            if before.wait(DEADLINE) and not over.is_set():
                os.kill(os.getpid(), signal.SIGINT)

    def said(self: ProgressPrinter, line: str) -> None:
        lines.append(line)
        if stopped and re.match(r"waiting for rank 1 for \d+ s: ", line):
            waits.set()

    def handled(self: SignalWatchdog, number: int, frame: FrameType | None) -> None:
        first.set()
        handle(self, number, frame)

    stopped: list[int] = []
    threads: list[Thread] = []

    def stop(run: gw.Run, line: dict) -> None:
        if line["iteration"] == 1:
            wait_until_idle(pids[0])  # it has posted its next receive: without one, gloo blocks rank 0 in its send
            os.kill(pids[0], signal.SIGSTOP)
            stopped.append(pids[0])
            threads.append(Thread(target=interrupt))
            threads[0].start()

    settings = SMALL | {"cluster.ranks": 2, "cluster.shard": shard}
    settings |= {"save.every": 1 if shard == "full" else 0}
    monkeypatch.setattr("groupwise.cluster.rank_work_thread.REPORT", 0.3)
    monkeypatch.setattr(ProgressPrinter, "notify", said)
    monkeypatch.setattr(SignalWatchdog, "_signal", handled)
    try:
        with pytest.raises(KeyboardInterrupt):
            gw.train(out=tmp_path, on_iteration=stop, **settings)
    finally:
        over.set()
        first.set()
        waits.set()
        for thread in threads:
            thread.join()
    assert any("groupwise resume" in line for line in lines)
    assert not Path(f"/proc/{pids[0]}").exists()


@pytest.mark.kill
@pytest.mark.t(49)
def test_a_run_on_two_ranks_whose_rank_is_killed_ends_on_four_with_the_bits_of_one(
    one: Path, tmp_path: Path, pids: list[int]
) -> None:
    def kill(run: gw.Run, line: dict) -> None:
        if line["iteration"] == 2:
            os.kill(pids[0], signal.SIGKILL)

    with pytest.raises(WorkerLost) as caught:
        gw.train(out=tmp_path, on_iteration=kill, **SMALL | {"cluster.ranks": 2})
    assert caught.value.what == "rank 1 was killed by SIGKILL" and "gw.resume" in caught.value.fix
    (run,) = tmp_path.iterdir()
    assert read_recipe(RunLayout(run).recipe).cluster == Cluster(ranks=2, reduction_lanes=LANES, deadline=DEADLINE)
    gw.resume(run, ranks=4)
    assert files(run) == files(one)
    assert len(pids) == 4 and not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.mark.parametrize("kind", [ConnectionClosed, WorkerLost])
def test_an_error_has_the_last_lines_of_a_rank_that_needs_long_to_end(
    kind: type[WorkerLost], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank on a busy machine has printed its error and closed its connection, and has yet to end."""
    for name in ("CLOSING", "GRACE"):
        monkeypatch.setattr(f"groupwise.training.rank_worker.{name}", 0.0)
    code = "print('no memory', flush=True); import time; time.sleep(600)"
    with LocalProcesses({"rank 1": ["-c", code], "rank 2": ["-c", "import time; time.sleep(600)"]}, {}) as processes:
        while not processes.printed()["rank 1"]:
            time.sleep(0.01)
        error = named_by(processes, kind("rank 0 waited for rank 1, which is gone", evidence="closed", fix="resume"))
    assert (error.what, error.fix) == ("rank 0 waited for rank 1, which is gone", "resume")
    assert error.evidence.splitlines() == ["closed", "rank 1 printed:", "no memory"]


def test_the_end_of_a_rank_that_gave_up_does_not_hide_the_rank_without_a_sign_of_life() -> None:
    """Rank 2 has ended because of rank 1, which is stopped, as its pulse shows."""
    what = "rank 0 waited for rank 1, which gives no sign of life: weights"
    with LocalProcesses({"rank 2": ["-c", f"exit({WorkerLost.code})"]}, {}) as processes:
        assert processes.cause(PATIENCE) is None and processes.deaths()
        assert named_by(processes, SilentRanks(what, evidence="closed", fix="resume")).what == what


def test_a_killed_rank_without_a_sign_of_life_is_named_with_its_signal_and_last_lines() -> None:
    """Its connections may stay open for longer than its pulse is missed."""
    what = "rank 0 waited for rank 1, which gives no sign of life: weights"
    code = "import os; print('a line', flush=True); os.kill(os.getpid(), 9)"
    with LocalProcesses({"rank 1": ["-c", code]}, {}) as processes:
        assert processes.cause(PATIENCE)
        error = named_by(processes, SilentRanks(what, evidence="closed", fix="resume"))
    assert (error.what, error.fix) == ("rank 1 was killed by SIGKILL", "resume")
    assert error.evidence.splitlines() == ["a line", what]


def tensors(run: Path) -> dict[str, Tensor]:
    checkpoint = newest_checkpoint(RunLayout(run))
    assert checkpoint is not None and checkpoint.iteration == ITERATIONS
    return dict(checkpoint.tensors())


@pytest.fixture(scope="module")
def killed_while_saving(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on two sharded ranks, of which one is killed when the checkpoint of iteration 2 is written."""
    out, pids = tmp_path_factory.mktemp("sharded"), []
    enter, send = LocalProcesses.__enter__, ShardedRanks.send

    def started(self: LocalProcesses) -> LocalProcesses:
        enter(self)
        pids.extend(self.pids.values())
        return self

    def sent(self: ShardedRanks, content: bytes, own: Sequence[bytes] = ()) -> None:
        if b'"save"' in content:
            draft = Path(read_message(content)[0]["directory"])
            if draft.name.endswith("000002"):
                os.kill(pids[0], signal.SIGKILL)
        send(self, content, own)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalProcesses, "__enter__", started)
        patch.setattr(ShardedRanks, "send", sent)
        with pytest.raises(WorkerLost) as caught:
            gw.train(out=out, **SMALL | {"cluster.ranks": 2, "cluster.shard": "full"})
    assert caught.value.what == "rank 1 was killed by SIGKILL"
    (run,) = out.iterdir()
    return run


@pytest.mark.t(49)
@pytest.mark.parametrize(
    ("ranks", "shard"),
    [(2, "full"), (1, "none"), *(pytest.param(n, s, marks=pytest.mark.slow) for n, s in ((2, "none"), (4, "full")))],
)
def test_a_sharded_run_whose_rank_is_killed_while_saving_ends_with_the_bits_of_one(
    one: Path, killed_while_saving: Path, tmp_path: Path, ranks: int, shard: Literal["none", "full"]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(killed_while_saving, run)
    layout = RunLayout(run)
    assert sorted(path.name for path in layout.checkpoints.iterdir()) == ["000000", "000001"]  # and no draft
    names = sorted(path.name for path in layout.checkpoint(1).iterdir())
    assert names == ["manifest.json", "state.json", *shard_names(2)]
    gw.resume(run, ranks=ranks, shard=shard)
    assert layout.metrics.read_bytes() == RunLayout(one).metrics.read_bytes()
    assert (layout.model / "model.safetensors").read_bytes() == (
        RunLayout(one).model / "model.safetensors"
    ).read_bytes()
    expected, found = tensors(one), tensors(run)
    assert expected.keys() == found.keys()
    assert [name for name, x in expected.items() if not torch.equal(x, found[name])] == []


@pytest.mark.slow
def test_no_rank_reads_a_whole_model_if_the_engines_are_elsewhere(
    one: Path, tmp_path: Path, pids: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 gathers a layer at a time for the engine, and writes the model from the last checkpoint.

    Rank 1 is killed while a layer of the second iteration's weights is gathered.
    """
    scored: list[bytes] = []
    send = ShardedRanks.send

    def sent(self: ShardedRanks, content: bytes, own: Sequence[bytes] = ()) -> None:
        if content.startswith(b'{"do": "weights"') and len(scored) == 2:
            os.kill(pids[0], signal.SIGKILL)
        scored.extend([content] * content.startswith(b'{"do": "score"'))
        send(self, content, own)

    monkeypatch.setattr("groupwise.training.build_run.read_model", None)
    monkeypatch.setattr("groupwise.training.build_run.read_policy", None)
    settings = SMALL | {"cluster.ranks": 2, "cluster.shard": "full", "engine": Served(replicas=1)}
    with monkeypatch.context() as patch, pytest.raises(WorkerLost) as caught:
        patch.setattr(ShardedRanks, "send", sent)
        gw.train(out=tmp_path, **settings)
    assert caught.value.what == "rank 1 was killed by SIGKILL"
    (run,) = tmp_path.iterdir()
    gw.resume(run)
    expected, found = tensors(one), tensors(run)
    assert [name for name, x in expected.items() if not torch.equal(x, found[name])] == []
    assert RunLayout(run).metrics.read_bytes() == RunLayout(one).metrics.read_bytes()
    assert (RunLayout(run).model / "model.safetensors").read_bytes() == (
        RunLayout(one).model / "model.safetensors"
    ).read_bytes()


def test_an_evaluation_with_the_recipe_of_sharded_ranks_has_a_whole_model(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[Recipe] = []

    def build(recipe: Recipe, use: UserCode, inputs: RunInputs) -> RunObjects:
        built.append(recipe)
        raise InterruptedError

    monkeypatch.setattr(evaluate_model, "build", build)
    recipe = read_recipe("cluster.ranks = 2\ncluster.shard = 'full'\nengine = { kind = 'Served' }\nmethod = 'grpo'")
    with pytest.raises(InterruptedError):
        evaluate_model.results_of_task(recipe, [], UserCode(), object.__new__(RunInputs))
    assert recipe.cluster.sharded and not built[0].cluster.sharded and built[0].engine == recipe.engine


def test_a_run_in_one_process_continues_on_sharded_ranks(one: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(one, run)
    shutil.rmtree(RunLayout(run).checkpoint(ITERATIONS))
    shutil.rmtree(RunLayout(run).model)
    gw.resume(run, ranks=2, shard="full")
    assert [path.name for path in RunLayout(run).logs.iterdir()] == ["rank-1.log"]
    expected, found = tensors(one), tensors(run)
    assert [name for name, x in expected.items() if not torch.equal(x, found[name])] == []
    assert RunLayout(run).metrics.read_bytes() == RunLayout(one).metrics.read_bytes()


@pytest.mark.parametrize(("text", "reason"), [("machine.compile = true", "compiled"), ("", "flow model")])
def test_runs_that_cannot_be_sharded(text: str, reason: str) -> None:
    recipe = read_recipe(f"cluster.ranks = 2\ncluster.shard = 'full'\nmethod = 'grpo'\n{text}")
    kind = ModelSizes if text else partial(FlowShape, state_shape=(2,), prompt_vocabulary=2, prompt_length=1, width=2)
    sizes = kind(vocabulary_size=5, layers=1, kv_heads=1, head_dim=2, max_positions=9)
    with pytest.raises(Usage, match="cannot be sharded") as caught:
        check_sharding(recipe, sizes)
    assert reason in caught.value.evidence and "--cluster.shard none" in caught.value.fix
    check_sharding(read_recipe(f"cluster.ranks = 2\nmethod = 'grpo'\n{text}"), sizes)
    if not text:  # such as a mixture of experts in the modules of transformers
        check_sharding(recipe, ModelSizes(vocabulary_size=5, layers=1, kv_heads=1, head_dim=2, max_positions=9))


def test_other_ranks_need_no_consent_and_other_lanes_do(one: Path) -> None:
    with pytest.raises(InvalidValue, match="3 ranks do not divide 4 lanes"):
        gw.resume(one, ranks=3)
    recipe = RunLayout(one).recipe
    text = recipe.read_text()
    try:
        recipe.write_text(text.replace("ranks = 1", "ranks = 2"))
        gw.resume(one)  # nothing is left to do, so no rank is started
        recipe.write_text(text.replace("lanes = 4", "lanes = 8"))
        with pytest.raises(BadData) as caught:
            gw.resume(one)
        assert caught.value.evidence == "recipe.cluster.reduction_lanes: 4 -> 8"
    finally:
        recipe.write_text(text)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"ranks": 3}, "ranks is 3: the gradients"),
        ({"reduction_lanes": 3}, "lanes is 3"),
        ({"ranks": 4, "reduction_lanes": 2}, "4 ranks do not divide 2 lanes"),
        ({"deadline": 0.0}, "deadline must be above 0"),
        ({"ranks": 0}, "ranks is 0"),
    ],
)
def test_settings_that_are_refused(fields: dict[str, float], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Cluster(**fields)


def test_more_ranks_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from groupwise.checks import check_machine

    monkeypatch.setattr(check_machine, "find_device", lambda machine: torch.device("cuda"))
    monkeypatch.setattr(check_machine, "machine_line", lambda machine: "")
    recipe = read_recipe("cluster.ranks = 2\nmethod = 'grpo'")
    (error,) = check_machine.check_machine(recipe, UserCode(), train=True).errors
    assert isinstance(error, Usage) and "this host has 0 GPUs" in error.what and "lower it" in error.fix


def test_other_ranks_need_no_function_in_memory() -> None:
    use = UserCode(functions_in_memory={"grade": lambda answer: 1.0})
    text = "cluster.ranks = 2\nmethod = 'grpo'\nverifier = { kind = 'Function', name = 'grade' }\n"
    with pytest.raises(Usage):
        read_recipe(text)
    assert read_recipe(recipe_of_followers(read_recipe(text, (), use))).cluster.ranks == 2


class Told(ReplicatedRanks):
    """The ranks as a rank above 0 sees them, with the messages that it will receive."""

    def __init__(self, *contents: bytes) -> None:
        self.device, self.contents = torch.device("cpu"), [*contents, None]

    def receive(self) -> bytes | None:
        return self.contents.pop(0)


def test_a_schedule_reaches_the_other_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    ramp = '{ "objective.surrogate.high" = { kind = "LinearRamp", start_value = 0.2, end_value = 0.4, '
    ramp += "over_iterations = 4 } }"
    recipe = resolved(read_recipe("cluster.ranks = 2\nmethod = 'grpo'", [("method.schedules", ramp)]))
    policy = read_policy(recipe, UserCode(), torch.device("cpu"))
    learner = new_learner(policy, recipe, SingleProcess(2))
    seen: list[Any] = []
    monkeypatch.setattr(rank_worker, "follower", lambda *_: learner)
    monkeypatch.setattr(Learner, "follow", lambda self, header, tensors, objective, *_: seen.append(objective))
    begins = message({"do": "iteration", "iteration": 2, "method_states": {"a": 1.0}})
    told = Told(start_message(recipe_of_followers(recipe), learner), begins, message({"do": "step"}))
    rank_worker.follow(told, UserCode())
    assert [objective.surrogate.high for objective in seen] == [pytest.approx(0.3)]
    assert learner.method_states == {"a": 1.0}


def test_a_message_is_json_and_tensors() -> None:
    header, tensors = read_message(message({"text": "a\nb", "x": float("inf")}, {"w": torch.ones(2)}))
    assert header == {"text": "a\nb", "x": float("inf")} and tensors["w"].tolist() == [1.0, 1.0]
    cut = message({"x": 1}, {"w": torch.ones(2)})[:-1]
    for content in (b"no JSON\n", b"[1]\n", message({}) + b"no tensors", cut):
        with pytest.raises(BadData, match="a message of rank 0 cannot be read") as caught:
            read_message(content)
        assert "one version of groupwise" in caught.value.fix
