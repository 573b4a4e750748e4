"""Recipes that were not run here: each is checked against a model of the same shapes and rows of the set's format."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from groupwise.checks import check_inputs, check_machine, check_model
from groupwise.config.recipe_toml import read_recipe
from groupwise.config.registry import methods
from groupwise.config.toml import base_of, read_toml
from groupwise.core import plain_name
from groupwise.models.decoder.convert_configurations import shape_of
from groupwise.planning.process_memory import run_memory
from groupwise.rollout.prompt_template import wordings
from groupwise.tasks import DataRows
from tests.checks import check
from tests.models.test_templates import CHATML, trained

HOME = Path(__file__).parents[2]
RECIPES = sorted((HOME / "recipes" / "unmeasured").glob("*.toml"))
QWEN2: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_act": "silu", "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000.0, "max_position_embeddings": 32768, "vocab_size": 151936, "tie_word_embeddings": True,
    "num_key_value_heads": 2, "eos_token_id": 0,
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "Qwen/Qwen2.5-0.5B-Instruct": QWEN2
    | {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14},
    "Qwen/Qwen2.5-1.5B": QWEN2
    | {"hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28, "num_attention_heads": 12},
    "Qwen/Qwen2.5-7B-Instruct": QWEN2
    | {"hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28}
    | {"num_key_value_heads": 4, "vocab_size": 152064, "tie_word_embeddings": False},
    "Qwen/Qwen3-1.7B": QWEN2
    | {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "max_position_embeddings": 40960, "head_dim": 128}
    | {"hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28, "num_attention_heads": 16}
    | {"num_key_value_heads": 8},
}
"""config.json of each model: its shapes as published."""
WEIGHTS = {"Qwen/Qwen2.5-0.5B-Instruct": 494_032_768, "Qwen/Qwen2.5-1.5B": 1_543_714_304}
"""Weights as counted on the models' pages."""
ROWS: dict[str, list[dict[str, Any]]] = {
    "gsm8k": [
        {"question": f"Ann has {i} pens and buys 3.", "answer": f"{i}+3={i + 3}\n#### {i + 3}"} for i in range(5)
    ],
    "math": [{"problem": f"What is ${i}+3$?", "solution": f"It is $\\boxed{{{i + 3}}}$."} for i in range(5)],
    "math500": [{"problem": f"What is ${i}\\cdot 3$?", "answer": str(3 * i)} for i in range(5)],
    "countdown": [{"nums": [i, 2, 3], "target": i + 5} for i in range(1, 6)],
    "last_number": [
        {"prompt": f"Ann has {i} pens and buys 3.", "answer": str(i + 3), "hints": ["Add.", f"Add 3 to {i}."]}
        for i in range(5)
    ],
    "code": [
        {
            "prompt": f"Add {i}.",
            "answer": {"function": "f", "cases": [{"args": [n], "expected": i + n} for n in (1, 7)]},
        }
        for i in range(1, 6)
    ],
    "option_choice": [{"prompt": f"{i}+3? A: {i + 3} B: 0 C: 1 D: 2", "answer": "A"} for i in range(3, 8)],
}
"""Rows of each set; for a file of the user's own rows, by its verifier."""
THINKING = CHATML.replace("assistant\\n' }}", "assistant\\n' }}{{ '<think>' if enable_thinking else '' }}")


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_an_unmeasured_recipe_is_complete(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert path.read_text().startswith("# Not measured here. ")
    recipe = read_recipe(path)
    model = tmp_path / "model"
    trained(THINKING).save(model)
    (model / "config.json").write_text(json.dumps(CONFIGS[recipe.model]))
    for module in (check_inputs, check_model):
        monkeypatch.setattr(module, "weight_files", lambda directory: [directory / "model.safetensors"])
    monkeypatch.setattr(check_machine, "host_memory", lambda: 80 << 30)
    overrides = [("model", str(model)), ("machine.device", "cpu")]
    for field in ("task", "held_out"):
        if task := getattr(recipe, field):
            own = isinstance(task, DataRows)
            rows = ROWS[plain_name(type(recipe.verifier).__name__) if own else task.name]
            file = Path(task.source if own else f"{task.name}.jsonl")
            file.write_text("".join(json.dumps(row) + "\n" for row in rows))
            overrides += [] if own else [(f"{field}.source", str(file))]
    for package in ("load_peft", "load_bitsandbytes"):  # their imports take seconds
        monkeypatch.setattr(check_model, package, lambda: None)
    lines: list[str] = []
    assert check(path, overrides, notify=lines.append) == []
    print(*lines, sep="\n")
    (plan,) = (line for line in lines if line.startswith("plan: "))
    assert not any("does not use" in line or "this model reads prose" in line for line in lines)
    texts = list(wordings(recipe.method.strategy))
    assert sum("is auto, here prose" in line for line in lines) == len(texts)
    if recipe.lora is None and recipe.model in WEIGHTS:
        assert f"plan: {WEIGHTS[recipe.model]:,} weights," in plan


def test_a_base_of_7b_in_4_bits_fits_a_card_of_24_gb_with_its_adapter() -> None:
    """In bfloat16 the weights alone would be 14.2 GiB."""
    shape = shape_of(CONFIGS["Qwen/Qwen2.5-7B-Instruct"])
    recipe = read_recipe(HOME / "recipes" / "unmeasured" / "qwen2.5-7b-gsm8k-qlora.toml")
    quantised, plain = (
        run_memory(replace(recipe, machine=replace(recipe.machine, quantization=scheme)), shape, context=300)
        for scheme in ("nf4", None)
    )
    assert quantised.parameter_count == 7_615_616_512 + quantised.trained_parameter_count
    assert plain.peak > 0.9 * 24e9 > 16e9 > quantised.peak
    matrices = 28 * (2 * 3584 * 3584 + 2 * 3584 * 512 + 3 * 3584 * 18944)
    assert quantised.parts["weights"] == matrices * (0.5 + 4 / 64) + 2 * (quantised.parameter_count - matrices)
    assert quantised.parts["dequantised"] == 2 * 3584 * 18944


def test_all_unmeasured_recipes_are_there() -> None:
    """Each method that writes prompts has one of its name, beside those of models and tasks."""
    names = {"countdown-1.5b", "qwen2.5-0.5b-gsm8k", "qwen2.5-0.5b-gsm8k-lora", "qwen3-1.7b-math"}
    names.add("qwen2.5-7b-gsm8k-qlora")
    methods_with_texts = {name for name, method in methods().items() if list(wordings(method()))}
    assert {path.stem for path in RECIPES} == names | methods_with_texts
    assert all(base_of(read_toml(path)) == path.stem for path in RECIPES if path.stem not in names)
