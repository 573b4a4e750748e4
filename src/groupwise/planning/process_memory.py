"""The memory of each process of a run, by use (weights, gradients, ...) and phase, from recipe and model sizes."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from torch import nn

from groupwise.config.recipe import Recipe
from groupwise.config.resolve_devices import device_of
from groupwise.config.task_sources import generates_nothing
from groupwise.core import Usage, counted
from groupwise.data import unsplit_unit
from groupwise.engines import Native, Served, Vllm
from groupwise.engines.native.attention_layouts import block_end, common_prefix_len
from groupwise.learner import EMA, AdamW8bit, FromDirectory, SamplingPolicy, SideModel, ValueModel
from groupwise.learner.quantized_moments import BLOCK
from groupwise.models import Decoder, DecoderShape, Lora
from groupwise.models.quantized_linear import quantized_bytes
from groupwise.models.quantized_weights import linear_shapes
from groupwise.planning.activation_memory import PackedMicrobatch, activation_bytes, forward_bytes, kernel_of
from groupwise.planning.read_model_shape import layer_weights, weights_of

BYTES = {"float64": 8, "float32": 4, "bfloat16": 2}
GIB = 1 << 30
PROCESS = 275 << 20
"""Bytes of a process that has imported torch and sampled from a model, without the model."""
BACKWARD = 36 << 20
"""Bytes of the modules that torch imports in its first backward pass, such as sympy."""
CHECKPOINT = 41 << 20
"""Bytes of the modules that `torch.utils.checkpoint` imports, which `machine.gradient_checkpointing` uses."""
SHARDING = 49 << 20
"""Bytes of torch's modules for sharded weights, beside `BACKWARD`."""
PEFT = 125 << 20
"""Bytes of peft and transformers, which an adapter imports."""
BITSANDBYTES = 44 << 20
"""Bytes of bitsandbytes beside those, which weights in 4 bits import."""
LOGITS = 1 << 22
"""The number of logits that the learner computes at once (`LOGITS_AT_ONCE` of `learner/forward.py`)."""
NARROWEST = 256
"""The number of vocabulary entries in the smallest block of logits."""
PREFILL = 8192
"""Tokens of prompts that the engine forwards at once (its `MAX_NUM_BATCHED_TOKENS`), unless one prompt is longer."""
BLOCKED = 1 << 16
"""Elements of the smallest weight that the engine copies to blocks (`LEAST` of `decoder/prepacked_weights.py`)."""
TOKEN = 100
"""Bytes of a sampled token outside the model: its id, log-prob, origin (weights version) and columns of the batch."""
FOUR_BITS = "use --machine.quantization nf4"
BFLOAT16, ADAPTER = "use --machine.dtype bfloat16", "train an adapter: --lora.rank 16"
EIGHT_BITS = "use --optimizer.kind AdamW8bit"
RECOMPUTE = "use --machine.gradient_checkpointing true"
FIXES: Mapping[str, tuple[str, ...]] = {
    "weights": (BFLOAT16, FOUR_BITS, "use a smaller model"),
    "dequantised": ("use a smaller model",),
    "optimizer": (EIGHT_BITS, ADAPTER, "use a smaller model"),
    "side models": ("use a method without a reference model, such as dapo", ADAPTER),
    "gradients": (ADAPTER, "use a smaller model"),
    "gathered": ("use a smaller model", BFLOAT16),
    "activations": (RECOMPUTE, "lower machine.microbatch_tokens"),
    "logits": ("lower machine.microbatch_tokens",),
    "engine": (BFLOAT16, "lower engine.max_num_seqs"),
    "rows": ("lower engine.max_num_seqs, engine.kv_cache_tokens or sampling.max_tokens",),
    "prompts": ("lower evaluate.problems, prompts or engine.kv_cache_tokens",),
    "samples": ("lower prompts, method.group_size or sampling.max_tokens",),
    "checkpoint": (ADAPTER, BFLOAT16),
    "published": (BFLOAT16, "use a smaller model"),
}
"""Advice for each use of memory: the changes of a recipe that save most, if this use is the largest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessWork:
    """The work of one process, and with how many others it shares its tensors. The default does everything alone.

    `learner_rank_count` learners hold equal shards of weights, gradients, moments and side models. An engine spans
    `tensor_parallel` devices, which hold equal parts of each matrix and of the cache. `run_engine_count` share the
    answers of an iteration.
    """

    has_learner: bool = True
    has_engine: bool = True
    learner_rank_count: int = 1
    tensor_parallel: int = 1
    run_engine_count: int = 1

    @property
    def shares_weights(self) -> bool:
        """Whether the engine samples from the tensors of the learner, as the native one in the same process does."""
        return self.has_learner and self.has_engine and self.learner_rank_count == self.tensor_parallel == 1


ALONE = ProcessWork()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessMemoryPrediction:
    """The predicted memory in bytes, by use.

    The uses in `permanent_bytes` exist all the time, a phase's uses during it.

    `parameter_count` and `trained_parameter_count` count weights. `python_bytes` are the bytes of Python and its
    libraries.
    """

    parameter_count: int
    trained_parameter_count: int
    python_bytes: int
    permanent_bytes: Mapping[str, int]
    phase_bytes: Mapping[str, Mapping[str, int]]

    @property
    def largest_phase(self) -> str:
        """The name of the phase that needs the most memory."""
        return max(self.phase_bytes, key=lambda name: sum(self.phase_bytes[name].values()))

    @property
    def peak(self) -> int:
        """The peak memory of the run, in bytes."""
        return self.python_bytes + sum(self.parts.values())

    @property
    def parts(self) -> Mapping[str, int]:
        """The bytes of each use of memory at the peak."""
        return {**self.permanent_bytes, **self.phase_bytes[self.largest_phase]}

    def during(self, phase: str) -> "ProcessMemoryPrediction":
        """The memory of one phase alone."""
        return replace(self, phase_bytes={phase: self.phase_bytes[phase]})


def run_memory(
    recipe: Recipe, shape: DecoderShape, context: int, process: ProcessWork = ALONE
) -> ProcessMemoryPrediction:
    """The memory of a process of a run with a model of these sizes. `context` is the longest prompt, in tokens.

    It is an upper bound in one respect: all answers have `sampling.max_tokens` tokens. docs/memory.md derives the
    formulas and compares them with measured runs.
    """
    if not process.has_learner:  # an engine in another process has whole weights
        recipe = replace(recipe, machine=replace(recipe.machine, quantization=None))
    size, on_cpu = BYTES[recipe.machine.dtype], device_of(recipe.machine.device) == "cpu"
    total = weights_of(shape)
    trained = adapter_weights(shape, recipe.lora) if recipe.lora else total
    held = total + (trained if recipe.lora else 0)
    learner = learner_state(recipe, held, trained, size) if process.has_learner else {}
    state = trained * size + sum(learner.values()) - bytes_from_directories(recipe, held, size)
    own = weights = weight_bytes(recipe, shape, held, size)
    if process.has_learner and process.learner_rank_count > 1 and size < 4:  # shards of trained weights are masters
        learner["optimizer"] -= 4 * trained
        own += (4 - size) * trained
    always = {"weights": own // (process.learner_rank_count if process.has_learner else process.tensor_parallel)}
    if recipe.machine.quantization:
        always["dequantised"] = quantized_matrices(shape).largest * size
    always |= {name: bytes_ // process.learner_rank_count for name, bytes_ in learner.items()}
    if process.has_learner:
        samples = recipe.prompts * recipe.method.group_size * recipe.sampling.max_tokens * TOKEN
        always["samples"] = samples if on_cpu else 0  # else they are in the memory of the host
    cache = cache_bytes(recipe, shape, context, process) if process.has_engine else {}
    shares_weights = process.shares_weights and not (recipe.cluster.max_staleness or isinstance(recipe.engine, Served))
    if not process.has_learner or shares_weights:
        always["prompts"] = cache.pop("prompts")
    kept = cache if shares_weights else {}
    phases: dict[str, Mapping[str, int]] = {}
    copy = 0
    if process.has_engine:
        copy = weights // process.tensor_parallel if process.has_learner and not shares_weights else 0
        engine = engine_bytes(recipe, shape, context, process, on_cpu=on_cpu)
        phases["sampling"] = {"engine": engine + copy, **cache}
        if keeps_memory(recipe):
            kept = phases["sampling"]
        if not process.has_learner and on_cpu:
            phases["loading"] = {"engine": weights // process.tensor_parallel}
    published, merged = (count(recipe, total, size) for count in (published_bytes, merged_bytes))
    if process.has_learner and gathers_layers(recipe, process.learner_rank_count):
        published, merged = 0, gathered_layer_bytes(recipe, shape, size)
    if process.has_learner and published + merged:
        phases["publishing"] = {"published": published + merged, **kept}
        if published and keeps_memory(recipe):
            always["published"] = published
    if process.has_learner:
        learning = learning_bytes(recipe, shape, context, (1 + critics(recipe)) * trained, process)
        phases |= {phase: {**parts, **kept} for phase, parts in learning.items()}
        if recipe.machine.optimizer_offload and not on_cpu:
            moved = {"optimizer": always.pop("optimizer")}
            phases |= {phase: {**phases[phase], **moved} for phase in learning if phase != "measuring"}
        phases["saving"] = {"checkpoint": 2 * state // process.learner_rank_count if on_cpu else 0}
        if process.has_engine and keeps_memory(recipe):
            phases["saving"] = {**phases["saving"], "engine": copy}
    return ProcessMemoryPrediction(
        parameter_count=held,
        trained_parameter_count=trained,
        python_bytes=libraries(recipe, process),
        permanent_bytes=always,
        phase_bytes=phases,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedMatrices:
    """The matrices that are in 4 bits: the number of their weights, their bytes, and the weights of the largest."""

    count: int
    bytes: int
    largest: int


@cache
def quantized_matrices(shape: DecoderShape) -> QuantizedMatrices:
    """The matrices of a decoder that `machine.quantization` quantises."""
    shapes = [(sizes[0], sizes[1]) for sizes in linear_shapes(Decoder(shape)).values()]
    counts = [outputs * inputs for outputs, inputs in shapes]
    stored = sum(quantized_bytes(*sizes) for sizes in shapes)
    return QuantizedMatrices(count=sum(counts), bytes=stored, largest=max(counts))


def weight_bytes(recipe: Recipe, shape: DecoderShape, held: int, size: int) -> int:
    """Bytes of `held` weights, those of an adapter included; the linear layers but the head may be in 4 bits."""
    if not recipe.machine.quantization:
        return held * size
    matrices = quantized_matrices(shape)
    return matrices.bytes + (held - matrices.count) * size


def gathers_layers(recipe: Recipe, ranks: int) -> bool:
    """Whether rank 0 of `ranks` with shards has no whole model: no engine of its process samples from one.

    It gathers a layer at a time for engines in other processes, and for the models that it writes. A warm start, which
    rank 0 takes alone, needs the whole model.
    """
    return ranks > 1 and not (samples_in_learner(recipe) or recipe.warm_start)


def samples_in_learner(recipe: Recipe) -> bool:
    """Whether an engine in the learner's process samples."""
    return not (isinstance(recipe.engine, Served) or generates_nothing(recipe))


