"""Requests and answers of vLLM, as plain values: this file runs without vLLM."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from groupwise.core import EngineLost, Usage
from groupwise.data import Finish, Generation, GenerationRequest, Ids, Likeliest, Sampling
from groupwise.models import lineage
from groupwise.models.decoder.decoder import ModelSizes

FINISHES: Mapping[str, Finish] = {"stop": Finish.stop, "length": Finish.length, "abort": Finish.cut}
"""vLLM's reasons why a request ended."""
BLOCK = 32
"""Tokens of a cache block: the smallest that vLLM has on CPUs, so that most prompts share one."""


@runtime_checkable
class WeightVersionSpan(Protocol):
    """Output tokens from `start` to `end` were sampled by the weights `version`: vLLM's `WeightVersionSpan`."""

    version: str
    start: int
    end: int


@runtime_checkable
class TokenLogprob(Protocol):
    """The log-prob of one token: vLLM's `Logprob`."""

    logprob: float


@dataclass(frozen=True, slots=True)
class RequestRandomKey:
    """The key of a request's random numbers, and its distribution, as JSON that travels with a request to the sampler.

    The number for output token i of the request is `uniform((seed, random_purpose), draw_id, stream, at + i)`, as in
    `Native`.
    """

    draw_id: int
    stream: int
    position: int
    random_purpose: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float

    @classmethod
    def of(cls, request: GenerationRequest) -> "RequestRandomKey":
        """The key of a request."""
        s = request.sampling
        return cls(
            request.draw_id,
            lineage(request.stream),
            request.already_generated_count,
            request.random_purpose,
            s.temperature,
            s.top_p,
            s.top_k,
            s.min_p,
        )

    @property
    def sampling(self) -> Sampling:
        """The distribution of the next token."""
        return Sampling(temperature=self.temperature, top_p=self.top_p, top_k=self.top_k, min_p=self.min_p)


def cache_bytes(shape: ModelSizes, element_size: int, max_num_seqs: int, kv_cache_tokens: int) -> int:
    """Bytes of the cache of keys and values: `kv_cache_tokens` tokens, or less if `max_num_seqs` sequences need less.

    At least one sequence of all positions fits.
    """
    blocks = -(-(shape.max_positions + 1) // BLOCK)
    tokens = max(min(kv_cache_tokens, max_num_seqs * blocks * BLOCK), blocks * BLOCK) + BLOCK
    return tokens * 2 * shape.layers * shape.kv_heads * shape.head_dim * element_size


def sampling_arguments(request: GenerationRequest, ends: Sequence[int], *, keyed: bool) -> dict[str, Any]:
    """The arguments of vLLM's `SamplingParams` for a request. `Usage` for one that vLLM cannot answer.

    If `keyed`, our sampler reads the distribution from the key, and vLLM's own settings stay neutral.
    """
    s = request.sampling
    if request.num_top_logprobs and (s.truncated or s.temperature != 1):
        raise Usage(
            "vLLM reports the likeliest tokens of the distribution that it samples from",
            evidence=f"temperature {s.temperature}, top_p {s.top_p}, top_k {s.top_k}, min_p {s.min_p}",
            fix="sample at temperature 1 without truncation, or use engine.kind = 'Native'",
        )
    common = {
        "max_tokens": request.limit,
        "logprobs": request.num_top_logprobs,
        "stop_token_ids": list(ends),
        "ignore_eos": True,  # of vLLM's own tokenizer, if it has one: `ends` are all
        "detokenize": False,
    }
    if keyed:
        key = RequestRandomKey.of(request)
        return common | {
            "temperature": 1.0,
            "extra_args": {"key": [getattr(key, name) for name in RequestRandomKey.__slots__]},
        }
    return common | {"temperature": s.temperature, "top_p": s.top_p, "top_k": s.top_k, "min_p": s.min_p}


def generation(
    tokens: Ids, logprobs: Sequence[Mapping[int, TokenLogprob]], spans: Iterable[WeightVersionSpan], reason: str | None,
    request: GenerationRequest,
) -> Generation:  # fmt: skip
    """The generation of a finished request. `EngineLost` if vLLM did not say which weights sampled each token."""
    versions = [int(span.version) for span in spans for _ in range(span.start, min(span.end, len(tokens)))]
    if reason is None or reason not in FINISHES or len(versions) != len(tokens) or len(logprobs) != len(tokens):
        evidence = f"{reason}: {len(tokens)} tokens, {len(logprobs)} log-probs, {len(versions)} versions"
        raise EngineLost("vLLM ended a request in an unknown way", evidence=evidence, fix="start the engine again")
    certain = request.sampling.temperature == 0  # as `logprobs` has it: the first largest logit has all probability
    logp = tuple(0.0 if certain else row[token].logprob for row, token in zip(logprobs, tokens))
    return Generation(
        tokens=tokens,
        logp=logp,
        versions=tuple(versions),
        finish=FINISHES[reason],
        top_logprobs=tuple(_likeliest(row, request.num_top_logprobs) for row in logprobs)
        if request.num_top_logprobs
        else (),
    )


def _likeliest(row: Mapping[int, TokenLogprob], top: int) -> Likeliest:
    return tuple(sorted(((token, x.logprob) for token, x in row.items()), key=lambda pair: -pair[1])[:top])
