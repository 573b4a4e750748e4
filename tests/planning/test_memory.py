"""The memory of a run: each part against a number computed by hand, and activations against those of a forward."""

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from benchmarks.plan_memory import COMMON, MIB, OTHERS, RUNS
from torch.nn.attention import SDPBackend, sdpa_kernel

import groupwise as gw
from groupwise.config.recipe import Recipe, WarmStart
from groupwise.config.recipe_toml import override, read_recipe
from groupwise.config.resolve_devices import resolved
from groupwise.core import Usage
from groupwise.engines import Native, Served, Vllm
from groupwise.engines.native import native_engine as engine
from groupwise.learner import AdamW8bit
from groupwise.learner.forward import LOGITS_AT_ONCE
from groupwise.learner.linear_logprobs import NARROWEST as NARROWEST_BLOCK
from groupwise.models import Decoder, DecoderShape, Lora, PrefixPacking, find_model, read_shape
from groupwise.models.decoder import prefix_packing as layout
from groupwise.models.decoder import prepacked_weights as blocks
from groupwise.planning import activation_memory as stored
from groupwise.planning import process_memory as planning
from groupwise.planning.activation_memory import (
    PackedMicrobatch,
    activation_bytes,
    forward_bytes,
    kernel_of,
    layer_bytes,
)
from groupwise.planning.process_memory import (
    BACKWARD,
    CHECKPOINT,
    PEFT,
    PROCESS,
    ProcessMemoryPrediction,
    ProcessWork,
    adapter_weights,
    host_memory,
    learning_bytes,
    microbatch,
    plan_line,
    refuse_beyond,
    run_memory,
)
from groupwise.planning.read_model_shape import planned_shape, weights_of
from groupwise.planning.run_processes import at_once, check_memory, process_memories, rank_memories
from tests.pretended_gpu import pretended_gpu

HOME = Path(__file__).parents[2]
CALCULATOR = read_shape(find_model("calculator"))
SHAPE = DecoderShape(
    vocabulary_size=100, hidden_size=8, layers=2, heads=2, kv_heads=1, head_dim=4, mlp_width=16, max_positions=64,
    tied_embeddings=True
)  # fmt: skip
LAYER = 8 * 8 + 2 * 8 * 4 + 8 * 8 + 3 * 8 * 16 + 2 * 8  # q, k and v, o, MLP, norms
WEIGHTS = 100 * 8 + 2 * LAYER + 8
SETTINGS = {"method.minibatches": "2", "method.group_size": "4", "prompts": "4", "sampling.max_tokens": "10"}
RECIPE = resolved(read_recipe("method = 'dapo'", [*SETTINGS.items(), ("evaluate.problems", "2")]))
STEP = PackedMicrobatch(tokens_per_prompt=6, tokens_per_answer=10, prompt_count=2, answer_count=8)


def changed(**machine: Any) -> Any:
    return replace(RECIPE, machine=replace(RECIPE.machine, **machine))


def test_parts_in_float32() -> None:
    memory = run_memory(RECIPE, SHAPE, 6)
    assert memory.parameter_count == memory.trained_parameter_count == WEIGHTS
    assert memory.permanent_bytes == {
        "weights": 4 * WEIGHTS,
        "optimizer": 8 * WEIGHTS,
        "side models": 0,
        "samples": 16 * 10 * planning.TOKEN,
        "prompts": (2 + 4) * 6 * 4 * 2 * 2 * 4,  # keys and values of 2 layers of width 4
    }
    rows = 16 * 64 * 4 * 2 * 2 * 4  # a row has memory for whole blocks of 64 positions
    assert memory.phase_bytes["learning"] == {
        "rows": rows,
        "gradients": 4 * 100 * 8,  # of the head
        "activations": activation_bytes(SHAPE, STEP, 4, recompute=False, kernel="flash"),
        "logits": 3 * 4 * STEP.tokens * 100,
    }
    assert memory.phase_bytes["updating"] == {"rows": rows, "gradients": 4 * WEIGHTS}
    assert memory.phase_bytes["saving"] == {"checkpoint": 2 * 12 * WEIGHTS}
    assert memory.phase_bytes["sampling"] == {"rows": rows, "engine": 16 * 100 * 12}  # logits, log-probs, probabilities
    largest = max(sum(parts.values()) for parts in memory.phase_bytes.values())
    assert memory.peak == PROCESS + BACKWARD + sum(memory.permanent_bytes.values()) + largest
    assert run_memory(changed(gradient_checkpointing=True), SHAPE, 6).python_bytes == PROCESS + BACKWARD + CHECKPOINT
    assert run_memory(RECIPE, SHAPE, 6, ProcessWork(has_learner=False)).python_bytes == PROCESS