def gathered_layer_bytes(recipe: Recipe, shape: DecoderShape, size: int) -> int:
    """Bytes of the weights that rank 0 gathers at a time: a layer with its adapter and their sum, or the embedding."""
    layer = layer_weights(shape)
    if recipe.lora:
        merges = recipe.trains_reward_model or isinstance(recipe.engine, Vllm)
        layer += adapter_weights(shape, recipe.lora) // shape.layers + merges * layer
    return max(layer, shape.vocabulary_size * shape.hidden_size) * size


def published_bytes(recipe: Recipe, weights: int, size: int) -> int:
    """Bytes of the copy on the learner's GPU that vLLM engines load, without a temporary one with a merged adapter.

    It stays until the next version is published, or until engines on the learner's device sleep.
    """
    engine, on_cpu = recipe.engine, device_of(recipe.machine.device) == "cpu"
    by_file = on_cpu or recipe.machine.quantization
    return weights * size if isinstance(engine, Vllm) and not (by_file or engine.addresses) else 0


def merged_bytes(recipe: Recipe, weights: int, size: int) -> int:
    """Bytes of the learner's temporary copy with a merged adapter. That of a base in 4 bits is in the host's memory."""
    if recipe.machine.quantization:
        on_cpu = device_of(recipe.machine.device) == "cpu"
        return weights * size if isinstance(recipe.engine, Vllm) and on_cpu else 0
    return published_bytes(recipe, weights, size) if recipe.lora else 0


