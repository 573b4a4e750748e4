"""The recipes that were not measured run end to end on the pretended GPU, with tiny models and a few short answers."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from groupwise.config.recipe_toml import read_recipe
from groupwise.config.user_code import UserCode
from groupwise.core import plain_name
from groupwise.models import Decoder, DecoderShape, write_model
from groupwise.rewards import mixed_outcomes
from groupwise.tasks import DataRows
from groupwise.training.build_run import build
from tests.faults.small_runs import begin, lines, run_from
from tests.models.test_templates import trained
from tests.pretended_gpu import GPU, pretended_gpu
from tests.recipes.test_unmeasured import RECIPES, ROWS, THINKING

QUICK = ("qwen2.5-0.5b-gsm8k", "qwen2.5-7b-gsm8k-qlora", "igrpo")
"""Those that run in the suite; the others run in `make test-slow`."""
TINY = {
    "machine.device": "cuda", "iterations": 1, "prompts": 2, "method.group_size": 4, "sampling.max_tokens": 10,
    "evaluate.problems": 1, "evaluate.every": 0, "save.every": 1, "engine.max_num_seqs": 8, "optimizer.warmup_steps": 0,
    "machine.microbatch_tokens": 4096, "method.minibatches": 1,
}  # fmt: skip


def tiny_model(path: Path, *, qk_norm: bool) -> Path:
    tokenizer = trained(THINKING)
    shape = DecoderShape(
        vocabulary_size=tokenizer.backend_tokenizer.get_vocab_size(), hidden_size=16, layers=1, heads=2, kv_heads=1,
        head_dim=8,
        mlp_width=16, max_positions=4096, tied_embeddings=True, qk_norm=qk_norm, qkv_bias=not qk_norm,
        model_family="qwen3" if qk_norm else "qwen2",
    )  # fmt: skip
    write_model(Decoder.new(shape, 0, dtype=torch.bfloat16, spread=0.1), path, tokenizer=tokenizer)
    return path


def with_rows(path: Path, fields: dict[str, Any], directory: Path) -> list[tuple[str, str]]:
    """The fields, with a file of rows for each set that the recipe names."""
    recipe = read_recipe(path)
    for field in ("task", "held_out"):
        if task := getattr(recipe, field):
            own = isinstance(task, DataRows)
            rows = ROWS[plain_name(type(recipe.verifier).__name__) if own else task.name]
            file = directory / (task.source if own else f"{task.name}.jsonl")
            file.write_text("".join(json.dumps(row) + "\n" for row in rows))
            fields |= {} if own else {f"{field}.source": file}
    return [(name, str(value)) for name, value in fields.items()]


@pytest.mark.usefixtures("bitsandbytes")
@pytest.mark.parametrize(
    "path", [pytest.param(path, id=path.stem, marks=() if path.stem in QUICK else pytest.mark.slow) for path in RECIPES]
)
def test_an_unmeasured_recipe_runs_on_the_pretended_gpu(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = tiny_model(tmp_path / "model", qk_norm="Qwen3" in read_recipe(path).model)
    recipe = read_recipe(path, with_rows(path, TINY | {"model": model}, tmp_path))
    run = tmp_path / "run"
    run.mkdir()
    with pretended_gpu():
        ready = build(recipe, UserCode())
        assert {x.device for x in ready.model.parameters()} == {GPU}
        begin(run, ready, UserCode())
        assert run_from(run, ready).exit_code == 0
    metrics = lines(run)
    assert [line["iteration"] for line in metrics] == [0, 1]
    assert metrics[-1]["step"] or recipe.method.filter is mixed_outcomes, "all answers may be wrong"
    assert (run / "model").is_dir()
