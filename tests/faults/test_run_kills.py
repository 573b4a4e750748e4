"""A run killed at any instant, and resumed, ends with the same bits as a run never killed."""

import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from groupwise.commands import train as commands
from groupwise.commands.train import run_from
from groupwise.config.recipe import Recipe, WarmStart
from groupwise.data import Prompt, Sample, Verdict
from groupwise.learner import AdamW, Learner, Routing
from groupwise.models import Lora, find_model, read_model, read_tokenizer, write_model
from groupwise.rollout.rows import Rows
from groupwise.tasks import demonstrations
from groupwise.training.build import Runtime
from groupwise.training.recorder import Recorder
from tests.faults.small_runs import ADAPTER, EVERY, HALF, SECOND, Quick, alive, begun, forked, left, lines, ready
from tests.models.mixtures import trainable
from tests.models.plain import made

Point = tuple[str, int]
"""What happens, and for the how-manieth time."""


@dataclass
class Bell:
    """Rings at everything that happens in a run. The process dies at `death`."""

    death: Point | None = None
    seen: list[str] = field(default_factory=list)

    def ring(self, name: str) -> None:
        self.seen.append(name)
        if self.death and self.death == (name, self.seen.count(name)):
            os.kill(os.getpid(), signal.SIGKILL)

    def around(self, owner: Any, name: str, call: str | None = None) -> None:
        """Rings before and after each call of `owner.name`."""
        inner, call = getattr(owner, name), call or name

        def rung(*args: Any, **kwargs: Any) -> Any:
            self.ring(f"before {call}")
            result = inner(*args, **kwargs)
            self.ring(f"after {call}")
            return result

        setattr(owner, name, rung)