def test_bfloat16_has_float32_masters() -> None:
    memory = run_memory(changed(dtype="bfloat16"), SHAPE, 6)
    assert (memory.permanent_bytes["weights"], memory.permanent_bytes["optimizer"]) == (2 * WEIGHTS, 12 * WEIGHTS)
    assert memory.phase_bytes["updating"]["gradients"] == 6 * WEIGHTS
    assert memory.phase_bytes["saving"] == {"checkpoint": 2 * 14 * WEIGHTS}


def test_moments_in_8_bits_and_on_the_host() -> None:
    """7.6 billion weights in bfloat16 with masters: 2 + 4 + 2.03 bytes each; on the host they are not counted."""
    eight = replace(RECIPE, optimizer=AdamW8bit())
    assert run_memory(eight, SHAPE, 6).permanent_bytes["optimizer"] == round(2 * (1 + 4 / 256) * WEIGHTS)
    half = replace(eight, machine=replace(RECIPE.machine, dtype="bfloat16"))
    assert run_memory(half, SHAPE, 6).permanent_bytes["optimizer"] == round((4 + 2 * (1 + 4 / 256)) * WEIGHTS)
    gpu = run_memory(replace(half, machine=replace(half.machine, device="cuda", optimizer_offload=True)), SHAPE, 6)
    assert "optimizer" not in {**gpu.permanent_bytes, **gpu.phase_bytes["sampling"], **gpu.phase_bytes["measuring"]}
    assert gpu.phase_bytes["learning"]["optimizer"] == gpu.phase_bytes["updating"]["optimizer"] > 6 * WEIGHTS
    cpu = changed(optimizer_offload=True)
    assert run_memory(cpu, SHAPE, 6) == run_memory(RECIPE, SHAPE, 6)


def test_an_adapter_trains_its_own_weights() -> None:
    lora = Lora(rank=3, target_modules=("q_proj", "down_proj"))
    adapter = 2 * 3 * ((8 + 8) + (16 + 8))
    assert adapter_weights(SHAPE, lora) == adapter
    memory = run_memory(replace(RECIPE, lora=lora), SHAPE, 6)
    assert (memory.parameter_count, memory.trained_parameter_count, memory.permanent_bytes["optimizer"]) == (
        WEIGHTS + adapter,
        adapter,
        8 * adapter,
    )
    assert memory.python_bytes == PROCESS + BACKWARD + PEFT
    assert memory.phase_bytes["learning"]["gradients"] == 0


def test_a_reference_is_a_copy_that_is_saved() -> None:
    recipe = resolved(read_recipe("method = 'grpo'"))
    memory = run_memory(recipe, SHAPE, 6)
    assert memory.permanent_bytes["side models"] == 4 * WEIGHTS
    assert memory.phase_bytes["saving"]["checkpoint"] == 2 * 16 * WEIGHTS
    lora = Lora(rank=3, target_modules=("q_proj",))
    sides = run_memory(replace(recipe, lora=lora), SHAPE, 6).permanent_bytes["side models"]
    assert sides == 4 * adapter_weights(SHAPE, lora)
    given = replace(
        recipe, method=override(recipe.method, "models.reference", '{ kind = "FromDirectory", directory = "x" }')
    )
    assert run_memory(given, SHAPE, 6).phase_bytes["saving"]["checkpoint"] == 2 * 12 * WEIGHTS


def test_a_critic_has_its_own_trunk_optimizer_and_activations() -> None:
    critic = 'models = { critic = "ValueModel" }\ncredit = { kind = "GAE", lam = 0.9 }\n'
    own = resolved(read_recipe(f"prompts = 4\nsampling.max_tokens = 10\n[method]\ngroup_size = 4\n{critic}"))
    plain, memory = run_memory(replace(own, method=RECIPE.method), SHAPE, 6), run_memory(own, SHAPE, 6)
    assert memory.permanent_bytes["side models"] == 4 * WEIGHTS and memory.permanent_bytes["optimizer"] == 16 * WEIGHTS
    assert memory.phase_bytes["updating"]["gradients"] == 2 * plain.phase_bytes["updating"]["gradients"]