def keeps_memory(recipe: Recipe) -> bool:
    """Whether an engine with its own weights has them and its cache while the learner works.

    With staleness it samples meanwhile. An engine in another process frees them if it is on the learner's device.
    """
    return bool(recipe.cluster.max_staleness) or (
        isinstance(recipe.engine, Served) and recipe.engine.placement == "separate"
    )


def libraries(recipe: Recipe, process: ProcessWork) -> int:
    """Bytes of Python and of the libraries that a process imports."""
    used = {PEFT: recipe.lora is not None, BACKWARD: process.has_learner}
    used[BITSANDBYTES] = recipe.machine.quantization is not None
    used[CHECKPOINT] = process.has_learner and recipe.machine.gradient_checkpointing
    used[SHARDING] = process.has_learner and process.learner_rank_count > 1
    return PROCESS + sum(bytes_ for bytes_, applies in used.items() if applies)


def critics(recipe: Recipe) -> int:
    """The number of value models whose own trunk is trained."""
    parts = [part for _, part in recipe.method.models_in_use]
    return sum(isinstance(part, ValueModel) and part.trunk == "own" and part.trains_trunk for part in parts)


def learner_state(recipe: Recipe, held: int, trained: int, size: int) -> dict[str, int]:
    """Bytes of the optimizer and of side models, before ranks share them. `held` and `trained` count weights."""
    models = [part for _, part in recipe.method.models_in_use]
    sides = sum(side_model_bytes(part, held if isinstance(part, FromDirectory) else trained, size) for part in models)
    return {"optimizer": round(trained * optimizer_bytes(recipe, size)), "side models": sides}


