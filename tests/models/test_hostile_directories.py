"""Hostile model directories: each gives `BadData` or a valid model, within bounded work."""

import json
import os
import shutil
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from groupwise.__main__ import main
from groupwise.core import BadData
from groupwise.models import find_model, find_template, read_model, read_shape, read_tokenizer, stored_dtype
from groupwise.models import model_json_files as reading
from groupwise.models.decoder.convert_configurations import LAYERS
from groupwise.models.json_fields import DEPTH, MOST_BYTES
from groupwise.models.safetensors_weights import MOST_HEADER
from groupwise.models.template_renderer import TemplateRenderer
from tests.models.directories import directory
from tests.models.test_templates import trained

pytestmark = pytest.mark.timeout(120)

NESTED = json.loads("[" * 40 + "]" * 40)
VALUES = {
    "null": None, "empty text": "", "text": "x", "long": "x" * 9000, "empty list": [], "list": [1], "texts": ["x"],
    "empty object": {}, "object": {"a": 1}, "nested": NESTED, "true": True, "false": False, "0": 0, "-1": -1,
    "1.5": 1.5, "1e9": 1e9, "10**12": 10**12, "10**30": 10**30, "1e400": float("inf"), "NaN": float("nan"),
    "ESC": "\x1b[2J", "null byte": "a\0b", "surrogate": "\ud800",
}  # fmt: skip
FIELDS = (
    "architectures", "model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
    "num_attention_heads", "num_key_value_heads", "head_dim", "hidden_act", "max_position_embeddings", "rms_norm_eps",
    "rope_theta", "rope_scaling", "rope_parameters", "tie_word_embeddings", "sliding_window", "use_sliding_window",
    "layer_types", "max_window_layers", "attention_bias", "mlp_bias", "eos_token_id", "auto_map",
    "quantization_config", "dtype", "torch_dtype", "fresh_weights", "partial_rotary_factor",
    "original_max_position_embeddings",
)  # fmt: skip
OTHER_PATH = ("architectures", "model_type", "hidden_act", "rope_scaling", "rope_parameters", "partial_rotary_factor")
"""Fields whose values can reach transformers, where refusal is slower: fewer values are tried."""
FEW = ("list", "nested", "true", "NaN")
ROPE = ("factor", "rope_theta", "original_max_position_embeddings", "beta_fast", "beta_slow", "attention_factor",
        "mscale", "truncate", "low_freq_factor", "high_freq_factor")  # fmt: skip


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return directory(tmp_path_factory.mktemp("sound") / "model", "qwen2")


def change(path: Path, name: str = "config.json", **values: object) -> None:
    file = path / name
    config = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(config | values))


def held(path: Path) -> bool:
    """Whether the directory is refused as `BadData`; any other exception is raised."""
    refused = False
    for read in (read_shape, read_tokenizer, stored_dtype, read_model):
        try:
            read(path)
        except BadData as error:
            refused = True
            assert error.fix and all(line.isprintable() for line in str(error).split("\n"))
    return refused


@pytest.mark.parametrize("field", FIELDS)
def test_every_field_with_every_kind_of_value(sound: Path, tmp_path: Path, field: str) -> None:
    path = shutil.copytree(sound, tmp_path / "m")
    config = (path / "config.json").read_text()
    for value in [VALUES[name] for name in FEW] if field in OTHER_PATH else VALUES.values():
        (path / "config.json").write_text(config)
        (path / "generation_config.json").unlink(missing_ok=True)
        change(path, **{field: value})
        held(path)


