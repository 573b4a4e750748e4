"""The sockets: base classes of the components of a method, and of engine, learner, verifier, task and environment.

A component is a dataclass with the socket as its base class, or a function with the socket's decorator:

    @dataclass(frozen=True)
    class Longest(Shaping): ...

    @gw.mask
    def first_tokens(batch): ...

The sockets are Protocols whose methods are abstract. A subclass without them is refused when it is made, and type
checkers accept any object with the right methods.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, ClassVar, Literal, Protocol, TypeVar, runtime_checkable

from jaxtyping import Bool, Float, Int
from torch import Tensor

from groupwise.core import plain_name
from groupwise.data.batch import Batch
from groupwise.data.generation import ContextKey, Generation, GenerationRequest, Ids, Sampling
from groupwise.data.measures import NeededMeasure
from groupwise.data.pictures import Picture
from groupwise.data.sample import Draw, Prompt, Rollout, Sample
from groupwise.data.verdicts import Verdict

__all__ = [
    "Advantage",
    "Aggregate",
    "AttentionLayout",
    "Backbone",
    "Credit",
    "Curriculum",
    "CurriculumWithMetrics",
    "Engine",
    "EngineSettings",
    "Environment",
    "EnvironmentReplyLog",
    "EqualWeightUnit",
    "Filter",
    "HasLinearHead",
    "Mask",
    "MethodState",
    "Observation",
    "Penalty",
    "Policy",
    "Ratio",
    "ReadsColumns",
    "Sampler",
    "Shaping",
    "SharesDevice",
    "Strategy",
    "Surrogate",
    "Task",
    "TaskSettings",
    "TaskWithProblemList",
    "UnsplitUnit",
    "Verifier",
    "VerifierSettings",
    "Weight",
]

UnsplitUnit = Literal["token", "sequence", "group", "step"]
"""The unit that is never split between microbatches. With `step`, a whole optimizer step is one microbatch."""
EqualWeightUnit = Literal["tokens", "sequences"]

State = TypeVar("State")
Memo = TypeVar("Memo", contravariant=True)
Value = TypeVar("Value")


# Tasks, verifiers, environments


@runtime_checkable
class Task(Protocol):
    """A source of prompts by index, with a held-out split that is never trained on.

    It may be a `TaskWithProblemList`.
    """

    __slots__ = ()

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __getitem__(self, index: int) -> Prompt: ...

    @property
    @abstractmethod
    def held_out(self) -> Sequence[Prompt]: ...


@runtime_checkable
class TaskSettings(Protocol):
    """The settings of a task in a recipe: the base class of a frozen dataclass, which `build` makes a `Task`.

    `build` gets the function that encodes a problem's text or messages as prompt ids. `label` names the task in
    messages, records and directories. `template` is the name of its default prompt template.
    """

    __slots__ = ()

    @property
    def label(self) -> str:
        return plain_name(type(self).__name__)

    @property
    def template(self) -> str:
        return "no"

    @abstractmethod
    def build(self, encode: Callable[[Any], Ids], /) -> Task: ...


class Verifier(ABC):
    """Judges a finished sample. An exception makes its verdict unverifiable; most `GroupwiseError`s end the run.

    A subclass overrides the defaults that do not hold for it. `has_own_deadline` is whether it limits the time of each
    call itself; waiting in its queue then counts towards the rollout's deadline only. `notices` are lines for the user
    before its first use, such as the host of an LLM judge. `packages` are the installed packages that its verdicts
    depend on: the protocol of an evaluation has their versions. By `contents` (`VerdictContents`, or the decorator
    `verdicts_have`) `check` finds a method that needs more.
    """

    __slots__ = ()
    has_own_deadline: bool = False
    notices: Sequence[str] = ()
    packages: Sequence[str] = ()

    @abstractmethod
    async def __call__(self, prompt: Prompt, sample: Sample) -> Verdict: ...

    def by_group(self, prompt: Prompt, /) -> bool:
        """Whether `grade_group` grades all samples of this prompt's groups together."""
        return False

    async def grade_group(self, prompt: Prompt, samples: Sequence[Sample], /) -> Sequence[Verdict]:
        """One verdict per sample of a group, in the order in which they were generated."""
        return [await self(prompt, sample) for sample in samples]

    def gate(self, prompts: Sequence[Prompt], /) -> None:  # noqa: B027
        """Test the problems before the run. `BadData` for problems that it cannot use."""

    def close(self) -> None:  # noqa: B027
        """End its workers."""