def optimizer_bytes(recipe: Recipe, size: int) -> float:
    """Bytes of moments and masters for each trained weight of `size` bytes: of the policy, and of critics."""
    master, moments = (4 if size < 4 else 0), 2 * max(size, 4)
    policy: float = moments
    if isinstance(recipe.optimizer, AdamW8bit):  # a block is within a row, and rows of an adapter may be short
        policy = 2 * (1 + 4 / min(BLOCK, recipe.lora.rank if recipe.lora else BLOCK))
    return policy + master + critics(recipe) * (moments + master)


def bytes_from_directories(recipe: Recipe, held: int, size: int) -> int:
    """Bytes of side models from directories, which no checkpoint contains."""
    return sum(isinstance(part, FromDirectory) for _, part in recipe.method.models_in_use) * held * size


def cache_bytes(recipe: Recipe, shape: DecoderShape, context: int, process: ProcessWork) -> dict[str, int]:
    """Bytes of the keys and values that one device of an engine caches: of running requests, and of prompts."""
    token = key_value_bytes(shape, BYTES[recipe.machine.dtype]) // process.tensor_parallel
    rows, prompts = (
        running_tokens(recipe, context, process.run_engine_count),
        cached_prompts(recipe, context, process.run_engine_count),
    )
    return {"rows": rows * token, "prompts": prompts * token}


def adapter_weights(shape: DecoderShape, lora: Lora) -> int:
    """The weights of an adapter: `rank * (inputs + outputs)` for each linear layer that it adapts."""
    return sum(lora.rank * (m.in_features + m.out_features) for m in adapted_matrices(shape, lora))


def adapted_matrices(shape: DecoderShape, lora: Lora) -> list[nn.Linear]:
    """The linear layers that an adapter adapts, without numbers."""
    linear = [(name, m) for name, m in Decoder(shape).named_modules() if isinstance(m, nn.Linear)]
    return [m for name, m in linear if any(f".{name}".endswith(f".{target}") for target in lora.target_modules)]


def side_model_bytes(part: SideModel, weights: int, size: int) -> int:
    """Bytes of a side model's weights: 0 for a shared trunk; a copy that is updated has float32 numbers as well."""
    if isinstance(part, ValueModel) and part.trunk == "shared":
        return 0
    return weights * (size + 4 if isinstance(part, EMA | SamplingPolicy) and size < 4 else size)


