"""Runs on several ranks: equal bits on 1, 2 and 4, also after kill -9 of a rank; and what is refused."""

import os
import signal
from pathlib import Path

import pytest

import groupwise as gw
from groupwise.cluster.local import LocalProcesses
from groupwise.config.recipe import Cluster, Machine
from groupwise.config.text import read_recipe
from groupwise.config.user_code import Use
from groupwise.data import BadData, InvalidValue, Usage, WorkerLost
from groupwise.runs.layout import RunLayout
from groupwise.training.follower import recipe_of_followers
from groupwise.training.messages import message, parts

LANES, ITERATIONS = 4, 3
SMALL = {
    "iterations": ITERATIONS, "prompts": 2, "method.group_size": 4, "method.minibatches": 1, "sampling.max_tokens": 12,
    "evaluate.problems": 2, "save.every": 1, "cluster.lanes": LANES, "cluster.deadline": 60.0,
}  # fmt: skip


def files(run: Path) -> tuple[bytes, bytes]:
    """The last checkpoint's tensors, and the metrics."""
    layout = RunLayout(run)
    return (layout.checkpoint(ITERATIONS) / "tensors.safetensors").read_bytes(), layout.metrics.read_bytes()


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with four lanes in one process."""
    return gw.train(out=tmp_path_factory.mktemp("one"), **SMALL).directory


@pytest.mark.t(49)
def test_a_run_on_two_ranks_whose_rank_is_killed_ends_on_four_with_the_bits_of_one(
    one: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids: list[int] = []
    enter = LocalProcesses.__enter__

    def started(self: LocalProcesses) -> LocalProcesses:
        enter(self)
        pids.extend(self.pids.values())
        return self

    def kill(run: gw.Run, line: dict) -> None:
        if line["iteration"] == 2:
            os.kill(pids[0], signal.SIGKILL)

    monkeypatch.setattr(LocalProcesses, "__enter__", started)
    with pytest.raises(WorkerLost) as caught:
        gw.train(out=tmp_path, on_iteration=kill, **SMALL | {"cluster.ranks": 2})
    assert caught.value.what == "rank 1 was killed by SIGKILL" and "groupwise resume" in caught.value.fix
    (run,) = tmp_path.iterdir()
    assert read_recipe(RunLayout(run).recipe).cluster == Cluster(ranks=2, lanes=LANES, deadline=60.0)
    gw.resume(run, ranks=4)
    assert files(run) == files(one)
    assert len(pids) == 4 and not any(Path(f"/proc/{pid}").exists() for pid in pids)


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
        assert caught.value.evidence == "recipe.cluster.lanes: 4 -> 8"
    finally:
        recipe.write_text(text)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"ranks": 3}, "ranks is 3: the gradients"),
        ({"lanes": 3}, "lanes is 3"),
        ({"ranks": 4, "lanes": 2}, "4 ranks do not divide 2 lanes"),
        ({"deadline": 0.0}, "deadline must be above 0"),
        ({"ranks": 0}, "ranks is 0"),
    ],
)
def test_settings_that_are_refused(fields: dict[str, float], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Cluster(**fields)


def test_several_ranks_need_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from groupwise.training import check

    monkeypatch.setattr(check, "find_device", lambda machine: torch.device("cuda"))
    monkeypatch.setattr(check, "machine_line", lambda machine: "")
    recipe = read_recipe("cluster.ranks = 2\nmethod = 'grpo'")
    (error,) = check.check_machine(recipe, Use(), lambda line: None, train=True)
    assert isinstance(error, Usage) and "--machine.device cpu" in error.fix and recipe.machine == Machine()


def test_other_ranks_need_no_function_in_memory() -> None:
    use = Use(in_memory={"grade": lambda answer: 1.0})
    text = "cluster.ranks = 2\nmethod = 'grpo'\nverifier = 'memory:grade'\n"
    with pytest.raises(Usage):
        read_recipe(text)
    assert read_recipe(recipe_of_followers(read_recipe(text, (), use))).cluster.ranks == 2


def test_a_message_is_json_and_tensors() -> None:
    import torch

    header, tensors = parts(message({"text": "a\nb", "x": float("inf")}, {"w": torch.ones(2)}))
    assert header == {"text": "a\nb", "x": float("inf")} and tensors["w"].tolist() == [1.0, 1.0]