class VerifierSettings(Verifier):
    """The settings of a verifier in a recipe: the base class of a frozen dataclass, which `build` makes a `Verifier`.

    By default the value itself is the verifier, with an `async def __call__(self, prompt, sample)`. One that needs
    processes or other verifiers has its own `build`, which gets the `VerifierContext`: task, sandbox, judges, deadline.
    `fits` is whether answers can be compared with a gold answer; `gold_answer_format` describes such gold answers in
    the error message. A verifier of packaged tasks only names their kinds in `supported_tasks`.
    """

    __slots__ = ()
    gold_answer_format: ClassVar[str] = ""
    supported_tasks: ClassVar[tuple[type, ...]] = ()

    async def __call__(self, prompt: Prompt, sample: Sample) -> Verdict:
        raise NotImplementedError(f"{type(self).__name__} grades only after `build`")

    def build(self, grading: Any, /) -> Verifier:
        """The verifier with these settings."""
        if type(self).__call__ is VerifierSettings.__call__:
            raise NotImplementedError(
                f"{type(self).__name__} needs an async __call__(prompt, sample), or its own build"
            )
        return self

    def fits(self, gold: Any, /) -> bool:
        """Whether answers can be compared with this gold answer."""
        return True


@runtime_checkable
class TaskWithProblemList(Protocol):
    """A task that lists its training problems and the statistics of their sources (`SourceStats`)."""

    @property
    def training(self) -> Sequence[Prompt]: ...

    @property
    def source_stats(self) -> Sequence[Any]: ...


Observation = str | Verdict | None
"""An environment's reply: text (`ReplyWithCounts` with counts) continues the conversation; a verdict ends it; None
ends it and leaves the verdict to the verifier."""


@runtime_checkable
class Environment(Protocol):
    """The other side of one conversation. Each sample has its own instance.

    `reset` returns the opening observation, if any. `step` returns the reply to the model's last message. Both must be
    functions of the prompt, `random` and the messages. An environment with other state implements `restore`: after a
    kill it receives each earlier message with the recorded reply, and returns the reply it would give now.
    """

    __slots__ = ()

    @abstractmethod
    async def reset(self, prompt: Prompt, random: Random) -> Observation: ...

    @abstractmethod
    async def step(self, message: str, /) -> Observation: ...

    @abstractmethod
    async def restore(self, message: str, reply: Observation, /) -> Observation: ...


@runtime_checkable
class EnvironmentReplyLog(Protocol):
    """A log of environments' replies by key, from which a resumed run restores unfinished conversations."""

    __slots__ = ()

    @abstractmethod
    def __contains__(self, key: str, /) -> bool: ...

    @abstractmethod
    def __getitem__(self, key: str, /) -> Observation: ...

    @abstractmethod
    def write(self, key: str, reply: Observation, /) -> None: ...


@runtime_checkable
class Curriculum(Protocol[State]):
    """Chooses the next prompts, by pure functions of a JSON state that checkpoints store.

    `draw` returns draws with id 0, which the buffer numbers. It may return fewer than `n`, each with its own number of
    samples. `observe` gets the rollouts of one round of sampling; a refill is the next round. `end_iteration` gets all
    rollouts of an iteration, as finally selected. Optional: `CurriculumWithMetrics`, and `tracks_prompts = True` if it
    treats a prompt by its earlier answers.
    """

    __slots__ = ()

    @abstractmethod
    def init(self, task: Task, seed: int) -> State: ...

    @abstractmethod
    def draw(self, state: State, task: Task, n: int, group_size: int) -> tuple[State, list[Draw]]: ...

    @abstractmethod
    def observe(self, state: State, rollouts: Sequence[Rollout]) -> State: ...

    @abstractmethod
    def end_iteration(self, state: State, rollouts: Sequence[Rollout]) -> State: ...


