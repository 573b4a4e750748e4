"""A whole run as one value: a method, and what a run decides."""

from dataclasses import dataclass
from typing import Literal

from groupwise.data import EngineKind, Sampling, Strategy
from groupwise.learner import AdamW
from groupwise.methods import Method
from groupwise.models import Lora
from groupwise.rollout import Independent, Native

__all__ = ["Columns", "Evaluate", "Machine", "Recipe", "Save"]


def at_least(value: object, **least: float) -> None:
    """ValueError naming the first field below its bound, or NaN. What follows the line end says what to do."""
    for name, bound in least.items():
        if not (seen := getattr(value, name)) >= bound:
            raise ValueError(f"{name} is {seen}\ntake at least {bound}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Where the rows of a source keep the prompt and the answer: columns, or dotted paths into them."""

    prompt: str = "prompt"
    answer: str = "answer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Also:
    """A task mixed in: drawn `weight` times as often as the recipe's own. Its verifier, where none is said, is its own,
    or the recipe's."""

    task: str
    weight: float = 1.0
    columns: Columns = Columns()
    verifier: str = ""

    def __post_init__(self) -> None:
        if not 0 < self.weight < float("inf"):
            raise ValueError(f"weight is {self.weight}\ntake a number above 0, such as 0.5")


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmStart:
    """A supervised phase before the first iteration: `steps` optimizer steps on `per_step` demonstrations each.

    `demonstrations` is a source of rows with the columns, or with `messages` that end with the assistant's answer. They
    are dealt in a keyed order, sweep by sweep. The phase's checkpoint is renewed after every `save_every`-th step.
    """

    demonstrations: str
    columns: Columns = Columns()
    steps: int = 100
    per_step: int = 32
    optimizer: AdamW = AdamW(lr=1e-5)  # noqa: RUF009
    save_every: int = 100

    def __post_init__(self) -> None:
        at_least(self, steps=1, per_step=1, save_every=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Where a run computes. `microbatch_tokens` bounds what the learner forwards at once, contexts counted once.
    A draw may take `deadline` seconds, a call of one's own grade function or environment `verdict_deadline`; so may an
    execution of an answer's code, and a fifth of that as CPU time.

    `bfloat16` is the dtype of the weights and of all that is computed with them; log-probs are float32, and so is the
    optimizer's own copy of each weight, which the weight is rounded from. `recompute` forwards each layer again on the
    way back instead of keeping all that it computed: equal gradients, less memory, about a third more time to learn.
    `compile` makes kernels for what a layer does beside its products and attention, where a GPU is to wait for fewer of
    them; the first iterations wait for the compiler.

    One thread is the measured best for models under a million parameters, and the only setting with bits equal
    whatever the batch mates.
    """

    device: str = "cpu"
    dtype: Literal["float32", "float64", "bfloat16"] = "float32"
    threads: int = 1
    microbatch_tokens: int = 16384
    recompute: bool = False
    compile: bool = False
    deadline: float = 600.0
    verdict_deadline: float = 10.0

    def __post_init__(self) -> None:
        at_least(self, threads=1, microbatch_tokens=1)
        if not (self.deadline > 0 and self.verdict_deadline > 0):
            raise ValueError("deadline and verdict_deadline are seconds above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluate:
    """Held-out evaluation before the first iteration, after every `every`-th (0: never between) and after the last.

    `problems` of the held-out split, each answered by `strategy`: greedily once, `samples` times at the training law.
    """

    every: int = 0
    problems: int = 256
    samples: int = 1
    strategy: Strategy = Independent()  # noqa: RUF009

    def __post_init__(self) -> None:
        at_least(self, every=0, problems=1, samples=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Save:
    """A checkpoint after every `every`-th iteration (0: only at the end), and how many are kept."""

    every: int = 10
    keep: int = 2

    def __post_init__(self) -> None:
        at_least(self, every=0, keep=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A run from nothing to a report. Frozen; TOML and flags are views of it.

    `model` is a directory or a packaged name; `task` a named one or a source of rows (docs/tasks.md), `also` those that
    are mixed in, `held_out` a task to evaluate on instead of what these hold out; `template` what stands around a
    problem and `verifier` a public name or `my_file:grade` (both empty: the task's own); `environment` is whom the
    strategy `Turns` asks, such as `my_file:MyEnvironment`. `prompts` is how many an iteration draws; nothing is called
    a batch size.
    With `lora`, the model stays as it is and an adapter beside it is trained. `warm_start` comes before the first
    iteration.
    """

    model: str = "calculator"
    lora: Lora | None = None
    warm_start: WarmStart | None = None
    task: str = "calculator"
    columns: Columns = Columns()
    also: tuple[Also, ...] = ()
    held_out: str = ""
    template: str = ""
    verifier: str = ""
    environment: str = ""
    method: Method
    prompts: int = 16
    iterations: int = 100
    seed: int = 0
    max_unverifiable: float = 0.1
    sampling: Sampling = Sampling()  # noqa: RUF009
    engine: EngineKind = Native()  # noqa: RUF009
    optimizer: AdamW = AdamW()  # noqa: RUF009
    machine: Machine = Machine()
    evaluate: Evaluate = Evaluate()
    save: Save = Save()
    sinks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        at_least(self, prompts=1, iterations=0, seed=0)
        if self.seed >= 2**64:
            raise ValueError(f"seed is {self.seed}\ntake one below 2**64")
        if not 0 <= self.max_unverifiable <= 1:
            raise ValueError(f"max_unverifiable is {self.max_unverifiable}\nit is a share: take one from 0 to 1")
        if self.prompts % (cuts := self.method.minibatches):
            near = max(cuts, self.prompts // cuts * cuts)
            raise ValueError(
                f"{self.prompts} prompts cannot be cut into {cuts} equal minibatches\n"
                f"take a multiple of {cuts}, such as prompts = {near}, or other method.minibatches"
            )
        if self.sampling.truncated:
            raise ValueError(
                "sampling is truncated (top_p, top_k or min_p): in training that biases every ratio\n"
                "leave it out; eval and sample take it: groupwise eval RUN --sampling.top_p 0.9"
            )
        if self.sampling.temperature == 0:
            raise ValueError(
                "sampling.temperature is 0: greedy answers of a group are all alike\n"
                "take one above 0, such as 1.0; a greedy evaluation is always made"
            )