def test_a_microbatch_is_bounded_by_its_tokens_and_by_what_the_objective_couples() -> None:
    assert microbatch(RECIPE, 6) == (STEP, False)
    small = changed(microbatch_tokens=32)  # one prompt and two answers
    assert microbatch(small, 6) == (
        PackedMicrobatch(tokens_per_prompt=6, tokens_per_answer=10, prompt_count=1, answer_count=2),
        True,
    )
    assert microbatch(changed(microbatch_tokens=1), 6)[0].answer_count == 1
    earlier = learning_bytes(small, SHAPE, 6, WEIGHTS)["learning"]["gradients"]
    assert earlier == 4 * WEIGHTS + 4 * 100 * 8  # of the first microbatches, and of the head


def test_recompute_stores_one_input_per_layer() -> None:
    whole = activation_bytes(SHAPE, STEP, 4, recompute=False, kernel="flash")
    less = activation_bytes(SHAPE, STEP, 4, recompute=True, kernel="flash")
    assert whole - less == layer_bytes(SHAPE, STEP, 4, kernel="flash") - 2 * STEP.tokens * 8 * 4
    assert forward_bytes(SHAPE, 5, 4) == 4 * 5 * (2 * 8 + 3 * 16)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("context", [20, 100])
@pytest.mark.parametrize("qk_norm", [False, True])
def test_a_layer_stores_the_bytes_that_its_forward_saves(context: int, qk_norm: bool, dtype: torch.dtype) -> None:
    packed = PackedMicrobatch(tokens_per_prompt=context, tokens_per_answer=33, prompt_count=2, answer_count=8)
    sizes = {
        "hidden_size": 64,
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 16,
        "mlp_width": 128,
        "max_positions": 256,
        "tied_embeddings": True,
    }
    saved = []
    for layers in (1, 2):
        shape = DecoderShape(
            vocabulary_size=100, layers=layers, qk_norm=qk_norm, model_family="qwen3" if qk_norm else "llama", **sizes
        )
        saved.append(saved_bytes(Decoder.new(shape, 0, dtype=dtype), packed))
    expected = layer_bytes(shape, packed, dtype.itemsize, kernel="flash")
    assert saved[1] - saved[0] == pytest.approx(expected, rel=0.04)  # positions, masks' padding, one number a head


GPU_MODEL = DecoderShape(
    vocabulary_size=100,
    hidden_size=64,
    layers=1,
    heads=4,
    kv_heads=2,
    head_dim=16,
    mlp_width=128,
    max_positions=4096,
    tied_embeddings=True,
)


@pytest.mark.parametrize("context", [20, 1100])
def test_a_layer_on_a_gpu_stores_the_bytes_that_its_forward_saves(context: int) -> None:
    """`varlen_attn` in bfloat16; a prompt of more than 1,024 tokens takes another call and saves no more."""
    packed = PackedMicrobatch(tokens_per_prompt=context, tokens_per_answer=33, prompt_count=2, answer_count=8)
    saved = []
    with pretended_gpu() as device:
        for layers in (1, 2):
            model = Decoder.new(replace(GPU_MODEL, layers=layers), 0, dtype=torch.bfloat16, device=device)
            saved.append(saved_bytes(model, packed))
    assert saved[1] - saved[0] == pytest.approx(layer_bytes(GPU_MODEL, packed, 2, kernel="varlen"), rel=0.02)


def test_masked_attention_on_a_gpu_stores_its_scores() -> None:
    """The math kernel, which torch takes on most cards for fewer key heads in float32."""
    packed = PackedMicrobatch(tokens_per_prompt=100, tokens_per_answer=140, prompt_count=1, answer_count=4)
    saved = []
    with sdpa_kernel(SDPBackend.MATH), patch.object(layout, "LONG", 1 << 20):
        for layers in (1, 2):
            shape = replace(GPU_MODEL, layers=layers, attention_windows=(4000,) * layers)
            saved.append(saved_bytes(Decoder.new(shape, 0), packed))
    expected = layer_bytes(GPU_MODEL, packed, 4, kernel="masked")
    assert saved[1] - saved[0] == pytest.approx(expected, rel=0.02)
    assert expected > 4 * 4 * 4 * 140 * 240


