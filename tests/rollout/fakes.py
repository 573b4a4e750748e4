"""Small decoders, tasks, engines and verifiers for tests."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from groupwise.data import (
    ContextKey,
    Draw,
    Finish,
    Generation,
    GenerationRequest,
    Ids,
    Outcome,
    Picture,
    Prompt,
    Sample,
    Sampling,
    Verdict,
    Verifier,
)
from groupwise.engines import NativeEngine
from groupwise.models import Decoder, DecoderShape, Model, PrefixPacking, Tokenizer
from groupwise.rollout import RolloutSetting, SinglePromptSampler, Stored
from tests.models.directories import characters

VOCABULARY = 20


def tokenizer(*eos: int) -> Tokenizer:
    """A tokenizer of arithmetic characters with the end tokens `eos` (default: 0)."""
    return Tokenizer.of(characters().backend_tokenizer, eos or (0,))


def without_end_token() -> Tokenizer:
    """A tokenizer without end tokens."""
    return Tokenizer.of(characters().backend_tokenizer, ())


def decoder(dtype: torch.dtype = torch.float64, spread: float = 0.3, **changes: Any) -> Decoder:
    fields: dict[str, Any] = {
        "vocabulary_size": VOCABULARY, "hidden_size": 32, "layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 8,
        "mlp_width": 48, "max_positions": 512, "qk_norm": True, "tied_embeddings": True,
    }  # fmt: skip
    return Decoder.new(DecoderShape(**{**fields, **changes}), 3, dtype=dtype, spread=spread)


def engine(model: Model | None = None, tokens: Tokenizer | None = None, **sizes: Any) -> NativeEngine:
    return NativeEngine(model or decoder(), tokens or without_end_token(), seed=sizes.pop("seed", 11), **sizes)


def prompt_of(i: int, length: int = 9) -> Ids:
    return tuple(1 + (7 * i + 3 * j * j + i * j) % (VOCABULARY - 1) for j in range(length))


def request(i: int = 0, **changes: Any) -> GenerationRequest:
    fields: dict[str, Any] = {"context": prompt_of(i), "limit": 12, "draw_id": i, "stream": (0,)}
    return GenerationRequest(**{**fields, **changes})


def generate(e: Any, requests: Sequence[GenerationRequest]) -> list[Generation]:
    """The generations of concurrent requests."""

    async def go() -> list[Generation]:
        return list(await asyncio.gather(*(e.sample(request) for request in requests)))

    return asyncio.run(go())


def logits(model: Decoder, context: Ids, tokens: Ids) -> Tensor:
    """The logits before each token, from one forward of the whole sequence by the learner's layout."""
    with torch.no_grad():
        layout = PrefixPacking.of([context], [tokens])
        return model.head(model(layout.tokens, layout))[layout.predicting_indices]


@dataclass(eq=False)
class FakeEngine:
    """An engine whose tokens come from `answer(request)`, a function that may also await, hang or raise.

    An answer that is longer than the request's limit is truncated. `calls` lists requests and loaded versions in order.
    """

    answer: Any
    version: int = 0
    interrupt_after: int = 1 << 30
    """The number of tokens after which a generation is cut and the version increases."""
    calls: list[Any] = field(default_factory=list)

    @property
    def requests(self) -> list[GenerationRequest]:
        return [call for call in self.calls if isinstance(call, GenerationRequest)]

    async def sample(self, request: GenerationRequest) -> Generation:
        self.calls.append(request)
        answer = self.answer(request)
        answer = tuple(await answer if asyncio.iscoroutine(answer) else answer)
        version = self.version
        tokens, finish = answer[: request.limit], Finish.length if len(answer) > request.limit else Finish.stop
        if len(tokens) > self.interrupt_after:
            tokens, finish = tokens[: self.interrupt_after], Finish.cut
            self.version += 1
        return Generation(tokens=tokens, logp=(-1.0,) * len(tokens), versions=(version,) * len(tokens), finish=finish)

    async def score(
        self, context: Ids, tokens: Ids, *, temperature: float = 1.0, pictures: Sequence[Picture] = ()
    ) -> tuple[float, ...]:
        return tuple(-float(len(context) + i) / temperature for i in range(len(tokens)))

    async def load(self, version: int, weights: Mapping[str, Tensor]) -> None:
        self.version = version
        self.calls.append(version)

    def prefill(self, contexts: Sequence[ContextKey]) -> None:
        return None


@dataclass(frozen=True)
class NumberedTask:
    """Prompts of one token with their index in `given`."""

    count: int

    @property
    def held_out(self) -> Sequence[Prompt]:
        return ()

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Prompt:
        return Prompt(f"p{index}", (1 + index % (VOCABULARY - 1),), row={"index": index})


def verdict(score: float) -> Verdict:
    return Verdict(Outcome.correct if score == 1 else Outcome.wrong, score)


async def always_correct(prompt: Prompt, sample: Sample) -> Verdict:
    return verdict(1.0)


def draw(i: int = 0, n: int = 3) -> Draw:
    return Draw(i, Prompt(f"p{i}", prompt_of(i)), n)


def sampling(**changes: Any) -> Sampling:
    return Sampling(**{"max_tokens": 12, **changes})


class Judged(Verifier):
    """The verifier that calls a function of a test."""

    def __init__(self, grade: Any) -> None:
        self.grade = grade

    async def __call__(self, prompt: Prompt, sample: Sample) -> Verdict:
        return await self.grade(prompt, sample)


def judged_by(grade: Any) -> Verifier:
    """The verifier itself, or the one that calls a function."""
    return grade if isinstance(grade, Verifier) else Judged(grade)


def sampler_of(engine: Any, draw: Draw, *, verifier: Any = always_correct, **changes: Any) -> SinglePromptSampler:
    """The sampler of a draw, with a fake or a native engine; `changes` are of its setting, or its purpose."""
    own = {name: changes.pop(name) for name in ("random_purpose",) if name in changes}
    fields = {"engine": engine, "tokenizer": tokenizer(), "sampling": sampling(), "seed": 11}
    setting = RolloutSetting(**(fields | changes), verifier=judged_by(verifier))
    return SinglePromptSampler(draw=draw, rollout_setting=setting, **own)


def stored(prompt: Prompt, tokenizer: Tokenizer, frame: tuple[Ids, Ids] = ((), ())) -> Sample:
    """The answer of a row as the sample that a method of stored answers trains."""
    draw = Draw(0, prompt, 1)
    sampler = sampler_of(FakeEngine(None), draw, tokenizer=tokenizer, observation_frame_ids=frame)
    return asyncio.run(Stored()(draw, sampler)).samples[0]
