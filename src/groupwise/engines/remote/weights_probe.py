"""The probe of an engine after each load: the scores of a fixed answer show which weights it has."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from groupwise.core import LogprobMismatch
from groupwise.data import Ids, Picture
from groupwise.engines import NativeEngine
from groupwise.engines.remote.remote_engine import RemoteEngine
from groupwise.learner.gathered_weights import GatheredWeights
from groupwise.models import LanguageModel, Tokenizer, picture_of_pixels

__all__ = ["WeightsProbe"]

LENGTH = 32
"""Tokens of the fixed text. They are spread over the vocabulary."""

Scores = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class ProbeScores:
    """The fixed answer's scores under the current and the previous weights (empty at the first load)."""

    current: Scores
    previous: Scores = ()


class WeightsProbe:
    """Computes the scores of a fixed answer in this process, and compares an engine's scores with them.

    The answer of a vision-language model follows a fixed picture, so that the weights of its tower count.

    `max_logprob_diff` bounds the difference of a log-prob. An engine whose scores are nearer to the scores of the
    weights before has not loaded the new ones, even if both are within the bound. It is nearer if its difference from
    them is less than half of the difference between the two: kernels that round differently, as those of sharded ranks
    in bfloat16 and of vLLM do, differ from both by about as much, however little the weights have changed.
    """

    def __init__(self, model: LanguageModel, tokenizer: Tokenizer, max_logprob_diff: float) -> None:
        self.max_logprob_diff, shape = max_logprob_diff, model.shape
        self.context, self.answer = fixed_text(shape.vocabulary_size, shape.max_positions)
        self.pictures: tuple[Picture, ...] = ()
        if tokenizer.picture_processor is not None:
            picture = fixed_picture()
            before = tokenizer.encode_template(tokenizer.picture_processor.text(picture))
            if len(before) + len(self.context) + len(self.answer) <= shape.max_positions:
                self.context, self.pictures = before + self.context, (picture,)
        self._engine = NativeEngine(model, tokenizer, seed=0, max_num_seqs=1)

    async def expect(self, version: int, weights: Mapping[str, Tensor], before: ProbeScores | None) -> ProbeScores:
        """The scores to expect of an engine with these weights: the decoder's own tensors, or those of sharded ranks.

        The latter compute the scores themselves: this process has no whole model.
        """
        if isinstance(weights, GatheredWeights):
            now = await asyncio.to_thread(weights.score, self.context, self.answer)
        else:
            await self._engine.load(version, weights)
            now = await self._engine.score(self.context, self.answer, pictures=self.pictures)
            await self._engine.load(version, weights)  # frees the copies of weights that `score` made
        return ProbeScores(now, before.current if before else ())

    async def check(self, remote: RemoteEngine, expected: ProbeScores) -> None:
        """`LogprobMismatch` if the engine's scores differ from the scores of the current weights."""
        scores = await remote.score(self.context, self.answer, pictures=self.pictures)
        gap = largest_gap(scores, expected.current)
        old = largest_gap(scores, expected.previous) if expected.previous else float("inf")
        is_old = 2 * old < largest_gap(expected.current, expected.previous)
        if gap <= self.max_logprob_diff and not is_old:
            return
        weights = (
            "the weights of the version before"
            if old <= self.max_logprob_diff
            else "neither the new nor the old weights"
        )
        evidence = f"largest difference of a log-prob: {gap:.2g} from the new weights"
        if expected.previous:
            evidence += f", {old:.2g} from those before"
        raise LogprobMismatch(f"the engine {remote.name} reports version {remote.version}, but has {weights}",
                       evidence=evidence, fix="report this as a bug of the engine")  # fmt: skip


def fixed_text(vocabulary: int, positions: int) -> tuple[Ids, Ids]:
    """A context and an answer of token ids, spread over the vocabulary.

    >>> fixed_text(64, 5)
    ((0,), (12, 25, 38, 51))
    """
    length = min(LENGTH, positions)
    ids = tuple(i * vocabulary // length for i in range(length))
    return ids[: length // 4 or 1], ids[length // 4 or 1 :]


def fixed_picture() -> Picture:
    """A picture of light that changes along rows and columns.

    >>> fixed_picture().width, fixed_picture().sha256[:8]
    (32, '8318aee7')
    """
    side = np.arange(0, 256, 8, dtype=np.uint8)
    rows, columns = np.meshgrid(side, side, indexing="ij")
    return picture_of_pixels(np.stack([rows, columns, rows ^ columns], axis=-1))


def largest_gap(a: Sequence[float], b: Sequence[float]) -> float:
    """The largest absolute difference of two lists of scores; infinity for different lengths, or for NaN.

    >>> largest_gap((1.0, 2.0), (1.5, 2.0)), largest_gap((1.0,), ())
    (0.5, inf)
    """
    differences = [abs(x - y) for x, y in zip(a, b)]
    if len(a) != len(b) or any(d != d for d in differences):
        return float("inf")
    return max(differences, default=0.0)