@runtime_checkable
class CurriculumWithMetrics(Protocol[Memo]):
    """A curriculum that reports numbers after an iteration, such as the failures that it holds: `curriculum/NAME`.

    It gets its state after the iteration, and all rollouts of the iteration.
    """

    def numbers(self, state: Memo, rollouts: Sequence[Rollout]) -> Mapping[str, float]: ...


# Draws to rollouts


@runtime_checkable
class Sampler(Protocol):
    """A strategy's access to engine, verifier, environment and random numbers, for the samples of one draw."""

    __slots__ = ()

    @property
    @abstractmethod
    def sampling(self) -> Sampling: ...

    @abstractmethod
    def prompt(self, text: str, /) -> Ids: ...

    @abstractmethod
    def ids(self, text: str, /, *, control: bool = False) -> Ids: ...

    @abstractmethod
    def room(self, context: Ids, /) -> int: ...

    @abstractmethod
    def start(self, context: Ids, n: int = 1, *, group: int = 0, role: str = "answer") -> list[Sample]: ...

    @abstractmethod
    def with_prefix(self, prefix: Ids, /) -> "Sampler": ...

    @abstractmethod
    async def extend(
        self,
        sample: Sample,
        *,
        limit: int | None = None,
        sampling: Sampling | None = None,
        top: int = 0,
        stride: int = 1,
    ) -> Sample: ...

    @abstractmethod
    def write(self, sample: Sample, text: str, /, *, closes: bool = False) -> Sample: ...

    @abstractmethod
    async def sample(self, context: Ids, n: int = 1, *, group: int = 0, role: str = "answer") -> list[Sample]: ...

    @abstractmethod
    async def verify(self, samples: Sequence[Sample]) -> list[Sample]: ...

    @abstractmethod
    async def reply(self, sample: Sample) -> Observation: ...

    @abstractmethod
    async def episode(self, number: int, /) -> tuple[Sample, ...]: ...

    @abstractmethod
    def append(self, sample: Sample, text: str, /) -> Sample: ...

    @abstractmethod
    async def score(self, context: Ids, sample: Sample, *, temperature: float = 1.0) -> tuple[float, ...]: ...

    @abstractmethod
    async def share(self, value: Value, /) -> Mapping[int, Value]: ...

    @abstractmethod
    async def outside(self, call: Callable[..., Any], *args: Any) -> Any: ...

    @abstractmethod
    def random(self, *key: int) -> Random: ...


@runtime_checkable
class Strategy(Protocol):
    """A coroutine that generates all samples of one draw; rounds, trees and turns are `await`, `if` and `for`.

    Optional, also for the values of its fields: `ReadsColumns`; `roles`, the kinds of samples (`Role`) that it makes
    beside answers; `contents`, the subscores that it adds to verdicts; `needs`, the subscores that it reads;
    `needs_feedback = True` if it writes the verdict's feedback into prompts; `needs_environment = True` if it converses
    with one; `needs_agent = True` if it runs the recipe's agent; `scores_answers = True` if it calls `Sampler.score`;
    `works_on_whole_answers = True` if it can sample from a masked policy, which generates answers whole; and
    `makes_own_noise = True` if its denoising steps need none of the recipe's. `check` compares them with the recipe.
    """

    __slots__ = ()

    @abstractmethod
    async def __call__(self, draw: Draw, sampler: Sampler) -> Rollout: ...


