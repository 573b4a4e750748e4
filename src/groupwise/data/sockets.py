"""The sockets: one Protocol for each kind of part that two rooms speak of."""

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

from jaxtyping import Bool, Float, Int
from torch import Tensor

from groupwise.data.batch import Batch
from groupwise.data.sample import Draw, Generation, GenerationRequest, Ids, Prompt, Rollout, Sample, Verdict

__all__ = [
    "Advantage",
    "Aggregate",
    "Backbone",
    "Couples",
    "Credit",
    "Curriculum",
    "Engine",
    "EngineKind",
    "Environment",
    "Filter",
    "Layout",
    "LinearHead",
    "Mask",
    "Memory",
    "Observation",
    "Penalty",
    "Ratio",
    "Replay",
    "Sampler",
    "Shaping",
    "Strategy",
    "Surrogate",
    "Task",
    "Verifier",
    "Weighs",
    "Weight",
]

Couples = Literal["token", "sequence", "group"]
Weighs = Literal["tokens", "sequences"]

State = TypeVar("State")


# Where problems come from


@runtime_checkable
class Task(Protocol):
    """Prompts by index, how many there are, and a held-out split that is never trained on."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Prompt: ...

    @property
    def held_out(self) -> Sequence[Prompt]: ...


@runtime_checkable
class Verifier(Protocol):
    """Says of a finished sample whether it is right. An exception becomes an unverifiable verdict with its cause."""

    async def __call__(self, prompt: Prompt, sample: Sample) -> Verdict: ...


Observation = str | Verdict | None
"""An environment's reply: text (`CountedText` with counts) continues the conversation; a verdict ends it; None
ends it and leaves the verdict to the verifier."""


@runtime_checkable
class Environment(Protocol):
    """An environment: the other side of one conversation, made anew for each sample.

    `reset` may open it with words; `step` answers what the model said in its last turn. Both are functions of the
    prompt, `random` and what was said, or say in `recall` how to come back to where they stood: it hears again what
    was said and answered before a run was killed, and says what it answers now.
    """

    async def reset(self, prompt: Prompt, random: Random) -> Observation: ...

    async def step(self, said: str) -> Observation: ...

    async def restore(self, said: str, reply: Observation) -> Observation: ...


@runtime_checkable
class Replay(Protocol):
    """What environments answered, by the name of the question, so that none is asked twice after a kill."""

    def __contains__(self, question: str) -> bool: ...

    def __getitem__(self, question: str) -> Observation: ...

    def write(self, question: str, reply: Observation) -> None: ...


@runtime_checkable
class Curriculum(Protocol[State]):
    """Which prompts come next: pure functions of a JSON state, the only memory on the rollout side."""

    def init(self, task: Task, seed: int) -> State: ...

    def draw(self, state: State, task: Task, n: int, group_size: int) -> tuple[State, list[Draw]]: ...

    def observe(self, state: State, rollouts: Sequence[Rollout]) -> State: ...


# From draws to rollouts


@runtime_checkable
class Sampler(Protocol):
    """What a strategy meets: one a draw, its door to the engine, the verifier and random numbers."""

    def start(self, context: Ids, n: int = 1, *, group: int = 0, role: str = "answer") -> list[Sample]: ...

    async def extend(self, sample: Sample, *, limit: int | None = None) -> Sample: ...

    async def sample(self, context: Ids, n: int = 1, *, group: int = 0, role: str = "answer") -> list[Sample]: ...

    async def verify(self, samples: Sequence[Sample]) -> list[Sample]: ...

    async def reply(self, sample: Sample) -> Observation: ...

    def append(self, sample: Sample, words: str) -> Sample: ...

    async def score(self, context: Ids, sample: Sample) -> tuple[float, ...]: ...

    async def outside(self, call: Callable[..., Any], *args: Any) -> Any: ...

    def random(self, *key: int) -> Random: ...


@runtime_checkable
class Strategy(Protocol):
    """How a draw becomes a rollout: an ordinary coroutine in which rounds, trees and turns are await, if and for."""

    async def __call__(self, draw: Draw, sampler: Sampler) -> Rollout: ...


@runtime_checkable
class Engine(Protocol):
    """Generates. One ask is one sample's next tokens; equal prefixes are computed once."""

    async def sample(self, ask: GenerationRequest) -> Generation: ...

    async def score(self, context: Ids, tokens: Ids) -> tuple[float, ...]: ...

    async def load(self, version: int, weights: Mapping[str, Tensor]) -> None: ...

    def prefill(self, contexts: Sequence[Ids]) -> None: ...


