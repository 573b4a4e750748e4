"""Engines that a run refuses when it starts: `check` reports them in the same words, without weights or processes."""

import re
from pathlib import Path
from typing import Any

import pytest

from groupwise.checks.check_inputs import check_inputs
from groupwise.config import Recipe
from groupwise.config.recipe import Cluster, Machine
from groupwise.config.resolve_devices import resolved
from groupwise.config.user_code import Permissions, load_use
from groupwise.core import GroupwiseError
from groupwise.data import Sampling
from groupwise.engines import Served, Vllm
from groupwise.engines.vllm import vllm_replicas
from groupwise.methods import grpo, spo
from groupwise.models import Lora, attach, find_model, read_model, read_tokenizer
from groupwise.training.build_run import DTYPES, build_engine
from tests.models.mixtures import trainable

PORT = f"127.0.0.1:1#sha256={'0' * 64}"
AWAY = (f"gpu-1:1#sha256={'0' * 64}", PORT, f"10.0.0.1:1#sha256={'0' * 64}")


def refusals(recipe: Recipe, monkeypatch: pytest.MonkeyPatch, **allowed: str) -> tuple[GroupwiseError, GroupwiseError]:
    """The error of the check that is about the engine, and that of the start."""
    use = load_use(Permissions(**allowed))  # type: ignore[arg-type]
    monkeypatch.delenv("GROUPWISE_SECRET", raising=False)
    recipe = resolved(recipe)
    directory = find_model(recipe.model)
    model, tokenizer = read_model(directory, dtype=DTYPES[recipe.machine.dtype]), read_tokenizer(directory)
    if recipe.lora is not None:
        attach(model, recipe.lora, seed=0)
    with pytest.raises(GroupwiseError) as started:
        build_engine(recipe, model, tokenizer, use.engine_access)
    (found,) = [error for error in check_inputs(recipe, use).errors if error.what == started.value.what]
    return found, started.value


def text(error: GroupwiseError) -> str:
    """An error without the random part of a directory's name."""
    return re.sub(r"groupwise-engines-\w+", "DIRECTORY", str(error))


@pytest.mark.parametrize(
    ("engine", "fields", "words"),
    [
        (Served(addresses=(PORT,)), {}, "engines on other hosts need a secret"),
        (Served(addresses=AWAY), {}, "would send prompts and weights to engines on gpu-1, 10.0.0.1"),
        (Served(), {"engine_exchange": "/dev/null/nowhere"}, "the weights for the engines"),
        (Vllm(), {}, "the command names none"),
        (Vllm(), {"engine_python": "nowhere/python"}, "no environment of vLLM at nowhere/python"),
        (Vllm(), {"machine": Machine(dtype="float64")}, "its dtype is float64"),
        (Vllm(), {"lora": Lora()}, "the command names none"),
        (Vllm(placement="colocated"), {}, "frees memory on GPUs only"),
    ],
)
def test_the_check_reports_what_the_start_of_a_run_refuses(
    engine: Served, fields: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "lora" in fields:
        pytest.importorskip("peft")
    allowed = {name: fields.pop(name) for name in [*fields] if name.startswith("engine_")}
    found, started = refusals(Recipe(method=grpo(), engine=engine, **fields), monkeypatch, **allowed)
    assert text(found) == text(started) and words in text(found) and found.code == started.code


def test_scores_of_vllm_at_another_temperature_are_refused_before_the_run() -> None:
    """The strategies of SPO and HILL score answers at the temperature of sampling."""
    use, cooler = load_use(Permissions()), Sampling(temperature=0.7)

    def about(**fields: Any) -> list[GroupwiseError]:
        found = check_inputs(resolved(Recipe(**fields)), use).errors
        return [error for error in found if "scores at temperature 1 only" in error.what]

    (refused,) = about(method=spo(), engine=Vllm(), sampling=cooler)
    assert "0.7" in refused.evidence and "--sampling.temperature 1" in refused.fix
    assert not about(method=spo(), engine=Vllm()) and not about(method=spo(), sampling=cooler)
    assert not about(method=grpo(), engine=Vllm(), sampling=cooler)


def test_a_mixture_of_experts_over_the_wire(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = Recipe(method=grpo(), model=str(trainable(tmp_path / "moe")), engine=Served())
    found, started = refusals(recipe, monkeypatch)
    assert text(found) == text(started) and "modules of transformers" in found.evidence


def test_the_environment_of_a_placed_engine_is_checked_on_its_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("groupwise.cluster.check_launch.library", lambda: None)
    monkeypatch.setattr(vllm_replicas, "check_environment", lambda python, gpu: pytest.fail("checked here"))
    recipe = Recipe(method=grpo(), engine=Vllm(), cluster=Cluster(launch="ray"))
    (refused,) = [error for error in check_inputs(recipe, load_use(Permissions())).errors if "Vllm" in str(error)]
    assert "--engine-python" in refused.fix
    use = load_use(Permissions(engine_python="nowhere/python"))
    assert not [error for error in check_inputs(recipe, use).errors if "vLLM" in str(error)]
