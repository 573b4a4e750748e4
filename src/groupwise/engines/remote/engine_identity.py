"""What an engine is without its weights: a trainer compares it before it sends them."""

import hashlib
from dataclasses import asdict, dataclass
from typing import Any

from torch import nn

from groupwise.core import Usage
from groupwise.models import Decoder, Tokenizer
from groupwise.models.lora import adapter_text
from groupwise.models.vision.vision_files import architecture_text

__all__ = ["EngineIdentity"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineIdentity:
    """The identity of an engine without its weights. Equal identities and weights give equal answers.

    `model_hash` and `tokenizer_hash` are SHA-256 hashes of the architecture with its adapter's settings, and of the
    vocabulary with its end tokens.
    """

    model_hash: str
    tokenizer_hash: str
    dtype: str
    seed: int

    @classmethod
    def of(cls, model: nn.Module, tokenizer: Tokenizer, *, seed: int, merged: bool = False) -> "EngineIdentity":
        """The identity of an engine for this model, or its outline; `merged`: its weights contain the adapter."""
        text = repr(model.shape) if isinstance(model, Decoder) else architecture_text(model)
        return cls(
            model_hash=_hash(text + ("" if merged else adapter_text(model))),
            tokenizer_hash=_hash(f"{tokenizer.digest} {sorted(tokenizer.eos_ids)}"),
            dtype=str(next(model.parameters()).dtype).removeprefix("torch."),
            seed=seed,
        )

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "EngineIdentity":
        """The identity in a reply to `hello`. Unknown fields are ignored, and missing ones are empty."""
        texts = {name: str(data.get(name, "")) for name in ("model_hash", "tokenizer_hash", "dtype")}
        seed = data.get("seed")
        return cls(**texts, seed=seed if isinstance(seed, int) else -1)

    def check(self, other: "EngineIdentity", name: str) -> None:
        """`Usage` if the engine `name` has this identity, and `other` is required."""
        expected = asdict(other)
        different = [f"{key} {str(value)[:12]}, expected {str(expected[key])[:12]}"
                     for key, value in asdict(self).items() if value != expected[key]]  # fmt: skip
        if different:
            fix = "start it with the run's model, machine.dtype and seed: groupwise serve MODEL"
            raise Usage(f"{name} is another engine than the run needs", evidence="\n".join(different), fix=fix)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