@pytest.mark.parametrize("kind", ["linear", "llama3", "yarn", "dynamic"])
def test_every_field_of_a_scaling(sound: Path, tmp_path: Path, kind: str) -> None:
    path = shutil.copytree(sound, tmp_path / "m")
    good = {"rope_type": kind, "factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    for field in ROPE:
        for value in VALUES.values():
            change(path, rope_scaling=good | {field: value})
            with suppress(BadData):
                read_shape(path)


NONSENSE: dict[str, Callable[[Path], object]] = {
    "width": lambda p: change(p, hidden_size=96.5),
    "eps NaN": lambda p: change(p, rms_norm_eps=float("nan")),
    "eps below 0": lambda p: change(p, rms_norm_eps=-1.0),
    "theta": lambda p: change(p, rope_theta=0),
    "layers": lambda p: change(p, num_hidden_layers=1_000_000),
    "as many layers as are read": lambda p: change(p, num_hidden_layers=LAYERS),
    "end 1.5": lambda p: change(p, "generation_config.json", eos_token_id=1.5),
    "end true": lambda p: change(p, "generation_config.json", eos_token_id=True),
    "end text": lambda p: change(p, "generation_config.json", eos_token_id="x"),
    "end object": lambda p: change(p, "generation_config.json", eos_token_id={"a": 1}),
    "end nested": lambda p: change(p, "generation_config.json", eos_token_id=[[1]]),
    "deep config": lambda p: (p / "config.json").write_text('{"a":' * 100_000),
    "closed config": lambda p: (p / "config.json").write_text('{"a":' * DEPTH + "{}" + "}" * DEPTH),
    "deep generation": lambda p: (p / "generation_config.json").write_text("[" * 100_000),
    "NaN weights": lambda p: reweigh(p, lambda w: w * float("nan")),
    "an infinity": lambda p: reweigh(p, lambda w: w.index_fill(0, torch.tensor(0), float("inf"))),
    "int8": lambda p: reweigh(p, lambda w: w.to(torch.int8)),
    "truth values": lambda p: reweigh(p, lambda w: w > 0),
    "eight bits": lambda p: reweigh(p, lambda w: w.to(torch.float8_e4m3fn)),
    "many tensors": lambda p: many(p / "model.safetensors"),
    "header of 2**63": lambda p: (p / "model.safetensors").write_bytes(struct.pack("<Q", 2**63) + b"{}"),
    "unreadable": lambda p: (p / "config.json").unlink() or (p / "config.json").mkdir(),
}


def reweigh(path: Path, convert: Callable[[torch.Tensor], torch.Tensor]) -> None:
    weights = load_file(path / "model.safetensors")
    save_file({name: convert(w).contiguous() for name, w in weights.items()}, path / "model.safetensors")


def many(file: Path) -> None:
    """A header of the size that 250,000 tensors without elements have. It is refused by its length."""
    with file.open("wb") as content:
        content.write(struct.pack("<Q", MOST_HEADER + 1) + b"{")
        content.truncate(MOST_HEADER + 10)


@pytest.mark.parametrize("case", NONSENSE)
def test_invalid_directories_are_refused(sound: Path, tmp_path: Path, case: str) -> None:
    path = shutil.copytree(sound, tmp_path / "m")
    NONSENSE[case](path)
    assert held(path)


def test_layers_without_stored_tensors_are_never_built(
    sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = shutil.copytree(sound, tmp_path / "m")
    monkeypatch.setattr("groupwise.models.language_files.Decoder", pytest.fail)
    for layers in (LAYERS, 1_000_000):
        change(path, num_hidden_layers=layers)
        with pytest.raises(BadData, match=r"config\.json"):
            read_model(path)


def test_a_file_is_read_up_to_its_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "config.json").open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    with pytest.raises(BadData, match="has more than 67,108,864 bytes"):
        reading.read_json(tmp_path / "config.json")


INDEX: dict[str, object] = {
    "list": [1], "null": None, "text": "x", "int": 3, "empty": {}, "shard int": {"x": 7}, "shard list": {"x": ["a"]},
    "shard null": {"x": None}, "shard object": {"x": {"a": 1}}, "shard long": {"x": "x" * 9000},
    "shard true": {"x": True}, "shard above": {"x": "../outside.safetensors"}, "shard absolute": {"x": "/etc/passwd"},
    "shard itself": {"x": "."}, "shard empty": {"x": ""}, "shard null byte": {"x": "a\0b"},
    "shard surrogate": {"x": "\ud800"},
}  # fmt: skip


@pytest.mark.parametrize("case", INDEX)
def test_an_index_without_shards_is_refused(sound: Path, tmp_path: Path, case: str) -> None:
    path = shutil.copytree(sound, tmp_path / "m")
    (path / "model.safetensors").rename(tmp_path / "outside.safetensors")
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": INDEX[case]}))
    assert held(path)


# Adapters

ADAPTER = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"], "bias": "none"}
ADAPTED = (
    "base_model_name_or_path", "revision", "peft_type", "r", "lora_alpha", "lora_dropout", "target_modules",
    "exclude_modules", "layers_to_transform", "layers_pattern", "rank_pattern", "alpha_pattern", "modules_to_save",
    "bias", "use_dora", "use_rslora", "fan_in_fan_out", "init_lora_weights", "auto_mapping", "megatron_config",
    "layer_replication", "task_type", "target_parameters",
)  # fmt: skip


def adapter(path: Path, base: Path, **changes: object) -> Path:
    path.mkdir(exist_ok=True)
    config = {"base_model_name_or_path": str(base), **ADAPTER, **changes}
    (path / "adapter_config.json").write_text(json.dumps(config))
    sizes = {"A": (2, 32), "B": (48, 2)}
    names = [
        (f"base_model.model.model.layers.{i}.self_attn.q_proj.lora_{x}.weight", sizes[x]) for i in (0, 1) for x in "AB"
    ]
    save_file({name: torch.zeros(*size) for name, size in names}, path / "adapter_model.safetensors")
    return path


def test_a_slow_pattern_is_never_matched(sound: Path, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    pattern = "(.*)*(.*)*(.*)*X"
    plain = read_model(adapter(tmp_path / "plain", sound)).state_dict()
    bomb = read_model(adapter(tmp_path / "bomb", sound, target_modules=pattern, exclude_modules=pattern)).state_dict()
    assert plain.keys() == bomb.keys()
    for field in ("rank_pattern", "alpha_pattern"):
        assert held(adapter(tmp_path / field, sound, **{field: {pattern: 2}}))


@pytest.mark.parametrize(
    "changes",
    [
        {"r": 10**9},
        {"rank_pattern": {"q_proj": 10**9}},
        {"rank_pattern": {"(": 2}},
        {"base_model_name_or_path": "x" * 9000},
        {"lora_alpha": float("nan")},
    ],
)
def test_adapters_with_excessive_sizes_are_refused(sound: Path, tmp_path: Path, changes: dict[str, object]) -> None:
    assert held(adapter(tmp_path / "a", sound, **changes))


@pytest.mark.parametrize("field", ADAPTED)
def test_every_field_of_an_adapter(sound: Path, tmp_path: Path, field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("peft")
    monkeypatch.chdir(tmp_path)
    for name in ("null", "text", "long", "list", "object", "nested", "true", "-1", "10**12", "NaN", "ESC"):
        held(adapter(tmp_path / "a", sound, **{field: VALUES[name]}))


# Templates


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(99999) %}{% for k in range(99999) %}{% endfor %}{% endfor %}",
        "{% set s = namespace(x='ab') %}{% for i in range(60) %}{% set s.x = s.x ~ s.x %}{% endfor %}{{ s.x }}",
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(500) }}",
        "{{ 9 ** (9 ** 9) }}",
        "{{ 'x' * 10 ** 10 }}",
        "{{ 'x'.center(10 ** 9) }}",
        "{{ 'x' | center(10 ** 9) }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ 'x' * 5000000 }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    ],
)
def test_an_endless_template_is_refused(source: str) -> None:
    with pytest.raises(BadData, match="fails on this prompt"):
        find_template("chat", trained(source))("7*5=")


