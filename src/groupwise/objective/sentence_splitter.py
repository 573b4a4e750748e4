"""`SentenceSplitter`: splits the trained tokens of an answer into sentences, at punctuation and new lines."""

from dataclasses import dataclass
from functools import lru_cache

import torch

from groupwise.data import Batch, Segments

__all__ = ["SentenceSplitter"]


@dataclass(frozen=True, slots=True)
class SentenceSplitter:
    """Splits trained tokens into sentences. A sentence ends after a token with one of the `end_characters`.

    A mark between two digits (3.14) ends nothing. Where an environment speaks or tokens are masked, a new sentence
    begins. SSPO, arXiv:2511.04256, does not publish its rule, so this one is our reading.

    >>> from groupwise.data import pack, rollout_of
    >>> SentenceSplitter()(pack([rollout_of([1.0], lengths=[3])])).count
    1
    """

    end_characters: str = ".!?;\n"

    def __call__(self, b: Batch) -> Segments:
        ends = b.at_trained([self._ends(s.text, s.token_ends, len(s.tokens)) for s in b.samples], torch.bool)
        begins = torch.ones_like(ends)
        if len(begins) > 1:
            sequence, token = b.sequences.index, b.index_in_sample
            begins[1:] = (sequence[1:] != sequence[:-1]) | (token[1:] != token[:-1] + 1) | ends[:-1]
        return Segments(begins.long().cumsum(0) - 1, int(begins.sum()))

    def _ends(self, text: str, ends: tuple[int, ...], tokens: int) -> tuple[bool, ...]:
        return _sentence_ends(text, ends, self.end_characters) if ends else (False,) * tokens


@lru_cache(maxsize=1 << 12)
def _sentence_ends(text: str, ends: tuple[int, ...], at: str) -> tuple[bool, ...]:
    """Whether each token contains the end of a sentence."""
    return tuple(any(_is_end(text, i, at) for i in range(start, end)) for start, end in zip((0, *ends), ends))


def _is_end(text: str, i: int, at: str) -> bool:
    return text[i] in at and not (text[i - 1 : i].isdigit() and text[i + 1 : i + 2].isdigit())