def test_the_plan_counts_the_kernel_that_runs() -> None:
    """28 query heads on 4 key heads, 2 answers of 8,192 tokens: scores of 14 GiB a layer, or none."""
    long = replace(GPU_MODEL, heads=28, kv_heads=4, head_dim=128)
    assert [kernel_of(d, t, long) for d, t in (("cpu", "float32"), ("cuda", "float32"), ("cuda:0", "bfloat16"))] == [
        "flash", "masked", "varlen"
    ]  # fmt: skip
    assert kernel_of("cuda", "bfloat16", replace(long, head_dim=512)) == "masked"
    packed = PackedMicrobatch(tokens_per_prompt=300, tokens_per_answer=8192, prompt_count=1, answer_count=2)
    scores = layer_bytes(long, packed, 4, kernel="masked")
    assert scores > 14 << 30 and layer_bytes(long, packed, 2, kernel="varlen") < 1 << 30
    equal = replace(long, kv_heads=28)  # takes the memory-efficient kernel
    assert layer_bytes(equal, packed, 4, kernel="masked") < scores / 4


def saved_bytes(decoder: Decoder, packed: PackedMicrobatch) -> int:
    """The bytes of the floating-point tensors that a forward saves for its backward, without the weights."""
    generator = torch.Generator().manual_seed(0)

    def storage(tensor: torch.Tensor) -> torch.UntypedStorage:
        return getattr(tensor, "here", tensor).untyped_storage()  # on the pretended GPU, the numbers are `here`

    known = {storage(weight).data_ptr() for weight in decoder.parameters()}
    saved: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_floating_point() and storage(tensor).data_ptr() not in known:
            saved[storage(tensor).data_ptr()] = storage(tensor)
        return tensor

    def ids(n: int) -> tuple[int, ...]:
        return tuple(torch.randint(100, (n,), generator=generator).tolist())

    prompts = [ids(packed.tokens_per_prompt) for _ in range(packed.prompt_count)]
    contexts = [prompts[i % packed.prompt_count] for i in range(packed.answer_count)]
    answers = [ids(packed.tokens_per_answer + 1) for _ in contexts]  # the last token is not forwarded
    shared = PrefixPacking.of(contexts, answers, device=next(decoder.parameters()).device)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        hidden = decoder(shared.tokens, shared)
    assert hidden.requires_grad
    return sum(each.nbytes() for each in saved.values())


def test_the_constants_are_those_of_the_code() -> None:
    assert (planning.LOGITS, planning.NARROWEST) == (LOGITS_AT_ONCE, NARROWEST_BLOCK)
    assert (planning.PREFILL, planning.BLOCKED) == (engine.MAX_NUM_BATCHED_TOKENS, blocks.LEAST)
    assert (stored.LONG, stored.LONG_ON_GPU) == (layout.LONG, layout.LONG_ON_GPU)


def test_a_run_beyond_the_machine_is_refused_with_the_largest_part() -> None:
    memory = run_memory(RECIPE, SHAPE, 6)
    refuse_beyond(RECIPE, memory, memory.peak)
    with pytest.raises(Usage, match=r"this run needs about 0.3 GiB") as error:
        refuse_beyond(RECIPE, memory, memory.peak - 1)
    assert error.value.fix == "lower machine.microbatch_tokens"
    huge = run_memory(replace(RECIPE, prompts=10**10), SHAPE, 6)
    with pytest.raises(Usage) as error:
        refuse_beyond(RECIPE, huge, 64 << 30)
    assert error.value.fix == "lower prompts, method.group_size or sampling.max_tokens"
    sharded = run_memory(RECIPE, SHAPE, 6, ProcessWork(learner_rank_count=2))
    on_gpu = replace(RECIPE, engine=Vllm(), machine=replace(RECIPE.machine, device="cuda", dtype="bfloat16"))
    vllm = run_memory(on_gpu, SHAPE, 6, ProcessWork(has_engine=False))
    in_4_bits = replace(RECIPE, lora=Lora(rank=2), machine=replace(RECIPE.machine, quantization="nf4"))
    quantised = run_memory(in_4_bits, SHAPE, 6)
    names = {
        name
        for memory in (huge, sharded, vllm, quantised)
        for part in (memory.permanent_bytes, *memory.phase_bytes.values())
        for name in part
    }
    assert names == planning.FIXES.keys()


