"""Faults during a run: each is reported, loses nothing, and a run that continues ends with the same bits."""

import asyncio
import errno
import json
import math
import os
import pty
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from jaxtyping import Float
from safetensors.torch import load_file
from torch import Tensor

from groupwise.__main__ import main
from groupwise.api.options import RunOptions
from groupwise.commands.train import resume
from groupwise.core import Diverged, Locked, LogprobMismatch, NoSignal, Storage, Unverifiable
from groupwise.data import Batch, Outcome, Prompt, Sample, Verdict
from groupwise.learner import Learner
from groupwise.lifecycle import run as commands
from groupwise.objective import Objective, sequence_mean
from groupwise.rewards import mixed_outcomes
from groupwise.runs.checkpoints import RunLock, newest_checkpoint
from groupwise.runs.json_lines import read_lines
from groupwise.runs.run_layout import RunLayout
from groupwise.training import loop
from groupwise.training.signal_watchdog import SignalWatchdog
from tests.faults.small_runs import EVERY, Quick, alive, begun, forked, left, lines, ran, ready, run_from
from tests.rollout.fakes import judged_by

Verifier = Callable[[Prompt, Sample], Any]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = ran(tmp_path_factory.mktemp("faults") / "undisturbed", EVERY)
    alive(directory, EVERY)
    return directory


@pytest.fixture
def finished(undisturbed: Path, tmp_path: Path) -> Path:
    """A copy of the undisturbed run, to be damaged."""
    return Path(shutil.copytree(undisturbed, tmp_path / "finished"))


# The disk


@pytest.mark.t(50)
def test_resume_uses_the_previous_checkpoint_if_the_newest_is_damaged(
    undisturbed: Path, finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tensors = finished / "checkpoints" / "000003" / "tensors.safetensors"
    data = bytearray(tensors.read_bytes())
    data[len(data) // 2] ^= 1
    tensors.write_bytes(data)
    with pytest.raises(Storage, match="000003 is damaged"):
        resume(str(finished), RunOptions(strict_checkpoints=True))
    assert main(["resume", "--strict", str(finished)]) == 6
    assert tensors.read_bytes() == data  # a refusal changes nothing
    capsys.readouterr()
    assert resume(str(finished)) == 0
    output = capsys.readouterr().err
    assert "000003 is damaged: tensors.safetensors has SHA-256" in output and "using 000002 instead" in output
    assert left(finished) == left(undisturbed)


def test_a_checkpoint_of_a_newer_version_is_refused(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = finished / "checkpoints" / "000003" / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 3}))
    assert main(["resume", str(finished)]) == 6
    assert "newer version" in (output := capsys.readouterr().err) and "pip install --upgrade" in output


