"""Quantised checkpoints are refused before their weights are read, with the model to take instead."""

import json
from pathlib import Path
from typing import Any

import pytest

from groupwise.__main__ import main
from groupwise.core import BadData
from groupwise.models import read_shape
from tests.checks import check
from tests.models.directories import directory

SCHEMES: dict[str, dict[str, Any]] = {
    "bitsandbytes in 4 bits": {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}},
    "GPTQ": {"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128}},
    "AWQ": {"quantization_config": {"quant_method": "awq", "w_bit": 4}},
    "FP8": {"quantization_config": {"quant_method": "fp8", "fmt": "e4m3"}},
    "compressed-tensors": {"compression_config": {"format": "pack-quantized"}},
}


def quantised(path: Path, scheme: str) -> Path:
    config = json.loads((directory(path) / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | SCHEMES[scheme]))
    return path


@pytest.mark.parametrize("scheme", SCHEMES)
def test_check_and_train_refuse_it(scheme: str, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = quantised(home / "model", scheme)
    fields = [("model", str(model)), ("sampling.max_tokens", "8"), ("lora.rank", "2")]
    errors = [error for error in check(None, fields) if "is quantised" in error.what]
    assert len(errors) == 1 and isinstance(errors[0], BadData)
    assert "--lora.rank 16" in errors[0].fix and str(next(iter(SCHEMES[scheme]))) in errors[0].evidence
    assert main(["train", *(word for name, value in fields for word in (f"--{name}", value))]) == 3
    assert "is quantised" in capsys.readouterr().err
    assert not Path("runs").exists()


def test_an_adapter_on_a_quantised_base_is_refused(tmp_path: Path) -> None:
    base, adapter = quantised(tmp_path / "base", "bitsandbytes in 4 bits"), tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(base)}))
    with pytest.raises(BadData, match="is quantised"):
        read_shape(adapter)