def test_advice_is_not_what_the_recipe_has_done() -> None:
    memory = replace(run_memory(RECIPE, SHAPE, 6), permanent_bytes={"weights": 1 << 40})
    low = replace(RECIPE, machine=replace(RECIPE.machine, dtype="bfloat16"))
    assert planning.advice(RECIPE, memory) == "use --machine.dtype bfloat16, or use a smaller model"
    assert planning.advice(low, memory) == "use a smaller model"
    assert planning.advice(replace(low, lora=Lora(rank=2)), memory) == (
        "use --machine.quantization nf4, or use a smaller model"
    )
    optimizer = replace(memory, permanent_bytes={"optimizer": 1 << 40})
    assert planning.advice(replace(low, lora=Lora(rank=2)), optimizer) == "use a smaller model"
    assert planning.advice(low, optimizer).startswith("use --optimizer.kind AdamW8bit, or train an adapter")
    activations = replace(memory, permanent_bytes={"activations": 1 << 40})
    both = replace(low, machine=replace(low.machine, gradient_checkpointing=True))
    assert planning.advice(both, activations) == "lower machine.microbatch_tokens"


def test_the_plan_in_one_line() -> None:
    line = plan_line(RECIPE, run_memory(RECIPE, SHAPE, 6))
    assert line == "plan: 1,992 weights, 16 answers and at most 160 tokens per iteration, about 0.3 GiB of memory"


def test_a_control_group_limits_the_machine(tmp_path: Path) -> None:
    limit, none = tmp_path / "limit", tmp_path / "none"
    limit.write_text("4096\n")
    none.write_text("max\n")
    assert host_memory(limit) == 4096 < host_memory(none) == host_memory(tmp_path / "missing")


def test_predictions_are_near_the_measured_peaks() -> None:
    """The table of docs/plan.md: its predictions are those of the code, and all are within 10 % but two."""
    page = (Path(__file__).parents[2] / "docs" / "plan.md").read_text()
    table = page.partition("<!-- memory -->")[2].partition("<!-- /memory -->")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()[3:]]
    predicted = []
    for name, sizes, settings in RUNS:
        fields = {**COMMON, **settings, "machine.device": "cpu"}
        recipe = resolved(read_recipe("iterations = 1", list(fields.items())))
        shape = DecoderShape(**{**OTHERS, **sizes}) if sizes else CALCULATOR  # type: ignore[arg-type]
        memories = process_memories(recipe, shape, 12)  # type: ignore[arg-type]
        for process, memory in memories.items():
            predicted.append((f"{name}, {process}" if len(memories) > 1 else name, f"{memory.peak / MIB:,.0f}"))
    assert [(row[0], row[3]) for row in rows] == predicted
    errors = [float(row[3].replace(",", "")) / float(row[4].replace(",", "")) - 1 for row in rows]
    far = [row[0] for row, error in zip(rows, errors) if abs(error) > 0.1]
    shards = "the same, 2 ranks with shards"
    assert far == ["the same tied, LoRA of rank 16", f"{shards}, rank 0", f"{shards}, rank 1"]


CARDS = {"141 GB": 131.3, "80 GB": 74.5, "24 GB": 22.3}
"""Cards by their name, with their GiB."""
TRAINED = {
    "all weights": {},
    "all weights, `AdamW8bit`": {"optimizer.kind": "AdamW8bit"},
    "the same, `optimizer_offload`": {"optimizer.kind": "AdamW8bit", "machine.optimizer_offload": "true"},
    "an adapter of rank 16": {"lora.rank": "16"},
}


def test_the_page_says_what_fits_one_card() -> None:
    """The table of docs/memory.md: GiB by phase of Qwen2.5-Math-7B with the settings that it names."""
    settings = {
        "machine.device": "cuda", "machine.dtype": "bfloat16", "machine.gradient_checkpointing": "true",
        "machine.microbatch_tokens": "4096", "sampling.max_tokens": "2048", "engine.max_num_seqs": "32",
        "engine.kv_cache_tokens": "32768", "prompts": "16", "method.group_size": "8", "evaluate.problems": "16",
    }  # fmt: skip
    shape = planned_shape(HOME / "recipes" / "published" / "qwen2.5-math-7b")
    rows = []
    for name, fields in TRAINED.items():
        recipe = resolved(read_recipe("method = 'gspo'", list((settings | fields).items())))
        memory = run_memory(recipe, shape, 512)
        peaks = [memory.during(phase).peak - memory.python_bytes for phase in ("sampling", "learning", "updating")]
        fits = ["yes" if max(peaks) <= size * planning.GIB else "no" for size in CARDS.values()]
        numbers = [memory.permanent_bytes["weights"], memory.parts.get("optimizer", 0), *peaks]
        rows.append(" | ".join([f"| {name}", *(f"{x / planning.GIB:.1f}" for x in numbers), *fits]) + " |")
    table = (HOME / "docs" / "memory.md").read_text().partition("<!-- cards -->")[2].partition("<!-- /cards -->")[0]
    assert table.splitlines()[3:] == rows


