"""Scalings of rotary positions for texts longer than in pretraining: Linear, Dynamic, Llama3, YaRN.

Each scaling is a component with the field names of Hugging Face configurations. It maps the plain frequencies to scaled
ones, in float64. `stretch` multiplies cosine and sine, so attention scores grow by its square.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from groupwise.models.json_fields import flag, real

LENGTH = "original_max_position_embeddings"
LEAST, MOST, MAY_BE_0 = 1e-6, 1e6, ("mscale", "mscale_all_dim")
"""Bounds on the numbers of a rope scaling, and the names of those that may be 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearRopeScaling:
    """Divides every rotary frequency by `factor`. Position interpolation, arXiv:2306.15595."""

    kind: ClassVar[str] = "linear"
    attention_scaling: ClassVar[float] = 1.0
    factor: float

    def __call__(self, plain: Float[Tensor, " half"], theta: float) -> Float[Tensor, " half"]:
        return plain / self.factor


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicRopeScaling:
    """Keeps the frequencies: dynamic scaling starts beyond `max_position_embeddings`, which is the limit here."""

    kind: ClassVar[str] = "dynamic"
    attention_scaling: ClassVar[float] = 1.0
    factor: float

    def __call__(self, plain: Float[Tensor, " half"], theta: float) -> Float[Tensor, " half"]:
        return plain


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama3RopeScaling:
    """Short wavelengths stay, long ones grow by `factor`, others are interpolated. Llama 3.1, arXiv:2407.21783."""

    kind: ClassVar[str] = "llama3"
    attention_scaling: ClassVar[float] = 1.0
    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int

    def __call__(self, plain: Float[Tensor, " half"], theta: float) -> Float[Tensor, " half"]:
        turns = self.original_max_position_embeddings * plain / (2 * math.pi)
        share = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        share = share.clamp(0, 1)
        return share * plain + (1 - share) * plain / self.factor


@dataclass(frozen=True, slots=True, kw_only=True)
class YarnRopeScaling:
    """Interpolates slow dimension pairs (fewer than `beta_slow` turns over the original length), not fast ones. YaRN.

    YaRN, arXiv:2309.00071, section 3.2. Its temperature is `attention_scaling`, by default `0.1 ln(factor) + 1`.
    """

    kind: ClassVar[str] = "yarn"
    factor: float
    original_max_position_embeddings: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True

    @property
    def attention_scaling(self) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return self._temperature(self.mscale) / self._temperature(self.mscale_all_dim)
        return self._temperature(1.0)

    def _temperature(self, scale: float) -> float:
        return 0.1 * scale * math.log(self.factor) + 1 if self.factor > 1 else 1.0

    def __call__(self, plain: Float[Tensor, " half"], theta: float) -> Float[Tensor, " half"]:
        low, high = (self._pair(turns, 2 * len(plain), theta) for turns in (self.beta_fast, self.beta_slow))
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, 2 * len(plain) - 1)
        pair = torch.arange(len(plain), dtype=plain.dtype, device=plain.device)
        slow = ((pair - low) / (high - low if high != low else 0.001)).clamp(0, 1)
        return slow * plain / self.factor + (1 - slow) * plain

    def _pair(self, turns: float, dim: int, theta: float) -> float:
        """The index of the dimension pair that makes this many turns over the original length."""
        return dim * math.log(self.original_max_position_embeddings / (turns * 2 * math.pi)) / (2 * math.log(theta))


Scaling = LinearRopeScaling | DynamicRopeScaling | Llama3RopeScaling | YarnRopeScaling
SCALINGS: dict[str, type[Scaling]] = {
    s.kind: s for s in (LinearRopeScaling, DynamicRopeScaling, Llama3RopeScaling, YarnRopeScaling)
}


def scaling_of(rope: Mapping[str, Any], positions: int) -> Scaling | None:
    """Read the rope scaling in a configuration's rotary parameters; None without one.

    KeyError for an unknown kind or a missing field; TypeError or ValueError for a field that is not a number.

    >>> scaling_of({"rope_type": "linear", "factor": 4}, 2048)
    LinearRopeScaling(factor=4.0)
    """
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "default":
        return None
    part = SCALINGS[kind]
    names = {f.name for f in fields(part)}
    numbers = [n for n in names - {LENGTH, "truncate"} if rope.get(n) is not None]
    values: dict[str, Any] = {n: real(rope, n, low=0 if n in MAY_BE_0 else LEAST, high=MOST) for n in numbers}
    if "truncate" in names:
        values["truncate"] = flag(rope, "truncate", default=True)
    if LENGTH in names:
        values[LENGTH] = int(real(rope, LENGTH, low=1, high=1 << 40, default=positions))
        values.setdefault("factor", positions / values[LENGTH])
    scaling = part(**values)
    if isinstance(scaling, Llama3RopeScaling) and scaling.low_freq_factor >= scaling.high_freq_factor:
        raise ValueError(
            f"low_freq_factor is {scaling.low_freq_factor:g}: "
            f"needs low_freq_factor < high_freq_factor, {scaling.high_freq_factor:g}"
        )
    return scaling


def parameters_of(scaling: Scaling) -> dict[str, Any]:
    """Write a rope scaling as rotary parameters of a configuration: the inverse of `scaling_of`."""
    return {"rope_type": scaling.kind} | {k: v for k, v in asdict(scaling).items() if v is not None}