class Rung(Quick):
    """A disk that rings before each change, after it, and with half of the data written."""

    def __init__(self, bell: Bell) -> None:
        self.bell = bell

    def mkdir(self, path: Path) -> None:
        self.bell.ring("mkdir")
        super().mkdir(path)

    def write(self, path: Path, data: bytes) -> None:
        name = f"a sample's {path.suffix}" if path.name.startswith(".writing") else path.name
        super().write(path, data[: len(data) // 2])
        self.bell.ring(f"half of {name}")
        super().write(path, data)
        self.bell.ring(f"all of {name}")

    def append(self, path: Path, data: bytes) -> None:
        super().append(path, data[: len(data) // 2])
        self.bell.ring(f"half of a line of {path.name}")
        super().append(path, data[len(data) // 2 :])
        self.bell.ring(f"a line of {path.name}")

    def truncate(self, path: Path, size: int) -> None:
        self.bell.ring("truncate")
        super().truncate(path, size)

    def replace(self, source: Path, target: Path) -> None:
        self.bell.ring("before replace")
        super().replace(source, target)
        self.bell.ring("after replace")

    def remove(self, path: Path) -> None:
        super().remove(path)
        self.bell.ring("remove")


def run(directory: Path, place: Runtime, death: Point | None = None) -> list[str]:
    """In a fork: the run from where it stands to its end, or to its death. What happened on the way."""
    bell = Bell(death)
    for name in ("write", "save", "iteration", "restore"):
        bell.around(Recorder, name)
    bell.around(Learner, "step")
    bell.around(Learner, "read")
    bell.around(Rows, "tick", "a token")
    bell.around(Runtime, "write", "writing the model")
    bell.around(commands, "write_report")
    phase, evaluate, verifier = Recorder.phase, Runtime.evaluate, place.buffer.verifier

    @contextmanager
    def rung(self: Recorder, name: str) -> Iterator[None]:
        bell.ring(f"before {name}")
        with phase(self, name):
            yield
        bell.ring(f"after {name}")

    async def evaluated(self: Runtime) -> dict[str, float]:
        bell.ring("before evaluate")
        numbers = await evaluate(self)
        bell.ring("after evaluate")
        return numbers

    async def judged(prompt: Prompt, sample: Sample) -> Verdict:
        bell.ring("a verdict")
        return await verifier(prompt, sample)

    Recorder.phase, Runtime.evaluate, place.buffer.verifier = rung, evaluated, judged
    assert run_from(directory, place, disk=Rung(bell)) == 0
    return bell.seen


@dataclass
class Undisturbed:
    recipe: Recipe
    place: Runtime
    seen: list[str]
    left: dict[str, Any]
    seconds: float


def undisturbed(recipe: Recipe, home: Path) -> Undisturbed:
    """The run that nobody kills. Placed here once: all runs are forks that begin with these very weights."""
    place = ready(recipe)
    directory, told = begun(home / "undisturbed", recipe), home / "seen.json"
    began = time.monotonic()
    assert forked(lambda: told.write_text(json.dumps(run(directory, place))) and 0, home / "log") == 0
    seconds = time.monotonic() - began
    alive(directory, recipe)
    return Undisturbed(recipe, place, json.loads(told.read_text()), left(directory), seconds)


@pytest.fixture(scope="module")
def every(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    return undisturbed(EVERY, tmp_path_factory.mktemp("every"))


@pytest.fixture(scope="module")
def second(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    return undisturbed(SECOND, tmp_path_factory.mktemp("second"))


def go_on(directory: Path, straight: Undisturbed, death: Point | None = None) -> bool:
    """Run, or resume, in a fork; whether it died."""
    code = forked(lambda: run(directory, straight.place, death) and 0, directory.with_suffix(".log"))
    assert code in (0, -signal.SIGKILL), directory.with_suffix(".log").read_text()
    return code != 0


def points(seen: list[str], share: float) -> list[Point]:
    """Everything that happens in a run, each thing once: at `share` of its occurrences."""
    return [(name, 1 + int(share * (n - 1))) for name, n in Counter(seen).items() if name not in NEVER_ALONE]


NEVER_ALONE = {"before read", "after read", "mkdir", "remove"}  # beside a point that is tried


@pytest.mark.t(49)
def test_a_run_killed_at_any_event_ends_with_the_bits_of_one_never_killed(every: Undisturbed, tmp_path: Path) -> None:
    tried = points(every.seen, 0.6)
    assert len(tried) >= 30 and {"before sample", "after learn", "a verdict", "half of tensors.safetensors"} <= {
        name for name, _ in tried
    }
    for number, death in enumerate(tried):
        directory = begun(tmp_path / str(number), EVERY)
        assert go_on(directory, every, death), death
        if number % 4 == 0:  # and again, on the way back
            go_on(directory, every, ("before restore", 1))
        assert not go_on(directory, every)
        assert left(directory) == every.left, death
        alive(directory, EVERY)


@pytest.mark.t(49)
def test_iterations_since_the_last_checkpoint_come_again(second: Undisturbed, tmp_path: Path) -> None:
    """Killed in the third and the fourth iteration of a run that saves after the second; then killed once more."""
    deaths: list[tuple[Point, Point]] = [
        (("after write", 4), ("after iteration", 1)),
        (("before save", 3), ("half of a line of metrics.jsonl", 1)),
        (("before learn", 4), ("truncate", 1)),
        (("half of state.json", 2), ("after sample", 1)),
    ]
    for number, (first, again) in enumerate(deaths):
        directory = begun(tmp_path / str(number), SECOND)
        assert go_on(directory, second, first), first
        go_on(directory, second, again)
        assert not go_on(directory, second)
        assert left(directory) == second.left, (first, again)
        alive(directory, SECOND)


@pytest.mark.t(49)
def test_in_half_precision_too(tmp_path: Path) -> None:
    straight = undisturbed(HALF, tmp_path)
    directory = begun(tmp_path / "again", HALF)
    assert not go_on(directory, straight) and left(directory) == straight.left
    for number, death in enumerate((("after step", 3), ("before save", 3), ("half of tensors.safetensors", 2))):
        directory = begun(tmp_path / str(number), HALF)
        assert go_on(directory, straight, death), death
        assert not go_on(directory, straight)
        assert left(directory) == straight.left, death
    model = safe_open(directory / "model" / "model.safetensors", "pt")
    assert {model.get_tensor(name).dtype for name in model.keys()} == {torch.bfloat16}  # noqa: SIM118


@pytest.mark.t(49)
def test_with_an_adapter_too(tmp_path: Path) -> None:
    """Its checkpoints hold the adapter, of the policy and of the reference, and nothing of the base."""
    pytest.importorskip("peft")
    straight = undisturbed(ADAPTER, tmp_path)
    for number, death in enumerate((("after step", 3), ("before save", 3), ("before writing the model", 1))):
        directory = begun(tmp_path / str(number), ADAPTER)
        assert go_on(directory, straight, death), death
        assert not go_on(directory, straight)
        assert left(directory) == straight.left, death
    holds_adapters_alone(directory)
    assert "model/adapter_model.safetensors" in straight.left


@pytest.mark.t(49)
def test_with_an_adapter_beside_a_model_of_transformers(tmp_path: Path) -> None:
    """Its head is its embedding: known by two names, and kept under neither."""
    pytest.importorskip("peft")
    model, tokenizer = tmp_path / "model", read_tokenizer(find_model("calculator"))
    sizes = {"vocab_size": tokenizer.fast.get_vocab_size(), "n_embd": 16, "n_head": 2, "n_layer": 2, "n_positions": 64}
    made(tmp_path / "made", "GPT2", **sizes)
    write_model(read_model(tmp_path / "made"), model, tokenizer=tokenizer)
    recipe = replace(EVERY, model=str(model), lora=Lora(rank=2, targets=("c_attn", "c_fc")))
    straight = undisturbed(recipe, tmp_path)
    directory = begun(tmp_path / "killed", recipe)
    assert go_on(directory, straight, ("before save", 3))
    assert not go_on(directory, straight)
    assert left(directory) == straight.left
    holds_adapters_alone(directory)


def holds_adapters_alone(run: Path) -> None:
    names = safe_open(next(iter((run / "checkpoints").glob("*/tensors.safetensors"))), "pt").keys()
    kept = {name for name in names if not name.startswith("optimizer.")}
    assert kept and all("lora_" in name for name in kept)
    assert {name.partition(".")[0] for name in kept} == {"policy", "beside"}


@pytest.mark.t(49)
def test_with_the_engines_experts_too(tmp_path: Path) -> None:
    routing = Routing(replay="engine", balance=0.1)
    recipe = replace(
        EVERY, model=str(trainable(tmp_path / "tiny")), method=replace(EVERY.method, routing=routing), iterations=2,
        optimizer=AdamW(lr=0.01),
    )  # fmt: skip
    straight = undisturbed(recipe, tmp_path)
    assert all(line["routing/changed"] > 0 for line in lines(tmp_path / "undisturbed")[1:])
    for number, death in enumerate((("after sample", 2), ("after step", 3), ("half of tensors.safetensors", 2))):
        directory = begun(tmp_path / str(number), recipe)
        assert go_on(directory, straight, death), death
        assert not go_on(directory, straight)
        assert left(directory) == straight.left, death
    for shard in (tmp_path / "0" / "samples").glob("*.safetensors"):
        routes = safe_open(shard, "pt").get_tensor("routes")
        assert routes.dtype == torch.int16 and len(routes.unique()) == 8  # every expert was met


@pytest.mark.t(49)
def test_in_the_warm_start_too(tmp_path: Path) -> None:
    shown = tmp_path / "shown.jsonl"
    shown.write_text("".join(json.dumps({"prompt": p, "answer": a}) + "\n" for p, a in demonstrations(0, 9, 0.35)))
    taught = WarmStart(demonstrations=str(shown), steps=5, per_step=4, save_every=2, optimizer=AdamW(lr=1e-4))
    recipe = replace(HALF, warm_start=taught, iterations=2)
    straight = undisturbed(recipe, tmp_path)
    told = (tmp_path / "undisturbed" / "warm_start" / "metrics.jsonl").read_bytes()
    # In its second step, beside its first checkpoint, in its last step, between it and the run, and in the run.
    deaths = [("before step", 2), ("half of tensors.safetensors", 1), ("before replace", 2), ("after step", 5)]
    deaths += [("before evaluate", 1), ("before save", 1), ("after step", 7), ("before writing the model", 1)]
    for number, death in enumerate(deaths):
        directory = begun(tmp_path / str(number), recipe)
        assert go_on(directory, straight, death), death
        assert not go_on(directory, straight)
        assert left(directory) == straight.left, death
        assert (directory / "warm_start" / "metrics.jsonl").read_bytes() == told, death


@pytest.mark.t(49)
def test_a_run_killed_at_any_time(second: Undisturbed, tmp_path: Path) -> None:
    chance, directory, deaths = random.Random(7), begun(tmp_path / "run", SECOND), 0
    for _ in range(6):
        child = os.fork()
        if child == 0:
            try:
                os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
                os.dup2(2, 1)
                run_from(directory, second.place, disk=Quick())
                os._exit(0)
            finally:
                os._exit(1)
        time.sleep(chance.uniform(0.2, 0.9) * second.seconds)
        os.kill(child, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code in (0, -signal.SIGKILL)
        deaths += code != 0
        if code == 0:
            break
    assert deaths
    assert not go_on(directory, second)
    assert left(directory) == second.left
    alive(directory, SECOND)