def learning_bytes(
    recipe: Recipe, shape: DecoderShape, context: int, trained: int, process: ProcessWork = ALONE
) -> dict[str, dict[str, int]]:
    """The memory of the learner in each of its phases: forward without gradient, backward, optimizer step.

    While activations exist, so do the gradients of the step's earlier microbatches, and the head's. After the
    last backward all gradients exist, and no activations. Ranks that share weights gather two layers at a
    time, and of embedding and head. The gradients of a layer exist whole, and twice in float32, as they are sent and as
    they arrive, while those of the layer before are still sent. So do, after the layers, those of embedding and head.
    """
    machine, size = recipe.machine, BYTES[recipe.machine.dtype]
    kernel = kernel_of(device_of(machine.device), machine.dtype, shape)
    lanes = max(process.learner_rank_count, recipe.cluster.reduction_lanes)
    packed, several = microbatch(recipe, context, lanes)
    sharded, wide = process.learner_rank_count > 1, max(size, 4)
    earlier = (sharded + several) * trained * wide // process.learner_rank_count
    head = 0 if recipe.lora else shape.vocabulary_size * shape.hidden_size * size
    own = sum(isinstance(part, ValueModel) and part.trunk == "own" for _, part in recipe.method.models_in_use)
    stored = activation_bytes(shape, packed, size, recompute=machine.gradient_checkpointing, kernel=kernel)
    answers = recipe.prompts * recipe.method.group_size
    iteration = recipe.prompts * context + answers * recipe.sampling.max_tokens
    measured = max(packed.tokens, min(iteration, machine.microbatch_tokens))
    shared = (2 * layer_weights(shape) + 2 * shape.vocabulary_size * shape.hidden_size) * size if sharded else 0
    gathered = {"gathered": shared} if shared else {}
    both = size + 4 if size < 4 and process.learner_rank_count == 1 else max(size, 4)  # of a weight, and of its master
    layer = layer_weights(shape) if sharded and not recipe.lora else 0
    ends = weights_of(shape) - shape.layers * layer
    adding = {"gradients": earlier + ends * (size + 2 * wide) + layer * wide} if layer else {}
    return {
        "measuring": {
            "activations": forward_bytes(shape, measured, size),
            "logits": logit_bytes(shape, measured),
            **gathered,
        },
        "learning": {
            "gradients": earlier + head + layer * (size + 3 * wide),
            "activations": (1 + own) * stored,
            "logits": logit_bytes(shape, packed.tokens),
            **gathered,
        },
        **({"adding": adding} if adding else {}),
        "updating": {"gradients": trained * both // process.learner_rank_count},
    }


def microbatch(recipe: Recipe, context: int, lanes: int = 1) -> tuple[PackedMicrobatch, bool]:
    """The largest microbatch of a step, and whether each of the lanes that share the step has several microbatches.

    It has at most `machine.microbatch_tokens` tokens, or is one unit that the objective couples: a sample, a group or
    the whole step.
    """
    method, answer = recipe.method, recipe.sampling.max_tokens
    prompts = -(-recipe.prompts // method.minibatches)
    step = -(-prompts * method.group_size // lanes)
    unit = {"group": method.group_size, "step": step}.get(unsplit_unit(method.objective), 1)
    group = context + method.group_size * answer
    room = max(0, recipe.machine.microbatch_tokens)
    whole, rest = divmod(room, group)
    fit = whole * method.group_size + max(0, rest - context) // answer
    answers = min(step, max(unit, fit // unit * unit))
    held = -(-answers // method.group_size)
    return PackedMicrobatch(
        tokens_per_prompt=context, tokens_per_answer=answer, prompt_count=held, answer_count=answers
    ), answers < step


def logit_bytes(shape: DecoderShape, tokens: int) -> int:
    """Bytes of the learner's logits: three float32 blocks of at most `LOGITS` numbers, or `NARROWEST` per token."""
    return 3 * 4 * min(tokens * shape.vocabulary_size, max(LOGITS, tokens * NARROWEST))


def engine_bytes(
    recipe: Recipe, shape: DecoderShape, context: int, process: ProcessWork = ALONE, *, on_cpu: bool
) -> int:
    """Bytes of a device of the engine while it samples, without cached keys and values.

    These are blocked weights, and logits or a prefill. On a CPU large float32 weights are copied to blocks. Logits,
    log-probs and probabilities of all rows exist at once. While it prefills prompts, their keys and values exist twice.
    """
    size = BYTES[recipe.machine.dtype]
    logits = running_requests(recipe, process.run_engine_count) * shape.vocabulary_size * (max(size, 4) * 2 + size)
    prefilled = min(PREFILL, max(recipe.evaluate.problems, recipe.prompts) * context)
    prefill = 2 * prefilled * key_value_bytes(shape, size) + forward_bytes(shape, prefilled, size)
    blocks = blocked_weights(recipe, shape) * size if on_cpu and size == 4 else 0
    return (max(logits, prefill) + blocks) // process.tensor_parallel


def running_requests(recipe: Recipe, engines: int = 1) -> int:
    """The most sequences that one of the engines continues at once."""
    engine = recipe.engine if isinstance(recipe.engine, Native) else Native()
    evaluated = recipe.evaluate.problems * recipe.evaluate.samples
    return min(engine.max_num_seqs, -(-max(recipe.prompts * recipe.method.group_size, evaluated) // engines))


def running_tokens(recipe: Recipe, context: int, engines: int = 1) -> int:
    """Tokens for which the cache of running requests has memory, in whole blocks. Loading new weights frees it.

    A long prompt is in the cache of prompts, but for its last token.
    """
    engine = recipe.engine if isinstance(recipe.engine, Native) else Native()
    row = block_end(context + recipe.sampling.max_tokens - common_prefix_len(context))
    return min(running_requests(recipe, engines) * row, engine.kv_cache_tokens)


def blocked_weights(recipe: Recipe, shape: DecoderShape) -> int:
    """The elements of the matrices that the engine copies to blocks, the head included. Those in 4 bits have none."""
    matrices = [m.weight.numel() for m in Decoder(shape).modules() if isinstance(m, nn.Linear)]
    if recipe.machine.quantization:
        matrices = [] if shape.tied_embeddings else [shape.vocabulary_size * shape.hidden_size]
    head = [shape.vocabulary_size * shape.hidden_size] if shape.tied_embeddings else []
    return sum(count for count in (*matrices, *head) if count >= BLOCKED)


def cached_prompts(recipe: Recipe, context: int, engines: int = 1) -> int:
    """Tokens of prompts whose keys and values an engine caches until it loads new weights."""
    engine = recipe.engine if isinstance(recipe.engine, Native) else Native()
    return min(-(-(recipe.evaluate.problems + recipe.prompts) // engines) * context, engine.kv_cache_tokens)


def key_value_bytes(shape: DecoderShape, size: int) -> int:
    """Bytes of the keys and values of one token in all layers."""
    return shape.layers * 2 * shape.kv_heads * shape.head_dim * size


def plan_line(recipe: Recipe, memory: ProcessMemoryPrediction) -> str:
    """One line about a planned run: weights, answers and tokens per iteration, expected memory."""
    answers = recipe.prompts * recipe.method.group_size
    share = (
        ""
        if memory.trained_parameter_count == memory.parameter_count
        else f" ({memory.trained_parameter_count:,} trained)"
    )
    tokens = answers * recipe.sampling.max_tokens
    at_most = f"{counted(answers, 'answer')} and at most {counted(tokens, 'token')} per iteration"
    return f"plan: {memory.parameter_count:,} weights{share}, {at_most}, about {memory.peak / GIB:.1f} GiB of memory"


def advice(recipe: Recipe, memory: ProcessMemoryPrediction) -> str:
    """The changes that save most of the largest use of memory, without those that the recipe has made."""
    machine = recipe.machine
    made = {
        BFLOAT16: machine.dtype == "bfloat16",
        ADAPTER: recipe.lora is not None,
        FOUR_BITS: machine.quantization is not None or recipe.lora is None,
        RECOMPUTE: machine.gradient_checkpointing,
        EIGHT_BITS: isinstance(recipe.optimizer, AdamW8bit) or recipe.lora is not None,
    }
    largest = max(memory.parts, key=lambda name: memory.parts[name])
    fixes = [fix for fix in FIXES[largest] if not made.get(fix)]
    return ", or ".join(fixes or ["use a machine with more memory, or a smaller model"])


def refuse_beyond(recipe: Recipe, memory: ProcessMemoryPrediction, available: int, device: str = "cpu") -> None:
    """`Usage` if a run needs more memory than the device has, with the changes that save most."""
    if memory.peak <= available:
        return
    parts = sorted(memory.parts.items(), key=lambda part: -part[1])
    raise Usage(
        f"this run needs about {memory.peak / GIB:.1f} GiB, and {device} has {available / GIB:.1f} GiB",
        evidence=", ".join(f"{name} {bytes_ / GIB:.1f} GiB" for name, bytes_ in parts[:3]),
        fix=advice(recipe, memory),
    )


def host_memory(cgroup: Path = Path("/sys/fs/cgroup/memory.max")) -> int:
    """Bytes of the machine's memory, or of the limit of its control group if that is lower."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(total, int(cgroup.read_text()))
    except (OSError, ValueError):  # no control group, or no limit ("max")
        return total