def test_a_sharded_rank_0_keeps_the_model_of_its_engine() -> None:
    recipe = replace(RECIPE, cluster=replace(RECIPE.cluster, ranks=2, reduction_lanes=2, shard="full"))
    first, other = rank_memories(recipe, SHAPE, 6)
    assert first.phase_bytes["saving"]["engine"] == 4 * WEIGHTS and "engine" not in other.phase_bytes["saving"]
    assert other == run_memory(recipe, SHAPE, 6, ProcessWork(has_engine=False, learner_rank_count=2))
    assert rank_memories(RECIPE, SHAPE, 6) == (run_memory(RECIPE, SHAPE, 6),)


def test_a_sharded_rank_0_has_no_whole_model_if_its_engines_are_elsewhere() -> None:
    """It gathers a layer at a time for them, and keeps no copy for vLLM on its GPU.

    So it does with an adapter, whose sum with a layer exists beside the layer for engines that load no adapters, and
    where nothing is generated. A warm start needs a whole model.
    """
    cluster = replace(RECIPE.cluster, ranks=2, reduction_lanes=2, shard="full")
    recipe = replace(RECIPE, cluster=cluster, engine=Served())
    first, other = rank_memories(recipe, SHAPE, 6, samples=False)
    assert first == other and first.phase_bytes["publishing"]["published"] < 4 * WEIGHTS
    lora = Lora(rank=2)
    adapted, merging = (replace(recipe, lora=lora, engine=engine) for engine in (Served(), Vllm()))
    matrices, embedding = adapter_weights(SHAPE, lora) // 2, 100 * 8
    for each, numbers in ((recipe, embedding), (adapted, LAYER + matrices), (merging, 2 * LAYER + matrices)):
        first, other = rank_memories(each, SHAPE, 6, samples=False)
        assert first == other and first.phase_bytes["publishing"]["published"] == 4 * numbers
    stored = replace(recipe, engine=Native(), method=gw.bradley_terry())
    assert list(process_memories(stored, SHAPE, 6).values()) == [*rank_memories(stored, SHAPE, 6, samples=False)]
    assert "engine" not in rank_memories(stored, SHAPE, 6, samples=False)[0].phase_bytes["saving"]
    warm = replace(recipe, warm_start=WarmStart(demonstrations="rows.jsonl"))
    assert rank_memories(warm, SHAPE, 6, samples=False)[0].phase_bytes["saving"]["engine"] == 4 * WEIGHTS
    on_gpu = replace(recipe, engine=Vllm(), machine=replace(recipe.machine, device="cuda"))
    learner = ProcessWork(has_engine=False, learner_rank_count=2)
    assert "published" not in run_memory(on_gpu, SHAPE, 6, learner).permanent_bytes
    assert run_memory(on_gpu, SHAPE, 6).permanent_bytes["published"] == 4 * WEIGHTS


def served(place: str = "separate", ranks: int = 1) -> Recipe:
    cluster = replace(RECIPE.cluster, ranks=ranks, reduction_lanes=ranks)
    return replace(RECIPE, engine=Served(replicas=2, placement=place), cluster=cluster)  # type: ignore[arg-type]


def test_each_replica_of_the_engine_is_a_process_of_its_own() -> None:
    memories = process_memories(served(), SHAPE, 6)
    assert list(memories) == ["the run", "engine 0", "engine 1"]
    learner, engine = memories["the run"], memories["engine 0"]
    assert "sampling" not in learner.phase_bytes and learner.permanent_bytes["optimizer"] == 8 * WEIGHTS
    assert (
        engine.permanent_bytes["weights"] == 4 * WEIGHTS
        and "optimizer" not in engine.permanent_bytes
        and engine.python_bytes == PROCESS
    )
    rows, alone = engine.phase_bytes["sampling"]["rows"], run_memory(RECIPE, SHAPE, 6).phase_bytes["sampling"]["rows"]
    assert rows == alone / 2, "each has half of the answers"
    assert engine.phase_bytes["loading"] == {"engine": 4 * WEIGHTS}, "the weights of the file, beside its own"
    assert list(process_memories(served(ranks=2), SHAPE, 6)) == ["rank 0", "rank 1", "engine 0", "engine 1"]
    elsewhere = replace(served(), cluster=replace(RECIPE.cluster, launch="ray"))
    assert process_memories(elsewhere, SHAPE, 6) == {"the run": learner}


