"""The memory of a run in one process, by use (weights, gradients, ...), from its recipe and the model's sizes."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from groupwise.config.recipe import Recipe
from groupwise.data import Usage
from groupwise.learner import Given
from groupwise.models import Decoder, Lora, Shape
from groupwise.rollout import Native

BYTES = {"float64": 8, "float32": 4, "bfloat16": 2}
GIB = 1 << 30
PROCESS = 300 << 20
"""Bytes of a process that has imported torch and holds no model."""
LOGITS = 1 << 22
"""Logits that the learner computes at once (`LOGITS_AT_ONCE` of `learner/forward.py`)."""
NARROWEST = 256
"""The number of vocabulary entries in the smallest block of logits."""
TOKEN = 100
"""Bytes of a sampled token outside the model: its id, log-prob, origin (weights version) and place in the batch."""
FIXES: Mapping[str, str] = {
    "weights": "use --machine.dtype bfloat16, or a smaller model",
    "optimizer": "train an adapter: --lora.rank 16",
    "side models": "use a method without a reference model, such as dapo, or train an adapter: --lora.rank 16",
    "gradients": "train an adapter: --lora.rank 16",
    "activations": "use --machine.recompute true, or lower machine.microbatch_tokens",
    "logits": "lower machine.microbatch_tokens",
    "engine": "lower engine.rows, engine.cache_tokens or sampling.max_tokens",
    "samples": "lower prompts, method.group_size or sampling.max_tokens",
}
"""The recipe change that saves most memory, by the largest use of memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes by use. `total` and `trained` count weights. Gradients, activations and logits exist while the learner
    computes, the engine's cache while it samples; all others exist all the time.
    """

    total: int
    trained: int
    weights: int
    optimizer: int
    side_models: int
    samples: int
    gradients: int
    activations: int
    logits: int
    engine: int

    @property
    def peak(self) -> int:
        """The most bytes that exist at once, including those of the process itself."""
        always = PROCESS + self.weights + self.optimizer + self.side_models + self.samples
        return always + max(self.gradients + self.activations + self.logits, self.engine)

    @property
    def parts(self) -> dict[str, int]:
        """Bytes by the name of their use, such as `gradients`."""
        return {name: getattr(self, name.replace(" ", "_")) for name in FIXES}


def run_memory(recipe: Recipe, shape: Shape, context: int) -> Memory:
    """The memory of a run of the recipe with a model of these sizes. `context` is its longest prompt, in tokens.

    It is an upper bound in one respect: all answers have `sampling.max_tokens` tokens. docs/memory.md derives the
    formulas and compares them with measured runs.
    """
    size, machine = BYTES[recipe.machine.dtype], recipe.machine
    total = sum(weight.numel() for weight in Decoder(shape).parameters())
    trained = adapter_weights(shape, recipe.lora) if recipe.lora else total
    held = total + (trained if recipe.lora else 0)
    half = size < 4
    tokens = microbatch(recipe, context)
    copies = [part for _, part in recipe.method.models_in_use]
    answers = recipe.prompts * recipe.method.group_size
    return Memory(
        total=held,
        trained=trained,
        weights=held * size,
        optimizer=trained * (12 if half else 2 * size),
        side_models=sum(held if isinstance(part, Given) else trained for part in copies) * size,
        samples=answers * recipe.sampling.max_tokens * TOKEN,
        gradients=trained * (4 + size if half else size),
        activations=activations(shape, tokens, recompute=machine.recompute) * size,
        logits=3 * 4 * min(tokens * shape.vocabulary, max(LOGITS, tokens * NARROWEST)),
        engine=engine_numbers(recipe, shape, context) * size,
    )


def adapter_weights(shape: Shape, lora: Lora) -> int:
    """The weights of an adapter: `rank * (inputs + outputs)` for each linear layer that it adapts."""
    linear = [(name, m) for name, m in Decoder(shape).named_modules() if isinstance(m, nn.Linear)]
    adapted = [m for name, m in linear if any(f".{name}".endswith(f".{target}") for target in lora.targets)]
    return sum(lora.rank * (m.in_features + m.out_features) for m in adapted)


def microbatch(recipe: Recipe, context: int) -> int:
    """The most tokens in one forward pass of the learner: a step's, or `machine.microbatch_tokens`, or one sample's."""
    answer = recipe.sampling.max_tokens
    step = recipe.prompts // recipe.method.minibatches * (context + recipe.method.group_size * answer)
    return min(step, max(recipe.machine.microbatch_tokens, context + answer))


def activations(shape: Shape, tokens: int, *, recompute: bool) -> int:
    """How many numbers a forward pass stores for its backward pass.

    A layer stores, per token: for each norm its unit and its output (4 widths), queries, keys, values and output of
    attention, with `qk_norm` queries and keys twice, and four inner vectors of the MLP. With `recompute` a layer stores
    its input, and only one layer at a time the others. The backward of a layer needs the MLP's gradients, too.
    """
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    attention = 2 * (queries + keys) + (queries + keys if shape.qk_norm else 0)
    layer = 4 * shape.width + attention + 4 * shape.inner
    stored = shape.layers * shape.width + layer if recompute else shape.layers * layer
    return tokens * (stored + 3 * shape.width + 2 * shape.inner)


def engine_numbers(recipe: Recipe, shape: Shape, context: int) -> int:
    """How many numbers the engine stores while it samples: keys and values of live rows and of cached prompts."""
    engine = recipe.engine if isinstance(recipe.engine, Native) else Native()
    evaluated = recipe.evaluate.problems * recipe.evaluate.samples
    rows = min(engine.rows, max(recipe.prompts * recipe.method.group_size, evaluated))
    tokens = rows * (context + recipe.sampling.max_tokens) + recipe.prompts * context
    return min(tokens, engine.cache_tokens) * shape.layers * 2 * shape.kv_heads * shape.head_dim


def plan_line(recipe: Recipe, memory: Memory) -> str:
    """One line about a planned run: weights, answers and tokens per iteration, expected memory."""
    answers = recipe.prompts * recipe.method.group_size
    share = "" if memory.trained == memory.total else f" ({memory.trained:,} trained)"
    tokens = answers * recipe.sampling.max_tokens
    at_most = f"{answers:,} answers and at most {tokens:,} tokens per iteration"
    return f"plan: {memory.total:,} weights{share}, {at_most}, about {memory.peak / GIB:.1f} GiB of memory"


def refuse_beyond(memory: Memory, available: int, device: str = "cpu") -> None:
    """`Usage` if a run needs more memory than the device has, with the change that saves most."""
    if memory.peak <= available:
        return
    parts = sorted(memory.parts.items(), key=lambda part: -part[1])
    raise Usage(
        f"this run needs about {memory.peak / GIB:.1f} GiB, and {device} has {available / GIB:.1f} GiB",
        evidence=", ".join(f"{name} {bytes_ / GIB:.1f} GiB" for name, bytes_ in parts[:3]),
        fix=FIXES[parts[0][0]],
    )


def host_memory(cgroup: Path = Path("/sys/fs/cgroup/memory.max")) -> int:
    """Bytes of the machine's memory, or of the limit of its control group if that is lower."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(total, int(cgroup.read_text()))
    except (OSError, ValueError):  # no control group, or no limit ("max")
        return total
