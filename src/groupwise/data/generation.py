"""The input and output of an engine: sampling parameters, requests and generations."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from groupwise.core.field_types import check_types
from groupwise.data.pictures import Picture

__all__ = ["COLDEST", "ContextKey", "Finish", "Generation", "GenerationRequest", "Ids", "Likeliest", "Sampling"]

Ids = tuple[int, ...]

Likeliest = tuple[tuple[int, float], ...]
"""The most probable tokens at one position: (token id, log-prob at temperature 1), in descending order."""

ContextKey = tuple[str, Ids]
"""The identity of a context: a hash of its content besides tokens, such as images (may be empty), and its token ids."""


class Finish(IntEnum):
    """Why generation ended: an end token or stop string, the token budget, or an interruption (`cut`)."""

    stop = 0
    length = 1
    cut = 2


COLDEST = 1e-6
"""The lowest temperature but 0: logits divided by a lower one may overflow to infinity, and log-probs to NaN."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters. Temperature 0 is greedy decoding. `stop` strings stay in the answer.

    Truncation (`top_p`, `top_k`, `min_p`) is for evaluation only: in training it would bias every ratio.
    """

    temperature: float = 1.0
    max_tokens: int = 1024
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    stop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_types(self)
        cuts = 0 < self.top_p <= 1 and self.top_k >= 0 and 0 <= self.min_p < 1
        if not (cuts and 0 <= self.temperature < float("inf")):
            raise ValueError(f"{self}\nneeds temperature >= 0, 0 < top_p <= 1, top_k >= 0 and 0 <= min_p < 1")
        if 0 < self.temperature < COLDEST:
            raise ValueError(f"temperature is {self.temperature}\nuse 0, which is greedy, or at least {COLDEST}")
        if "" in self.stop:
            raise ValueError("a stop string is empty: it would end every answer after one token\nremove it")
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens is {self.max_tokens}\nset max_tokens >= 1: an answer has at least one token")

    @property
    def truncated(self) -> bool:
        """Whether `top_p`, `top_k` or `min_p` removes tokens from the distribution."""
        return self.top_p < 1 or self.top_k > 0 or self.min_p > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """A request for up to `limit` next tokens of a sample.

    Its `already_generated_count` tokens so far are the last ids of `context`.

    The random number of the token at position t is keyed by (seed, purpose, draw, stream, t). Other requests in the
    batch do not change it.
    """

    context: Ids
    limit: int
    draw_id: int
    stream: Ids
    already_generated_count: int = 0
    sampling: Sampling = Sampling()
    random_purpose: int = 0
    content_hash: str = ""
    """Hash of the prompt's content besides token ids, such as images."""
    pictures: tuple[Picture, ...] = ()
    """The pictures behind the placeholders of the context, in their order. `content_hash` names them."""
    previous_actions: tuple[bytes, ...] = ()
    """The sample's encoded actions so far (`Sample.actions`), if the policy's actions are not tokens of text."""
    num_top_logprobs: int = 0
    """The number of most probable tokens to return for each new position (`Generation.top_logprobs`)."""
    steps_per_token: int = 1
    """For a flow policy without noise: the number of denoising steps that one token spans."""
    denoising_steps: int | None = None
    """For a flow policy: the number of denoising steps, if not the policy's own; such a sample must not be trained."""

    @property
    def context_key(self) -> ContextKey:
        """The identity of the request's context. Contexts with equal ids but different actions are different."""
        return content_hash(self.content_hash, self.previous_actions), self.context


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """The engine's answer to a `GenerationRequest`. An interrupted generation has `Finish.cut`.

    `logp` is under the sampling distribution. `routes` are the experts of a mixture, if the engine records them: for
    each token of the request's context and each new token except the last, which was not forwarded. `actions` has the
    action of each new token, if actions are no words (see `Sample.actions`). `top_logprobs` has the likeliest tokens at
    the position of each new token, if the request has `top`.
    """

    tokens: Ids
    logp: tuple[float, ...]
    versions: Ids
    finish: Finish
    routes: tuple[bytes, ...] = ()
    actions: tuple[bytes, ...] = ()
    top_logprobs: tuple[Likeliest, ...] = ()


def content_hash(content: str, path: Sequence[bytes]) -> str:
    """Hash of all that a context contains besides token ids: content such as images (`content`), and encoded actions.

    >>> content_hash("image", ()), content_hash("", (b"ab", b"c")) == content_hash("", (b"a", b"bc"))
    ('image', False)
    """
    if not any(path):
        return content
    actions = "".join(hashlib.sha256(action).hexdigest() for action in path)
    return hashlib.sha256(f"{content} {actions}".encode()).hexdigest()