@runtime_checkable
class ReadsColumns(Protocol):
    """A component that reads columns of the data rows, such as hints. A run whose rows lack one does not start.

    Optional: `column_type` is "text" or "texts" if only such values can be read, and `column_optional` is True if the
    component leaves rows without the column as they are; then one row that has it is enough.
    """

    @property
    def row_columns(self) -> tuple[str, ...]: ...


@runtime_checkable
class Engine(Protocol):
    """Generates tokens. One request is for one sample. An engine may compute a common prefix of requests once.

    `prefill` computes contexts ahead of their requests (`GenerationRequest.context_key`); an engine may ignore it.
    `score` returns the log-prob of each token after a context, whose prompt may have `pictures`.
    `sample` and `score` raise EngineLost if the engine cannot answer. Another engine can then serve the request.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def version(self) -> int:
        """The version of the weights that it samples from; -1 if it has none."""
        ...

    @abstractmethod
    async def sample(self, request: GenerationRequest, /) -> Generation: ...

    @abstractmethod
    async def score(
        self, context: Ids, tokens: Ids, *, temperature: float = 1.0, pictures: Sequence[Picture] = ()
    ) -> tuple[float, ...]: ...

    @abstractmethod
    async def load(self, version: int, weights: Mapping[str, Tensor]) -> None: ...

    @abstractmethod
    def prefill(self, contexts: Sequence[ContextKey]) -> None: ...


@runtime_checkable
class SharesDevice(Protocol):
    """An engine on the learner's device, whose memory the learner needs while it trains."""

    async def sleep(self) -> None:
        """Free the weights and the cache until the next `load`. Meanwhile `sample` and `score` raise EngineLost."""
        ...


@runtime_checkable
class EngineSettings(Protocol):
    """The settings of an engine in a recipe, and how to build it.

    `max_logprob_diff` bounds the absolute difference between the engine's and the learner's log-prob of a token.
    """

    __slots__ = ()

    max_logprob_diff: float | Literal["by_dtype"]

    @abstractmethod
    def build(self, model: Any, tokenizer: Any, *, seed: int, experts: Any) -> Engine: ...


@runtime_checkable
class Filter(Protocol):
    """Selects the samples of one rollout to train on. It runs before shaping, so there are no rewards yet.

    A filter that declares `scope = "iteration"` gets all rollouts of the iteration so far as one batch. After a refill
    round it selects again among all of them.
    """

    __slots__ = ()

    @abstractmethod
    def __call__(self, rollout: Batch, /) -> Bool[Tensor, " s"]: ...


# Verdicts to one number per token


@runtime_checkable
class Shaping(Protocol):
    """Changes the reward of each sample. A method's first shaping gets zeros and creates the reward."""

    __slots__ = ()

    @abstractmethod
    def __call__(self, reward: Float[Tensor, " s"], batch: Batch, /) -> Float[Tensor, " s"]: ...


@runtime_checkable
class Advantage(Protocol):
    """Computes an advantage per sample from the rewards, or from the result of the advantage before it."""

    __slots__ = ()

    @abstractmethod
    def __call__(self, x: Float[Tensor, " s"], batch: Batch, /) -> Float[Tensor, " s"]: ...


@runtime_checkable
class Credit(Protocol):
    """Computes an advantage per token from one number per sample, over the whole iteration."""

    __slots__ = ()

    @abstractmethod
    def __call__(self, x: Float[Tensor, " s"], batch: Batch, /) -> Float[Tensor, " n"]: ...


@runtime_checkable
class Mask(Protocol):
    """Selects the tokens to train on (True). The others leave the batch, and so all ratios and divisors.

    A mask runs before credit, so that statistics over tokens, such as whitening, are those of the trained tokens. A
    mask that reads `batch.advantage` declares `reads_advantage = True` and runs after it.
    """

    __slots__ = ()

    @abstractmethod
    def __call__(self, batch: Batch, /) -> Bool[Tensor, " n"]: ...


# A batch to one scalar