@runtime_checkable
class EngineKind(Protocol):
    """A kind of engine in a recipe: a part whose fields are the settings of that kind alone.

    `max_gap` bounds the difference between the engine's and the learner's log-prob of a token.
    """

    @property
    def max_gap(self) -> float | Literal["by_dtype"]: ...

    def build(self, model: Any, tokenizer: Any, *, seed: int, experts: Any) -> Engine: ...


@runtime_checkable
class Filter(Protocol):
    """Marks the samples of one rollout that are worth training on. It sees outcomes, never a shaped reward."""

    def __call__(self, rollout: Batch, /) -> Bool[Tensor, " s"]: ...


# From verdicts to one number a token


@runtime_checkable
class Shaping(Protocol):
    """Changes the reward of every sample; the first of the tuple makes it."""

    def __call__(self, reward: Float[Tensor, " s"], batch: Batch, /) -> Float[Tensor, " s"]: ...


@runtime_checkable
class Advantage(Protocol):
    """Turns a number a sample into another."""

    def __call__(self, x: Float[Tensor, " s"], batch: Batch, /) -> Float[Tensor, " s"]: ...


@runtime_checkable
class Credit(Protocol):
    """Turns a number a sample into one a token, over the whole iteration."""

    def __call__(self, x: Float[Tensor, " s"], batch: Batch, /) -> Float[Tensor, " n"]: ...


@runtime_checkable
class Mask(Protocol):
    """Says which tokens stay (True); the others leave the batch, hence ratios and divisors."""

    def __call__(self, batch: Batch, /) -> Bool[Tensor, " n"]: ...


# From a batch to one scalar


@runtime_checkable
class Aggregate(Protocol):
    """The share of every token in the step: constants, and the only place where anything is divided by a count.

    `weighs = "sequences"` on an aggregate: a sequence's total share does not grow with its length.
    """

    def __call__(self, step: Batch, /) -> Float[Tensor, " n"]: ...


@runtime_checkable
class Weight(Protocol):
    """A constant factor of every token in the step, such as a correction between engine and learner."""

    def __call__(self, step: Batch, /) -> Float[Tensor, " n"]: ...


@runtime_checkable
class Ratio(Protocol):
    """How far the policy has moved, in the graph. `couples` is the unit that may not be cut in two.

    `one_per_sequence = True` on a ratio: all tokens of a sequence have the same number.
    """

    def __call__(self, microbatch: Batch, /) -> Float[Tensor, " n"]: ...


@runtime_checkable
class Surrogate(Protocol):
    """What is to be made large, token by token, in the graph."""

    def __call__(self, microbatch: Batch, /) -> Float[Tensor, " n"]: ...


@runtime_checkable
class Penalty(Protocol):
    """What is to be kept small, token by token, in the graph; the coefficient is inside."""

    def __call__(self, microbatch: Batch, /) -> Float[Tensor, " n"]: ...


# The learner's side


@runtime_checkable
class Layout(Protocol):
    """How packed tokens see each other: positions, and attention over what each may see.

    With a `window`, a token sees that many back, itself included; with a `softcap`, a score x is `c tanh(x / c)`.
    """

    @property
    def position(self) -> Int[Tensor, " n"]: ...

    def attend(
        self,
        layer: int,
        q: Float[Tensor, "n heads d"],
        k: Float[Tensor, "n kv d"],
        v: Float[Tensor, "n kv d"],
        *,
        window: int | None = None,
        softcap: float | None = None,
    ) -> Float[Tensor, "n heads d"]: ...


@runtime_checkable
class Backbone(Protocol):
    """All that the learner knows of a model."""

    def __call__(self, tokens: Int[Tensor, " n"], layout: Layout) -> Float[Tensor, "n width"]: ...

    def head(self, hidden: Float[Tensor, "n width"]) -> Float[Tensor, "n vocabulary"]: ...


@runtime_checkable
class LinearHead(Protocol):
    """A model whose head is one matrix and nothing more: the learner then never makes all logits of a token."""

    @property
    def unembedding(self) -> Float[Tensor, "vocabulary width"]: ...


@runtime_checkable
class Memory(Protocol[State]):
    """What a method remembers on the learning side: written after the steps, read as `batch.memory[name]`."""

    def init(self) -> State: ...

    def __call__(self, state: State, batch: Batch, stats: Mapping[str, float]) -> State: ...
