"""Small decoders, tasks, engines and verifiers for the tests of this room."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from groupwise.data import Draw, Finish, Generation, GenerationRequest, Ids, Outcome, Prompt, Sample, Sampling, Verdict
from groupwise.models import Decoder, Shape, Shared, Tokenizer
from groupwise.rollout import NativeEngine
from tests.models.directories import characters

VOCABULARY = 20


def tokenizer(*eos: int) -> Tokenizer:
    """Characters of arithmetic; `eos` besides (or instead of) the usual end token 0."""
    return Tokenizer.of(characters().fast, eos or (0,))


def endless() -> Tokenizer:
    """No token ends an answer."""
    return Tokenizer.of(characters().fast, ())


def decoder(dtype: torch.dtype = torch.float64, spread: float = 0.3, **changes: Any) -> Decoder:
    fields: dict[str, Any] = {
        "vocabulary": VOCABULARY, "width": 32, "layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 8, "inner": 48,
        "positions": 512, "qk_norm": True, "tied": True,
    }  # fmt: skip
    return Decoder.new(Shape(**{**fields, **changes}), 3, dtype=dtype, spread=spread)


def engine(model: Decoder | None = None, reader: Tokenizer | None = None, **sizes: Any) -> NativeEngine:
    return NativeEngine(model or decoder(), reader or endless(), seed=sizes.pop("seed", 11), **sizes)


def prompt_of(i: int, length: int = 9) -> Ids:
    return tuple(1 + (7 * i + 3 * j * j + i * j) % (VOCABULARY - 1) for j in range(length))


def ask(i: int = 0, **changes: Any) -> GenerationRequest:
    fields: dict[str, Any] = {"context": prompt_of(i), "limit": 12, "draw": i, "stream": (0,)}
    return GenerationRequest(**{**fields, **changes})


def answered(e: NativeEngine, asks: Sequence[GenerationRequest]) -> list[Generation]:
    async def go() -> list[Generation]:
        return list(await asyncio.gather(*(e.sample(a) for a in asks)))

    return asyncio.run(go())


def logits(model: Decoder, context: Ids, tokens: Ids) -> Tensor:
    """What the model says before each token, from one plain forward of the whole."""
    with torch.no_grad():
        layout = Shared.of([context], [tokens])
        return model.head(model(layout.tokens, layout))[layout.source]


@dataclass(eq=False)
class Scripted:
    """An engine that says what it is told: `says(ask)` is the rest of the answer, and may be slow, hang or fail."""

    says: Any
    version: int = 0
    microbatches: int = 1 << 30
    """At most so many tokens before an interruption."""
    asks: list[GenerationRequest] = field(default_factory=list)

    async def sample(self, ask: GenerationRequest) -> Generation:
        self.asks.append(ask)
        told = self.says(ask)
        rest = tuple(await told if asyncio.iscoroutine(told) else told)
        tokens, finish = rest[: ask.limit], Finish.stop
        if len(rest) > ask.limit:
            finish = Finish.length
        if len(tokens) > self.microbatches:
            tokens, finish = tokens[: self.microbatches], Finish.cut
            self.version += 1
            return Generation(
                tokens=tokens, logp=(-1.0,) * len(tokens), versions=(self.version - 1,) * len(tokens), finish=finish
            )
        return Generation(
            tokens=tokens, logp=(-1.0,) * len(tokens), versions=(self.version,) * len(tokens), finish=finish
        )

    async def score(self, context: Ids, tokens: Ids) -> tuple[float, ...]:
        return tuple(-float(len(context) + i) for i in range(len(tokens)))

    async def load(self, version: int, weights: Mapping[str, Tensor]) -> None:
        self.version = version

    def prefill(self, contexts: Sequence[Ids]) -> None:
        return None


@dataclass(frozen=True)
class Listed:
    """Prompts with one token each; the rest of their meaning is up to the verifier."""

    count: int

    @property
    def held_out(self) -> Sequence[Prompt]:
        return ()

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Prompt:
        return Prompt(f"p{index}", (1 + index % (VOCABULARY - 1),), given={"index": index})


def verdict(score: float) -> Verdict:
    return Verdict(Outcome.correct if score == 1 else Outcome.wrong, score)


async def right(prompt: Prompt, sample: Sample) -> Verdict:
    return verdict(1.0)


def draw(i: int = 0, n: int = 3) -> Draw:
    return Draw(i, Prompt(f"p{i}", prompt_of(i)), n)


def sampling(**changes: Any) -> Sampling:
    return Sampling(**{"max_tokens": 12, **changes})