@runtime_checkable
class Aggregate(Protocol):
    """The weight (share) of each token in the loss of a step: a constant that contains all divisors by counts.

    An aggregate declares `equal_weight_unit = "sequences"` if a sequence's total share does not grow with its length.
    """

    __slots__ = ()

    @abstractmethod
    def __call__(self, step: Batch, /) -> Float[Tensor, " n"]: ...


@runtime_checkable
class Weight(Protocol):
    """A constant factor for each token of the step, such as an engine-learner correction."""

    __slots__ = ()

    @abstractmethod
    def __call__(self, step: Batch, /) -> Float[Tensor, " n"]: ...


@runtime_checkable
class Ratio(Protocol):
    """The ratio of new to old policy for each token, with gradient.

    Microbatches never split the unit that `unsplit_unit` names, such as a sequence. A ratio declares
    `one_per_sequence = True` if all tokens of a sequence have the same value.
    """

    __slots__ = ()

    @abstractmethod
    def __call__(self, microbatch: Batch, /) -> Float[Tensor, " n"]: ...


@runtime_checkable
class Surrogate(Protocol):
    """The quantity to maximise, per token, in the graph."""

    __slots__ = ()

    @abstractmethod
    def __call__(self, microbatch: Batch, /) -> Float[Tensor, " n"]: ...


@runtime_checkable
class Penalty(Protocol):
    """The quantity to minimise, per token, in the graph, with its coefficient included."""

    __slots__ = ()

    @abstractmethod
    def __call__(self, microbatch: Batch, /) -> Float[Tensor, " n"]: ...


# The learner


@runtime_checkable
class AttentionLayout(Protocol):
    """The position of each packed token in its sequence, and its attention to itself and the tokens before it.

    With a `window`, a token attends to at most that many tokens, including itself. With a `softcap` c, a score x
    becomes `c tanh(x / c)`. Optional: `content_spans`, the contexts with pictures (`ContentSpan`), which a
    vision-language model reads; a layout of new tokens alone has none.
    """

    @property
    def positions(self) -> Int[Tensor, " n"]: ...

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
class Policy(Protocol):
    """A trainable model as the learner uses it: a torch module that computes numbers per token of a batch.

    `measure` returns each wanted measure. `Logp("policy")` is the log-prob of each token under the current weights and
    `Entropy()` the entropy of its distribution. Both are always wanted in a step. Log-probs and measures with
    `in_graph` carry a gradient. `side_models` are the models beside the policy: its copies, or models from directories.

    Tokens need not be words: for a token with an entry in `Sample.actions`, the entry is the action. A language model
    is a `Backbone` instead; the learner wraps it in a `LanguagePolicy`.
    """

    __slots__ = ()

    @abstractmethod
    def measure(
        self, batch: Batch, wanted: Sequence[NeededMeasure], side_models: Mapping[str, Any], /
    ) -> Mapping[NeededMeasure, Float[Tensor, " n"]]: ...


@runtime_checkable
class Backbone(Protocol):
    """A language model as the learner uses it: tokens to hidden states to logits."""

    def __call__(self, tokens: Int[Tensor, " n"], layout: AttentionLayout) -> Float[Tensor, "n width"]: ...

    def head(self, hidden: Float[Tensor, "n width"]) -> Float[Tensor, "n vocabulary"]: ...


@runtime_checkable
class HasLinearHead(Protocol):
    """A model whose head is a single matrix. The learner then never materialises all logits of a batch."""

    @property
    def unembedding(self) -> Float[Tensor, "vocabulary width"]: ...


@runtime_checkable
class MethodState(Protocol[State]):
    """A method's state, such as an adaptive KL coefficient, updated after an iteration: `batch.method_states[name]`."""

    __slots__ = ()

    @abstractmethod
    def init(self) -> State: ...

    @abstractmethod
    def __call__(self, state: State, batch: Batch, stats: Mapping[str, float]) -> State: ...