def test_a_worker_serves_until_a_template_exceeds_its_limits() -> None:
    renderer = TemplateRenderer()
    try:
        assert renderer.render("{{ a }}", {"a": "\x1b\ud800日"}) == "\x1b\ud800日"
        first = renderer._process
        with pytest.raises(BadData, match="UndefinedError"):
            renderer.render("{{ a.b.c }}", {})
        assert renderer.render("{{ a }}", {"a": 1}) == "1" and renderer._process is first
        with pytest.raises(BadData, match="CPU time"):
            renderer.render("{% for i in range(99999) %}{% for k in range(99999) %}{% endfor %}{% endfor %}", {})
        assert renderer.render("{{ a }}", {"a": 2}) == "2" and renderer._process is not first
    finally:
        renderer.close()


def test_a_template_with_unknown_characters_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = shutil.copytree(find_model("calculator"), tmp_path / "m")
    change(path, "tokenizer_config.json", chat_template="say: {{ messages[0].content }}")
    assert main(["sample", str(path), "7*5=", "--template", "chat"]) == 3
    assert "no token for the character 's'" in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"[" * 100_000, b'{"a":' * 100_000, b"[]", b"\xff"])
def test_an_invalid_tokenizer_configuration_is_refused(tmp_path: Path, content: bytes) -> None:
    path = directory(tmp_path)
    (path / "tokenizer_config.json").write_bytes(content)
    with pytest.raises(BadData, match=r"tokenizer_config\.json"):
        find_template("chat", read_tokenizer(path))
    (path / "tokenizer_config.json").write_text("{}")
    (path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(BadData, match="is not UTF-8"):
        find_template("chat", read_tokenizer(path))


def test_file_names_and_tensor_names_stay_on_their_line(
    sound: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    name = "a\x1b[2J\nerror: all is well\n  do:   rm -rf ~"
    listed, stored, based = (shutil.copytree(sound, tmp_path / n) for n in ("l", "s", "b"))
    os.rename(listed / "model.safetensors", listed / f"{name.replace('/', '')}.bin")
    save_file({name: torch.zeros(1)}, stored / "model.safetensors")
    adapter(based, Path(name))
    for path in (listed, stored, based):
        assert main(["sample", str(path), "1+1="]) == 3
        lines = capfd.readouterr().err.split("\n")
        assert all(line.isprintable() for line in lines) and not any(
            line.strip().startswith("do:   rm") for line in lines
        )
        assert sum(line.strip().startswith("error:") for line in lines) == 1