def test_engines_that_sleep_and_the_learner_use_the_same_memory() -> None:
    memories = process_memories(served(), SHAPE, 6)
    peaks = sum(memory.peak for memory in memories.values())
    assert at_once(served(), memories) == peaks
    learner, engine = memories["the run"], memories["engine 0"]
    asleep = at_once(served("colocated"), memories)
    learning = learner.peak + 2 * engine.python_bytes
    sampling = learner.python_bytes + sum(learner.permanent_bytes.values()) + 2 * engine.peak
    assert asleep == max(learning, sampling) < peaks


def test_a_run_is_checked_with_all_its_processes() -> None:
    most = at_once(served(), process_memories(served(), SHAPE, 6))
    line = check_memory(served(), SHAPE, 6, most, "this machine")
    assert line.endswith("about 0.3 GiB of memory in the learner, 0.3 GiB in each of 2 engines")
    with pytest.raises(Usage, match="the run, beside the others, has"):
        check_memory(served(), SHAPE, 6, most - 1, "this machine")
    with pytest.raises(Usage, match=r"in 3 processes, and this machine has 0\.0 GiB") as caught:
        check_memory(served(), SHAPE, 6, 1, "this machine")
    assert caught.value.fix == "lower engine.replicas or cluster.ranks"
    two = replace(RECIPE, cluster=replace(RECIPE.cluster, ranks=2, reduction_lanes=2))
    memory = run_memory(two, SHAPE, 6).peak
    assert check_memory(two, SHAPE, 6, 2 * memory, "this machine").endswith("of memory in each of 2 processes")
    with pytest.raises(Usage, match="this machine has"):
        check_memory(RECIPE, SHAPE, 6, memory // 2, "this machine")


def test_the_copy_that_engines_of_vllm_load_from_the_gpu_counts() -> None:
    """It stays beside a separate engine; one on the learner's device frees it before the learner trains."""
    machine = replace(RECIPE.machine, device="cuda", dtype="bfloat16")
    learner, size = ProcessWork(has_engine=False), 2 * weights_of(SHAPE)

    def memory(engine: Native, **changes: Any) -> ProcessMemoryPrediction:
        return run_memory(replace(RECIPE, machine=machine, engine=engine, **changes), SHAPE, 16, learner)

    assert memory(Vllm()).permanent_bytes["published"] == size
    together = memory(Vllm(placement="colocated"))
    assert "published" not in together.permanent_bytes and together.phase_bytes["publishing"]["published"] == size
    assert memory(Vllm(placement="colocated"), lora=Lora(rank=2)).phase_bytes["publishing"]["published"] == 2 * size
    for other in (Served(), Vllm(addresses=("engine.socket",)), Native()):
        assert "publishing" not in memory(other).phase_bytes
    on_cpu = replace(RECIPE, engine=Vllm(), machine=replace(machine, device="cpu"))
    assert "publishing" not in run_memory(on_cpu, SHAPE, 16, learner).phase_bytes


def test_a_base_in_4_bits_is_merged_in_the_memory_of_the_host_and_whole_in_an_engine() -> None:
    machine = replace(RECIPE.machine, device="cuda", dtype="bfloat16", quantization="nf4")
    recipe = replace(RECIPE, machine=machine, engine=Vllm(), lora=Lora(rank=2))
    learner, engine = ProcessWork(has_engine=False), ProcessWork(has_learner=False)
    assert "publishing" not in run_memory(recipe, SHAPE, 16, learner).phase_bytes
    on_cpu = replace(recipe, machine=replace(machine, device="cpu"))
    merged = run_memory(on_cpu, SHAPE, 16, learner)
    assert merged.phase_bytes["publishing"]["published"] == 2 * weights_of(SHAPE)
    assert "published" not in merged.permanent_bytes, "the file remains, and no copy of it"
    whole = replace(recipe, machine=replace(machine, quantization=None))
    assert run_memory(recipe, SHAPE, 16, engine).permanent_bytes == run_memory(whole, SHAPE, 16, engine).permanent_bytes
