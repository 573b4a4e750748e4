"""Our decoder against transformers: the same logits, directories that both load. Greedy answers: `test_families`."""

from collections.abc import Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from groupwise.models import Decoder, PrefixPacking, Tokenizer, read_model, read_tokenizer, write_model
from tests.models import plain
from tests.models.directories import bytes_, characters, directory, shape
from tests.models.plain import made

transformers = pytest.importorskip("transformers")
load = partial(plain.load, attention="sdpa")  # eager attention has a softmax in float32
FAMILIES = ("qwen2", "qwen3", "llama", "mistral")
PROMPT = (3, 17, 22, 5, 9, 31, 38, 2, 2, 14)


def theirs(path: Path, family: str, **changes: object) -> nn.Module:
    """Save a random model of a family."""
    width = {"head_dim": 12} if family == "qwen3" else {}
    return made(path, family.capitalize(), rope_theta=5000.0, rms_norm_eps=1e-5, **width, **changes)


@torch.no_grad()
def logits(model: Decoder, ids: tuple[int, ...]) -> Tensor:
    layout = PrefixPacking.of([ids], [(0,)])
    return model.head(model(layout.tokens, layout))


@torch.no_grad()
def their_logits(model: nn.Module, ids: tuple[int, ...]) -> Tensor:
    return model(torch.tensor([ids])).logits[0]


def close(ours: Tensor, other: Tensor, most: float) -> bool:
    assert other.std() > 0.1  # constant logits would prove nothing
    return bool((ours - other).abs().max() <= most)


@pytest.fixture
def exact() -> Iterator[None]:
    """transformers with norms and rotary positions in the dtype of the model, not in float32."""
    modules = [import_module(f"transformers.models.{family}.modeling_{family}") for family in FAMILIES]

    def norm(self: nn.Module, x: Tensor) -> Tensor:
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)

    def rotary(self: nn.Module, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        dim = getattr(self.config, "head_dim", None) or self.config.hidden_size // self.config.num_attention_heads
        base = self.config.rope_parameters["rope_theta"]
        angle = position_ids[..., None].double() / base ** (torch.arange(0, dim, 2).double() / dim)
        angle = torch.cat([angle, angle], -1)
        return angle.cos().to(x.dtype), angle.sin().to(x.dtype)

    with pytest.MonkeyPatch.context() as patch:
        for module in modules:
            for name, kind in vars(module).copy().items():
                if name.endswith("RMSNorm"):
                    patch.setattr(kind, "forward", norm)
                elif name.endswith("RotaryEmbedding"):
                    patch.setattr(kind, "forward", rotary)
        yield


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tied", [False, True])
def test_logits_equal_transformers_in_float32(tmp_path: Path, family: str, tied: bool) -> None:
    model = theirs(tmp_path, family, tie_word_embeddings=tied)
    ours = read_model(tmp_path)
    assert close(logits(ours, PROMPT), their_logits(model, PROMPT), 1e-4)
    assert close(logits(ours, PROMPT * 12), their_logits(model, PROMPT * 12), 1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_exact_transformers_in_float64(tmp_path: Path, family: str, exact: None) -> None:
    theirs(tmp_path, family)
    ours, model = read_model(tmp_path, dtype=torch.float64), load(tmp_path, torch.float64)
    assert close(logits(ours, PROMPT * 12), their_logits(model, PROMPT * 12), 1e-9)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tied", [False, True])
def test_transformers_loads_what_we_write(tmp_path: Path, family: str, tied: bool) -> None:
    ours = read_model(directory(tmp_path, family, tied_embeddings=tied))
    model: Any = load(tmp_path)
    assert close(logits(ours, PROMPT), their_logits(model, PROMPT), 1e-4)
    assert model.generation_config.eos_token_id in (0, [0])
    assert next(model.parameters()).dtype == torch.float32


def test_a_model_of_transformers_comes_back_through_us(tmp_path: Path) -> None:
    model = theirs(tmp_path / "theirs", "qwen2", tie_word_embeddings=True)
    write_model(read_model(tmp_path / "theirs"), tmp_path / "ours", tokenizer=characters())
    again = load(tmp_path / "ours")
    assert torch.equal(their_logits(model, PROMPT), their_logits(again, PROMPT))


def test_sharded_directories_of_transformers_are_read(tmp_path: Path) -> None:
    model = theirs(tmp_path / "whole", "llama")
    model.save_pretrained(tmp_path / "shards", max_shard_size="20KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 1
    assert torch.equal(logits(read_model(tmp_path / "shards"), PROMPT), logits(read_model(tmp_path / "whole"), PROMPT))


@pytest.mark.parametrize(("tokenizer", "text"), [(characters(), "7*5=35;#35"), (bytes_(), "a = 日本 + 😀")])
def test_transformers_loads_the_tokenizer_that_we_write(tmp_path: Path, tokenizer: Tokenizer, text: str) -> None:
    write_model(Decoder.new(shape("qwen3", vocabulary_size=320), 0), tmp_path, tokenizer=tokenizer)
    fast = transformers.AutoTokenizer.from_pretrained(tmp_path, local_files_only=True)
    assert tuple(fast(text, add_special_tokens=False).input_ids) == tokenizer.encode(text)
    assert fast.decode(tokenizer.encode(text)) == text == read_tokenizer(tmp_path).decode(tokenizer.encode(text))
    assert fast.eos_token_id in tokenizer.eos_ids
    assert fast.is_fast