def test_two_processes_in_one_run(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with RunLock(RunLayout(finished)):
        with pytest.raises(Locked):
            resume(str(finished))
        assert main(["resume", str(finished)]) == 8
        assert f"pid {os.getpid()}" in capsys.readouterr().err
    before = (finished / "metrics.jsonl").read_bytes()
    assert resume(str(finished)) == 0
    assert (finished / "metrics.jsonl").read_bytes() == before


def test_resume_of_a_finished_run_changes_nothing(
    undisturbed: Path, finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert resume(str(finished)) == 0
    assert "nothing to do: 3 of 3 iterations" in capsys.readouterr().err
    assert left(finished) == left(undisturbed)


@dataclass
class Full(Quick):
    """No space for files whose path holds `where`, from the `first`-th such write to before the `last`-th."""

    where: str
    first: int
    last: float = math.inf
    seen: int = 0

    def refuse(self, path: Path) -> None:
        if self.where in str(path):
            self.seen += 1
            if self.first <= self.seen < self.last:
                path.write_bytes(b"torn")
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    def write(self, path: Path, data: bytes) -> None:
        self.refuse(path)
        super().write(path, data)

    def append(self, path: Path, data: bytes) -> None:
        if self.where in str(path):
            self.seen += 1
            if self.first <= self.seen < self.last:
                super().append(path, data[:5])
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        super().append(path, data)


@pytest.mark.parametrize("where", ["checkpoints", "metrics.jsonl", "samples"])
def test_a_disk_that_is_full_for_a_while_loses_nothing(
    where: str, undisturbed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    disk = Full(where, first=4, last=6)  # not the first checkpoint, which has three files
    run = ran(tmp_path / "run", EVERY, disk=disk)
    assert disk.seen > 5
    assert left(run) == left(undisturbed)
    assert "No space left" in (output := capsys.readouterr().err) or "logs could not be written" in output


@pytest.mark.parametrize("where", ["checkpoints", "metrics.jsonl"])
def test_a_disk_that_stays_full_ends_the_run_with_its_last_checkpoint_whole(
    where: str, longer: Path, tmp_path: Path
) -> None:
    """Three checkpoints in a row fail. A checkpoint whose log cannot be written fails too."""
    run = begun(tmp_path / "run", LONGER)
    with pytest.raises(Storage, match="could not be written") as refusal:
        run_from(run, ready(LONGER), disk=Full(where, first=4 if where == "checkpoints" else 2))
    assert "free space" in refusal.value.fix and str(run) in refusal.value.fix
    newest = newest_checkpoint(RunLayout(run), strict=True)
    assert newest and newest.iteration == 0
    assert len(read_lines(run / "metrics.jsonl")) == (1 + 3 if where == "checkpoints" else 1)  # of 6 iterations
    assert left(ran(run, LONGER)) == left(longer)


def test_a_failed_last_checkpoint_is_an_error(tmp_path: Path) -> None:
    """One save fails, and no other follows it."""
    with pytest.raises(Storage):
        run_from(
            begun(tmp_path / "run", EVERY),
            ready(EVERY),
            disk=Full(f"checkpoints/.writing-{os.getpid()}-000003", first=1),
        )


def test_a_run_whose_first_checkpoint_fails_ends_and_its_advice_works(undisturbed: Path, tmp_path: Path) -> None:
    """A run with results and no checkpoint could not be continued."""
    run = begun(tmp_path / "run", EVERY)
    with pytest.raises(Storage) as refusal:
        run_from(run, ready(EVERY), disk=Full("checkpoints", first=1))
    assert f"groupwise resume {run}" in refusal.value.fix
    assert [line["iteration"] for line in lines(run)] in ([], [0])
    assert resume(str(run)) == 0
    assert left(run) == left(undisturbed)


def test_a_model_on_the_way_that_cannot_be_written_is_an_error_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = replace(EVERY, save=replace(EVERY.save, export_every=1, keep=9))
    run, write = begun(tmp_path / "run", recipe), commands.write_model_directory

    def full(layout: RunLayout, objects: Any, model: Path, *others: Any) -> None:
        if model.name == "000001":
            raise Storage("the model could not be written", evidence="No space left on device", fix="free space")
        write(layout, objects, model, *others)

    monkeypatch.setattr(commands, "write_model_directory", full)
    with pytest.raises(Storage, match="could not be written: 1") as refusal:
        run_from(run, ready(recipe), disk=Quick())
    assert f"groupwise export {run} A_NEW_DIRECTORY --at 1" in refusal.value.fix
    assert (run / "model").is_dir() and (run / "report.html").is_file() and (run / "models/000002").is_dir()
    assert main(["export", str(run), str(tmp_path / "first"), "--at", "1"]) == 0


def test_a_finished_run_that_is_resumed_removes_the_rest_of_a_pruned_checkpoint(finished: Path) -> None:
    rest = finished / "checkpoints" / ".deleting-000001"
    rest.mkdir()
    (rest / "tensors.safetensors").write_bytes(b"half")
    assert resume(str(finished)) == 0
    assert not rest.exists()


def test_an_export_removes_the_draft_of_one_that_was_killed(finished: Path, tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    drafts = {pid: tmp_path / f".writing-{pid}-out" for pid in (process.pid, os.getppid())}
    for draft in drafts.values():
        draft.mkdir()
    assert main(["export", str(finished), str(tmp_path / "out")]) == 0
    assert not drafts[process.pid].exists() and drafts[os.getppid()].exists()


# Signals and clocks


def test_a_terminal_that_closes_saves_the_run(longer: Path, tmp_path: Path) -> None:
    """SIGHUP arrives, and writing to the terminal is an error from then on."""
    run = begun(tmp_path / "run", LONGER)

    def act() -> int:
        pid, terminal = pty.fork()
        if pid == 0:
            try:
                signal.signal(signal.SIGHUP, signal.SIG_DFL)
                sys.stdout, sys.stderr = (os.fdopen(n, "w", buffering=1, closefd=False) for n in (1, 2))
                os._exit(main(["resume", str(run)]))
            finally:
                os._exit(1)
        text = b""
        while b"2/6" not in text:
            text += os.read(terminal, 4096)
        os.close(terminal)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    assert forked(act, tmp_path / "log") == 143, (tmp_path / "log").read_text()
    done = len(read_lines(run / "metrics.jsonl")) - 1
    newest = newest_checkpoint(RunLayout(run), strict=True)
    assert newest and newest.iteration == done >= 2
    assert left(ran(run, LONGER)) == left(longer)


def test_a_hangup_is_ignored_under_nohup(longer: Path, tmp_path: Path) -> None:
    run = begun(tmp_path / "run", LONGER)

    def act() -> int:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        objects = ready(LONGER)
        objects = replace(
            objects,
            rollout_setting=replace(objects.rollout_setting, verifier=hung_up(objects.rollout_setting.verifier)),
        )
        return run_from(run, objects, disk=Quick()).exit_code

    assert forked(act, tmp_path / "log") == 0
    assert left(run) == left(longer)


def hung_up(judge: Verifier) -> Verifier:
    """A verifier during whose calls the terminal closes."""

    async def verdict(prompt: Prompt, sample: Sample) -> Verdict:
        os.kill(os.getpid(), signal.SIGHUP)
        return await judge(prompt, sample)

    return judged_by(verdict)


LONGER = replace(EVERY, iterations=6)


@pytest.fixture(scope="module")
def longer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ran(tmp_path_factory.mktemp("longer") / "undisturbed", LONGER)


@pytest.mark.parametrize(
    ("number", "code", "word"),
    [
        pytest.param(signal.SIGINT, 130, "interrupted", marks=pytest.mark.slow),
        (signal.SIGTERM, 143, "terminated"),
        pytest.param(signal.SIGHUP, 143, "terminated", marks=pytest.mark.slow),
    ],
)
def test_a_signal_saves_and_prints_how_to_resume(
    number: signal.Signals, code: int, word: str, longer: Path, tmp_path: Path
) -> None:
    """In a fork that gets the signal in its second iteration. An interpreter's end is in commands/test_command_line."""
    run = begun(tmp_path / "run", LONGER)
    watch = commands.IterationCallback.__call__

    def signalled(self: commands.IterationCallback, line: dict[str, Any], *others: Any) -> None:
        watch(self, line, *others)
        if line["iteration"] == 2:
            os.kill(os.getpid(), number)

    def act() -> int:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        commands.IterationCallback.__call__ = signalled  # type: ignore[method-assign]
        return main(["resume", str(run)])

    exit_code = forked(act, tmp_path / "output")
    text = (tmp_path / "output").read_text()
    assert exit_code == code, text
    done = len(read_lines(run / "metrics.jsonl")) - 1
    assert f"{word} after {done} of 6 iterations; saved" in text and f"groupwise resume {run}" in text
    assert 2 <= done < 6 and not (run / "model").exists()
    newest = newest_checkpoint(RunLayout(run), strict=True)
    assert newest and newest.iteration == done
    assert left(ran(run, LONGER)) == left(longer)


def test_a_signal_ends_a_wait_for_a_verdict(undisturbed: Path, tmp_path: Path) -> None:
    """The iteration is abandoned, and repeated on resume."""
    run = begun(tmp_path / "run", EVERY)

    def act() -> int:
        objects = ready(EVERY)
        judge, calls = objects.rollout_setting.verifier, []

        async def hangs(prompt: Prompt, sample: Sample) -> Verdict:
            calls.append(sample)
            if len(calls) == 20:  # in the second iteration
                os.kill(os.getpid(), signal.SIGTERM)
                await asyncio.sleep(3600)
            return await judge(prompt, sample)

        objects = replace(objects, rollout_setting=replace(objects.rollout_setting, verifier=judged_by(hangs)))
        ending = run_from(run, objects, disk=Quick())
        print(ending.message, flush=True)
        return ending.exit_code

    assert forked(act, tmp_path / "log") == 143
    assert "terminated after 1 of 3 iterations; saved" in (tmp_path / "log").read_text()
    assert left(ran(run, EVERY)) == left(undisturbed)


@pytest.mark.parametrize("version", [0, 2])
def test_a_signal_ends_a_wait_for_an_engine_that_does_not_load(
    undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    """As replicas that never start: the first signal ends the run, and a resume repeats the iteration."""
    run = begun(tmp_path / "run", EVERY)
    monkeypatch.setattr(loop, "LOADING", 0.5)

    def act() -> int:
        objects = ready(EVERY)
        load = objects.engine.load

        async def hangs(number: int, weights: Any) -> None:
            if number == version:
                os.kill(os.getpid(), signal.SIGTERM)
                await asyncio.sleep(3600)
            await load(number, weights)

        objects.engine.load = hangs  # type: ignore[method-assign]
        return run_from(run, objects, disk=Quick()).exit_code

    assert forked(act, tmp_path / "log") == 143, (tmp_path / "log").read_text()
    assert ("groupwise resume" in (tmp_path / "log").read_text()) == (version > 0)
    assert left(ran(run, EVERY)) == left(undisturbed)


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    run = begun(tmp_path / "run", EVERY)

    def act() -> int:
        step, calls = Learner.step, []

        def slow(*args: Any) -> Any:
            calls.append(args)
            if len(calls) == 2:  # the first signal waits for the end of the iteration, the second does not
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0.05)
                os.kill(os.getpid(), signal.SIGINT)
            return step(*args)

        Learner.step = slow  # type: ignore[method-assign]
        try:
            return run_from(run, ready(EVERY), disk=Quick()).exit_code
        except KeyboardInterrupt:
            return 99

    assert forked(act, tmp_path / "log") == 99
    assert f"groupwise resume {run}" in (tmp_path / "log").read_text()
    newest = newest_checkpoint(RunLayout(run), strict=True)
    assert newest


def test_a_signal_while_the_model_is_written_prints_how_to_resume(undisturbed: Path, tmp_path: Path) -> None:
    """The iterations are complete, so the loop no longer handles signals."""
    run = begun(tmp_path / "run", EVERY)

    def act() -> int:
        def interrupted(*_: Any) -> None:
            os.kill(os.getpid(), signal.SIGINT)

        commands.write_model_directory = interrupted
        try:
            return run_from(run, ready(EVERY), disk=Quick()).exit_code
        except KeyboardInterrupt:
            return 99

    assert forked(act, tmp_path / "log") == 99
    assert f"groupwise resume {run}" in (tmp_path / "log").read_text()
    assert left(ran(run, EVERY)) == left(undisturbed)


def test_a_second_signal_is_the_second_also_when_time_is_up(tmp_path: Path) -> None:
    """It arrives in the event loop, outside any task, and leaves the program's own handler behind."""
    run = begun(tmp_path / "run", EVERY)

    def act() -> int:
        async def stuck(recipe: Any, buffer: Any, engine: Any, learner: Any, recorder: Any, *_: Any) -> None:
            recorder.stop("out of time")
            os.kill(os.getpid(), signal.SIGINT)
            asyncio.get_running_loop().call_later(0.1, os.kill, os.getpid(), signal.SIGINT)
            await asyncio.sleep(3600)

        commands.loop = stuck
        try:
            return run_from(run, ready(EVERY), disk=Quick()).exit_code
        except KeyboardInterrupt:
            return 99 if signal.getsignal(signal.SIGINT) == signal.default_int_handler else 98

    assert forked(act, tmp_path / "log") == 99


def test_stop_after_saves_and_prints_how_to_resume(undisturbed: Path, tmp_path: Path) -> None:
    run = begun(tmp_path / "run", EVERY)
    ending = run_from(run, ready(EVERY), stop_after=0.0, disk=Quick())
    assert (ending.exit_code, ending.stop_reason) == (0, "out of time")
    assert "out of time after 0 of 3 iterations; saved" in ending.message
    assert f"groupwise resume {run}" in ending.message and not (run / "model").exists()
    assert left(ran(run, EVERY)) == left(undisturbed)


@pytest.mark.parametrize("day", [86_400.0, -86_400.0])
def test_a_clock_that_jumps_changes_nothing(
    day: float, undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, calls = time.time, []

    def jumps() -> float:
        calls.append(1)
        return clock() + day * (len(calls) % 3)

    monkeypatch.setattr(time, "time", jumps)
    run = ran(tmp_path / "run", EVERY)
    monkeypatch.undo()
    assert left(run) == left(undisturbed)
    assert all(line["seconds"] >= 0 for line in read_lines(run / "timings.jsonl"))


# Verifiers


def wrong_every_seventh(objects: Any, what: str) -> tuple[Any, list[int]]:
    """The run with every seventh verdict of training failing, and a list that gets one element per failure."""
    judge, failed, calls = objects.rollout_setting.verifier, [], []

    async def failing(prompt: Prompt, sample: Sample) -> Verdict:
        calls.append(1)
        if len(calls) % 7:
            return await judge(prompt, sample)
        failed.append(len(calls))
        if what == "raises":
            raise ZeroDivisionError("the seventh")
        if what == "hangs":
            await asyncio.sleep(3600)
        return Verdict(Outcome.correct, score=math.nan)

    return replace(objects, rollout_setting=replace(objects.rollout_setting, verifier=judged_by(failing))), failed


@pytest.mark.parametrize(
    ("what", "cause"),
    [
        ("raises", "ZeroDivisionError: the seventh"),
        ("is NaN", "the score nan"),
        ("hangs", "no verdict within 0.1 seconds"),
    ],
)
def test_a_verdict_that_fails_is_counted_and_left_out(
    what: str, cause: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        SignalWatchdog, "_alarm", lambda *_: None
    )  # on a busy machine, it may end a call that does not hang
    recipe = replace(EVERY, machine=replace(EVERY.machine, verdict_deadline=0.1))
    run, objects = begun(tmp_path / "run", recipe), ready(recipe)
    objects, failed = wrong_every_seventh(objects, what)
    assert run_from(run, objects, disk=Quick()).exit_code == 0
    metrics = lines(run)[1:]
    assert sum(line["rollout/unverifiable"] for line in metrics) == len(failed) == 6
    assert [line["outcome/unverifiable"] * 16 for line in metrics] == [line["rollout/unverifiable"] for line in metrics]
    for line in metrics:
        samples = read_lines(run / "samples" / f"{line['iteration']:06d}.jsonl")
        bad = [s for s in samples if s["outcome"] == "unverifiable"]
        assert len(bad) == line["rollout/unverifiable"] and all(cause in s["cause"] for s in bad)
        assert all(s["reward"] is None and s["score"] is None and not s["selected"] for s in bad)
        good = [s["reward"] for s in samples if s["outcome"] != "unverifiable"]
        assert line["reward"] == pytest.approx(sum(good) / len(good), abs=1e-12)
        assert len(good) + len(bad) == 16


def test_a_first_batch_without_verdicts_ends_the_run_at_once(tmp_path: Path) -> None:
    run, objects = begun(tmp_path / "run", EVERY), ready(EVERY)

    async def broken(prompt: Prompt, sample: Sample) -> Verdict:
        raise ImportError("no sympy")

    objects = replace(objects, rollout_setting=replace(objects.rollout_setting, verifier=judged_by(broken)))
    with pytest.raises(Unverifiable, match="16 of 16 answers") as error:
        run_from(run, objects, disk=Quick())
    assert "no sympy" in error.value.evidence and error.value.code == 5
    assert [line["iteration"] for line in lines(run)] == [0]


def test_too_many_unverifiable_answers_over_twenty_iterations(tmp_path: Path) -> None:
    recipe = replace(EVERY, iterations=22, evaluate=replace(EVERY.evaluate, every=0), save=replace(EVERY.save, every=0))
    recipe = replace(recipe, prompts=2, sampling=replace(recipe.sampling, max_tokens=3))
    run, objects = begun(tmp_path / "run", recipe), ready(recipe)
    objects, _ = wrong_every_seventh(objects, "raises")
    with pytest.raises(Unverifiable, match="22 of 160 answers were unverifiable over 20 iterations"):
        run_from(run, objects, disk=Quick())
    assert len(lines(run)) == 1 + 19


def test_three_iterations_without_a_group_to_learn_from(tmp_path: Path) -> None:
    recipe = replace(EVERY, iterations=5, method=replace(EVERY.method, filter=mixed_outcomes, max_refills=1))
    run, objects = begun(tmp_path / "run", recipe), ready(recipe)
    weights = {name: x.clone() for name, x in objects.model.state_dict().items()}

    async def wrong(prompt: Prompt, sample: Sample) -> Verdict:
        return Verdict(Outcome.wrong)

    objects = replace(objects, rollout_setting=replace(objects.rollout_setting, verifier=judged_by(wrong)))
    with pytest.raises(NoSignal, match="3 iterations in a row") as error:
        run_from(run, objects, disk=Quick())
    assert error.value.evidence == "8 rollouts dropped: mixed_outcomes" and error.value.code == 5
    metrics = lines(run)
    assert [line["iteration"] for line in metrics] == [0, 1, 2]
    for line in metrics[1:]:
        assert (line["step"], line["rollout/selected"], line["rollout/dropped"], line["rollout/rounds"]) == (0, 0, 8, 2)
    assert all(torch.equal(x, weights[name]) for name, x in objects.model.state_dict().items())


# Gradients


@dataclass(eq=False)
class Poison:
    """A finite loss whose gradient is NaN in some calls: the root of a distance of exactly 0."""

    calls: Callable[[int], bool]
    seen: list[int] = field(default_factory=list)

    def __call__(self, b: Batch) -> Float[Tensor, " n"]:
        self.seen.append(1)
        return b.logp * b.advantage + (self.root(b.logp) if self.calls(len(self.seen)) else 0)

    @staticmethod
    def root(logp: Tensor) -> Tensor:
        return (logp - logp.detach()).square().sqrt()


def poisoned(run: Path, calls: Callable[[int], bool]) -> Any:
    """A runtime with a poisoned objective. Each iteration has two steps of one microbatch."""
    objective = Objective(surrogate=Poison(calls), aggregate=sequence_mean)
    begun(run, EVERY)
    return ready(replace(EVERY, method=replace(EVERY.method, objective=objective)))


def test_a_gradient_that_is_not_finite_leaves_the_weights_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = poisoned(run := tmp_path / "run", lambda call: call == 3)  # the first step of the second iteration
    step, moved = Learner.step, []

    def watched(learner: Learner, *args: Any) -> Any:
        before = [x.clone() for x in learner.weights().values()]
        state = json.dumps([float(x.sum()) for x in learner.optimizer.state().values()])
        taken = step(learner, *args)
        after = json.dumps([float(x.sum()) for x in learner.optimizer.state().values()])
        still = all(map(torch.equal, before, learner.weights().values()))
        moved.append((not still, state != after, bool(taken.skip_reason)))
        return taken

    monkeypatch.setattr(Learner, "step", watched)
    assert run_from(run, objects, disk=Quick()).exit_code == 0
    assert moved[2] == (False, False, True) and moved[-1] == (True, True, False)
    assert [skipped for _, _, skipped in moved] == [False, False, True, False, False, False]
    assert [line["steps_skipped"] for line in lines(run)[1:]] == [0, 1, 0]
    assert [line["step"] for line in lines(run)] == [0, 2, 3, 5]
    assert all(math.isfinite(line["grad_norm"]) for line in lines(run)[1:])
    assert "iteration 2, step 0: loss or gradient is not finite; weights unchanged" in capsys.readouterr().err

    # The dumped batch gives the same NaN again.
    assert sorted(p.name for p in (run / "skipped").iterdir()) == ["000002-0.jsonl", "000002-0.safetensors"]
    dumped_lines = read_lines(run / "skipped" / "000002-0.jsonl")
    dumped = load_file(run / "skipped" / "000002-0.safetensors")
    assert [len(line["tokens"]) for line in dumped_lines] == dumped["lengths"].tolist()
    assert sum(dumped["lengths"]) == len(dumped["logp"]) and {"entropy", "loss_share", "advantage"} <= dumped.keys()
    assert "logp/reference" not in dumped  # nothing in this objective needs it
    logp = dumped["logp"].requires_grad_()
    loss = -(dumped["loss_share"] * (logp * dumped["advantage"] + Poison.root(logp))).sum()
    loss.backward()
    assert logp.grad is not None and torch.isfinite(loss) and logp.grad.isnan().all()
    (clean,) = torch.autograd.grad((dumped["loss_share"] * logp * dumped["advantage"]).sum(), logp)
    assert torch.isfinite(clean).all()


def test_three_steps_in_a_row_without_a_gradient(tmp_path: Path) -> None:
    objects = poisoned(run := tmp_path / "run", lambda call: call >= 2)
    with pytest.raises(Diverged, match="3 optimizer steps in a row") as error:
        run_from(run, objects, disk=Quick())
    assert str(run / "skipped") in error.value.evidence and error.value.code == 5
    assert not isinstance(error.value, NoSignal | Unverifiable | LogprobMismatch)
    assert len(list((run / "skipped").glob("*.jsonl"))) == 3
    newest = newest_checkpoint(RunLayout(run), strict=True)
    assert newest and newest.iteration == 1  # iteration 2, which brought the third, is not written


def test_a_dump_that_finds_no_space_does_not_end_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    objects = poisoned(run := tmp_path / "run", lambda call: call == 3)
    assert run_from(run, objects, disk=Full("skipped", first=1)).exit_code == 0
    assert "its batch could not be written: No space left" in capsys.readouterr().err
