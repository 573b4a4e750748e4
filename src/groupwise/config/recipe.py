"""Recipe: a method and all other settings of one run, as one frozen value."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, TypeVar

from groupwise.core import check_types
from groupwise.data import (
    THREAD,
    ClassifierScore,
    EngineSettings,
    Sampling,
    Strategy,
    TaskSettings,
    VerifierSettings,
    declares,
)
from groupwise.engines import Native
from groupwise.learner import AdamW, check_lanes
from groupwise.methods import Method
from groupwise.models import Lora, PipelineSettings
from groupwise.rollout import AgentEpisodes, Independent, Turns
from groupwise.tasks import Calculator, Demonstrations, named_task

__all__ = ["Agent", "Cluster", "Columns", "Evaluate", "ExtraTask", "Machine", "Recipe", "Save", "WarmStart"]


T = TypeVar("T")


def at_least(value: object, **least: float) -> None:
    """Raise ValueError for the first of these numbers that is below its bound, or NaN.

    `Usage` for a field of another type.
    """
    check_types(value)
    for name, bound in least.items():
        if not (number := getattr(value, name)) >= bound:
            raise ValueError(f"{name} is {number}\nuse at least {bound}")


def takes_task_names(*names: str) -> Callable[[type[T]], type[T]]:
    """A decorator of a dataclass whose constructor also takes texts for the tasks in these fields."""

    def with_texts(cls: type[T]) -> type[T]:
        types = cls.__init__.__annotations__
        types.update({name: types[name] | str for name in names})
        return cls

    return with_texts


def read_task_names(value: object, *names: str) -> None:
    """Replace texts in these fields of a frozen value by the tasks for which they are short."""
    for name in names:
        if isinstance(text := getattr(value, name), str):
            object.__setattr__(value, name, named_task(text))


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """The names of the columns with prompt and answer in the data rows; a dotted path for nested rows.

    An empty `answer` means that the rows have no gold answers: the verifier grades without one.
    """

    prompt: str = "prompt"
    answer: str = "answer"

    def __post_init__(self) -> None:
        check_types(self)


@takes_task_names("task")
@dataclass(frozen=True, slots=True, kw_only=True)
class ExtraTask:
    """An additional task, drawn `weight` times as often as the recipe's `task`.

    Without a `verifier`, that of the task is its default verifier, else the recipe's verifier.
    """

    task: TaskSettings
    weight: float = 1.0
    columns: Columns = Columns()
    verifier: VerifierSettings | None = None

    def __post_init__(self) -> None:
        read_task_names(self, "task")
        check_types(self)
        if not 0 < self.weight < float("inf"):
            raise ValueError(f"weight is {self.weight}\nuse a number above 0, such as 0.5")


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmStart:
    """Short for a phase of the method `sft` before the first iteration: `steps` steps on `prompts` demonstrations each.

    `demonstrations` is the source of the phase's task `Demonstrations`, with `columns`, `drop_thoughts` and
    `thought_marks`. Each epoch over them has its own order, drawn from the seed. A checkpoint is saved every
    `save_every` steps.
    """

    demonstrations: str
    columns: Columns = Columns()
    steps: int = 100
    prompts: int = 32
    optimizer: AdamW = AdamW(lr=1e-5)  # noqa: RUF009
    save_every: int = 100
    drop_thoughts: float = 0.0
    thought_marks: tuple[str, str] = ("<think>", "</think>")

    def __post_init__(self) -> None:
        at_least(self, steps=1, prompts=1, save_every=1)
        _ = self.task  # checks its fields

    @property
    def task(self) -> Demonstrations:
        """The task of the phase."""
        return Demonstrations(self.demonstrations, self.drop_thoughts, self.thought_marks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """A program around the policy, which makes chat requests: its function, and its limits (docs/agents.md).

    `file` names a function of a row and an OpenAI client, such as `my_agent:agent`; it may be async. If it is empty,
    the agent is a program, which only the command line names (`--agent-command`). `deadline` limits one run of it, in
    seconds, and `processes` the runs of a program, or of a function that is not async, at a time. Requests may name
    the policy by `policy` or by one of `model_names`; another name is an error, so that the policy never plays a judge.
    `tool_call_parser` reads the tool calls in an answer: `hermes`, `llama3_json`, `mistral`, or a class of your file,
    such as `my_agent:MyCalls`; without it, the parser of the format that the chat template describes.
    """

    shorthand: ClassVar[str] = "file"
    """The field that a text in place of the table sets."""

    file: str = ""
    deadline: float = 600.0
    processes: int = 8
    model_names: tuple[str, ...] = ()
    tool_call_parser: str = ""

    def __post_init__(self) -> None:
        at_least(self, processes=1)
        if not self.deadline > 0:
            raise ValueError(f"deadline is {self.deadline}\nuse a number above 0 seconds")


MOST_THREADS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Device, precision and time limits. `microbatch_tokens` limits the tokens of one forward pass of the learner; a
    shared context counts once.

    The device `auto` is `cuda` where torch has a CUDA device, else `cpu`. The dtype `auto` is `bfloat16` on a GPU, and
    `float32` on a CPU or for small flow and masked models; a run records the choice and keeps it.

    `rollout_deadline` limits a draw, in seconds. `verdict_deadline` limits a call of the user's grade function or
    environment, and one execution of an answer's code, whose CPU time is limited to a fifth of it.

    With `bfloat16`, weights and activations are bfloat16; log-probs are float32, and the optimizer keeps a float32 copy
    of each weight, from which the weight is rounded. `gradient_checkpointing` forwards each layer again in the backward
    pass instead of storing its activations: equal gradients, less memory, about a third more learning time. `compile`
    compiles the elementwise operations of a layer (all but matrix products and attention), so that a GPU launches fewer
    kernels; the first iterations include the compilation. With `optimizer_offload`, the optimizer's moments and master
    weights are in the memory of the host while the engine samples, which leaves a GPU more room for its cache; on a CPU
    it changes nothing.

    With `quantization`, the linear layers of a language model but the head are in 4 bits (NF4): frozen, under an
    adapter. A model whose directory stores NF4 has it without this field.

    One thread is the fastest measured setting for models under a million parameters. It is also the only setting in
    which a sample's bits do not depend on the other samples of the batch.
    """

    device: str = "auto"
    dtype: Literal["auto", "float32", "float64", "bfloat16"] = "auto"
    threads: int = 1
    microbatch_tokens: int = 16384
    gradient_checkpointing: bool = False
    quantization: Literal["nf4"] | None = field(default=None, metadata={"written_if_set": True})
    compile: bool = False
    optimizer_offload: bool = False
    rollout_deadline: float = 600.0
    verdict_deadline: float = 10.0

    def __post_init__(self) -> None:
        at_least(self, threads=1, microbatch_tokens=1)
        if self.threads > MOST_THREADS:
            raise ValueError(f"threads is {self.threads}\nuse at most {MOST_THREADS}")
        if not (self.rollout_deadline > 0 and self.verdict_deadline > 0):
            raise ValueError(
                f"rollout_deadline is {self.rollout_deadline} and verdict_deadline is {self.verdict_deadline}\n"
                "use numbers above 0 seconds"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The processes of the learner, and how far sampling runs ahead of it.

    `ranks` processes share the microbatches of each optimizer step. With `launch = "local"` the run starts them and the
    replicas of its engine on this host, with `"ray"` on the nodes of a Ray cluster. With `"external"` others have
    started all of them, such as Slurm: each rank reads its rank and addresses from RANK, WORLD_SIZE, MASTER_ADDR and
    MASTER_PORT, and the engines are at the engine's `addresses`. No bit depends on it.

    A step adds the gradients of `reduction_lanes` microbatches in a fixed tree. So on CPUs equal `reduction_lanes` give
    equal bits on any number of ranks that divides them; another number is another run. 0 means `ranks`; the run has
    the resolved number, a power of two. With `shard = "none"` each rank holds all weights, gradients and moments;
    with `"full"` its shard of the rows of each (FSDP2). `deadline` limits the wait of one rank for another, in seconds.

    With `max_staleness` 0, an iteration is sampled by the weights that it then changes. With 1, the next iteration is
    sampled while the learner works; each sample is exactly one version behind. Both are reproducible on CPUs. With
    more, weights change while samples are generated: no token is more than `max_staleness` versions old, and the run
    is not reproducible.
    """

    launch: Literal["local", "external", "ray"] = "local"
    ranks: int = 1
    reduction_lanes: int = 0
    shard: Literal["none", "full"] = "none"
    max_staleness: int = 0
    deadline: float = 600.0

    def __post_init__(self) -> None:
        at_least(self, ranks=1, reduction_lanes=0, max_staleness=0)
        if not self.deadline > 0:
            raise ValueError("deadline must be above 0 seconds")
        if not self.reduction_lanes and self.ranks & (self.ranks - 1):
            raise ValueError(
                f"ranks is {self.ranks}: the gradients of the ranks are added in a binary tree\n"
                f"use a power of two for ranks, such as {1 << self.ranks.bit_length() - 1}"
            )
        check_lanes(self.reduction_lanes or self.ranks, self.ranks)

    @property
    def sharded(self) -> bool:
        """Whether several ranks hold parts of the weights."""
        return self.ranks > 1 and self.shard == "full"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluate:
    """Held-out evaluation before the first iteration, every `every` iterations (0: not in between) and after the last.

    `strategy` answers each of `problems` held-out problems once greedily and `samples` times by `Recipe.sampling`.
    Accuracy is also given for each value of the column `by_column` of the rows.
    A flow model takes `denoising_steps` denoising steps; without it, those of `method.denoise`, as in training.
    The best checkpoint is kept beside the newest ones: it has the highest greedy accuracy; between equal ones the
    greedy score decides, then accuracy and score of sampled answers, then the loss on stored answers, then the later
    iteration. `best_metric` decides first.
    """

    every: int = 0
    problems: int = 256
    samples: int = 1
    strategy: Strategy = Independent()  # noqa: RUF009
    by_column: str = ""
    best_metric: Literal[
        "", "eval/accuracy_greedy", "eval/score_greedy", "eval/accuracy", "eval/score", "eval/loss"
    ] = ""
    denoising_steps: int | None = None

    def __post_init__(self) -> None:
        at_least(self, every=0, problems=1, samples=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Save:
    """A checkpoint every `every` iterations (0: only at the end); the newest `keep` and the best one are kept.

    Every `export_every` iterations (0: never) a plain model directory is written to `models/` of the run.
    """

    every: int = 10
    keep: int = 2
    export_every: int = 0

    def __post_init__(self) -> None:
        at_least(self, every=0, keep=1, export_every=0)


@takes_task_names("task", "held_out")
@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """All settings of a run. A recipe file and the command-line options set fields of this class.

    `model` is a directory or a packaged name. `task` is a packaged task, a published set or a source of rows
    (docs/tasks.md); in Python, too, a text is short for one. `extra_tasks` lists additional tasks; `held_out` is a task
    to evaluate on instead of the held-out split of these. Problems with more than `max_prompt_tokens` tokens are left
    out; without it, one that does not fit is an error. `template` is the text around a problem, `verifier` the grader
    of answers; without them, both are the task's default. With the template `chat`, `system` is the system message of
    prompts that have none, and `template_arguments` are variables of the chat template. An answer with a score of at
    least `correct_threshold` is correct; without a threshold, answers that a verifier only scores are neither correct
    nor wrong. `environment` is the other side of a conversation, such as `my_file:MyEnvironment`; it replaces the
    strategy `Independent` of method and evaluation by `Turns`. `agent` is a program that makes chat requests; it
    replaces these two by `AgentEpisodes`, and all its conversations are trained. `prompts` is the number of prompts
    of an iteration. With `lora`, an adapter is trained and the model's weights are frozen. With `freeze_vision_tower`,
    the vision tower and the connector of a vision-language model are frozen. `pipeline` matters if the model is a
    pipeline of diffusers. `warm_start` runs before the first iteration. `epochs`, passes over the training problems,
    sets `iterations` when a run starts.
    """

    model: str = "calculator"
    lora: Lora | None = None
    freeze_vision_tower: bool = False
    pipeline: PipelineSettings = PipelineSettings()  # noqa: RUF009
    warm_start: WarmStart | None = None
    task: TaskSettings = Calculator()  # noqa: RUF009
    columns: Columns = Columns()
    extra_tasks: tuple[ExtraTask, ...] = ()
    held_out: TaskSettings | None = None
    max_prompt_tokens: int | None = None
    template: str = ""
    system: str = ""
    template_arguments: tuple[tuple[str, bool | int | float | str], ...] = ()
    verifier: VerifierSettings | None = None
    correct_threshold: float | None = None
    environment: str = ""
    agent: Agent | None = None
    method: Method
    prompts: int = 16
    iterations: int = 100
    epochs: float | None = field(default=None, metadata={"written_if_set": True})
    seed: int = 0
    max_unverifiable: float = 0.1
    sampling: Sampling = Sampling()  # noqa: RUF009
    engine: EngineSettings = Native()  # noqa: RUF009
    optimizer: AdamW = AdamW()  # noqa: RUF009
    machine: Machine = Machine()
    cluster: Cluster = Cluster()
    evaluate: Evaluate = Evaluate()
    save: Save = Save()
    trackers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        read_task_names(self, "task", "held_out")
        at_least(self, prompts=1, iterations=0, seed=0)
        if self.max_prompt_tokens is not None and self.max_prompt_tokens < 1:
            raise ValueError(f"max_prompt_tokens is {self.max_prompt_tokens}\nuse at least 1, or leave it out")
        if self.epochs is not None and not 0 < self.epochs < float("inf"):
            raise ValueError(f"epochs is {self.epochs}\nuse a number above 0, such as 3, or leave it out")
        if self.environment:
            for owner in ("method", "evaluate"):
                if isinstance(getattr(self, owner).strategy, Independent):
                    object.__setattr__(self, owner, replace(getattr(self, owner), strategy=Turns()))
        if self.agent is not None:
            if self.environment:
                raise ValueError(
                    "the recipe has an agent and an environment\nleave one out: an agent runs its own tools"
                )
            for owner in ("method", "evaluate"):
                if isinstance(getattr(self, owner).strategy, Independent | Turns):  # Turns needs an environment
                    object.__setattr__(self, owner, replace(getattr(self, owner), strategy=AgentEpisodes()))
            if isinstance(self.method.strategy, AgentEpisodes) and THREAD not in self.method.trained_roles:
                roles = (*self.method.trained_roles, THREAD)
                object.__setattr__(self, "method", replace(self.method, trained_roles=roles))
        if self.seed >= 2**64:
            raise ValueError(f"seed is {self.seed}\nuse one below 2**64")
        if not 0 <= self.max_unverifiable <= 1:
            raise ValueError(f"max_unverifiable is {self.max_unverifiable}\nit is a share: use a number from 0 to 1")
        whole = self.method.shuffle == "prompts"  # samples are dealt into steps of any number
        if self.prompts % (minibatches := self.method.minibatches) and whole:
            multiple = max(minibatches, self.prompts // minibatches * minibatches)
            raise ValueError(
                f"{self.prompts} prompts cannot be cut into {minibatches} equal minibatches\n"
                f"use a multiple of {minibatches}, such as prompts = {multiple}, or change method.minibatches"
            )
        if self.sampling.truncated:
            raise ValueError(
                "sampling is truncated (top_p, top_k or min_p), which biases every ratio in training\n"
                "leave the setting out: it holds in an evaluation, or for single samples"
            )
        if self.sampling.temperature == 0:
            raise ValueError(
                "sampling.temperature is 0: all answers of a group would be equal\n"
                "use a temperature above 0, such as 1.0; the evaluation always includes greedy answers"
            )

    @property
    def trains_reward_model(self) -> bool:
        """Whether the method trains a score of whole texts, in place of a policy."""
        return ClassifierScore() in self.method.needs

    @property
    def trains_stored_answers(self) -> bool:
        """Whether the method trains answers that the data rows store, so that nothing is sampled."""
        return declares(self.method.strategy, "writes_stored_answers")
