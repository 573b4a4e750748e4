"""The epilog of each command's `--help`: its examples, and the fields of a recipe. It imports no other room."""

import shutil
import textwrap
from collections.abc import Mapping

RECIPE_FIELDS = {
    "(top)": """model freeze_vision_tower task extra_tasks held_out max_prompt_tokens template system
        template_arguments verifier correct_threshold environment method prompts iterations epochs seed max_unverifiable
        trackers""",
    "lora": "rank alpha target_modules",
    "pipeline": "guidance_scale picture_size",
    "warm_start": "demonstrations columns steps prompts optimizer save_every drop_thoughts thought_marks",
    "warm_start.columns": "prompt answer",
    "warm_start.optimizer": "lr betas eps weight_decay max_grad_norm warmup_steps lr_scheduler",
    "columns": "prompt answer",
    "agent": "file deadline processes model_names tool_call_parser",
    "method": """base group_size curriculum strategy denoise unmask trained_roles filter max_refills unverifiable
        shaping advantage credit mask objective auxiliary minibatches shuffle epochs old_logprobs router_replay models
        states schedules""",
    "method.denoise": "noise steps time_shift noise_start_step noise_end_step",
    "method.unmask": "steps temperature knob_std min_knob_std schedule_lr_factor",
    "method.objective": "surrogate weights penalties aggregate",
    "sampling": "temperature max_tokens top_p top_k min_p stop",
    "engine": "max_num_seqs kv_cache_tokens batch_invariant max_logprob_diff",
    "optimizer": "lr betas eps weight_decay max_grad_norm warmup_steps lr_scheduler",
    "machine": "device dtype threads microbatch_tokens gradient_checkpointing quantization compile "
    "optimizer_offload rollout_deadline verdict_deadline",
    "cluster": "launch ranks reduction_lanes shard max_staleness deadline",
    "evaluate": "every problems samples strategy by_column best_metric denoising_steps",
    "save": "every keep export_every",
}
"""The fields of a recipe by section, for the help of `train`, which imports no other module."""

CODES = """\
exit codes: 0 success, 1 bug in groupwise, 2 usage, 3 data, 4 missing requirement,
5 training diverged, 6 storage, 7 worker, 8 lock, 130 interrupted, 143 terminated
"""

EXAMPLES: Mapping[str, str] = {
    "train": """\
groupwise train
groupwise train --data problems.jsonl --reward my_reward.py:reward
groupwise train --model Qwen/Qwen3-0.6B --template chat --data gsm8k
groupwise train --recipe smollm2 --method dapo --iterations 20
groupwise train recipe.toml --method.group_size 8 --optimizer.lr 1e-5
""",
    "sweep": """\
groupwise sweep recipe.toml --seed 0..4 --optimizer.lr 1e-5,1e-4
groupwise sweep recipe.toml --method grpo,dapo --out sweeps/methods

values are separated by commas, or a range of whole numbers
""",
    "resume": """\
groupwise resume runs/calculator-20261126-193621
groupwise resume runs/calculator --iterations 200
""",
    "eval": """\
groupwise eval runs/calculator --samples 8
groupwise eval runs/calculator --at best --problems 64
groupwise eval MODEL --data test.jsonl --reward math --samples 8
groupwise eval MODEL --preset r1-zero-suite --preset-data DIR
""",
    "sample": """\
groupwise sample calculator "7*6+5-3="
groupwise sample runs/calculator "7*6+5-3=" -n 4 --sampling.temperature 0.7
groupwise sample runs/shapes red --image shapes.png
""",
    "chat": """\
groupwise chat runs/calculator
groupwise chat Qwen/Qwen2.5-0.5B-Instruct --sampling.temperature 0.7
""",
    "serve": """\
groupwise serve calculator --socket engine.sock
groupwise train --engine \\
  '{ kind = "Served", replicas = 0, addresses = ["engine.sock"] }'

on another host, which prints its address:
groupwise serve calculator --listen 0.0.0.0:7000 --secret-file secret
groupwise train --engine-host host --engine-secret secret --engine \\
  '{ kind = "Served", addresses = ["host:7000#sha256=..."] }'

one engine on each of eight GPUs, at the ports 7000 to 7007:
groupwise serve calculator --replicas 8 --listen 0.0.0.0:7000 \\
  --secret-file secret --key key.pem

the engine has the fields of a recipe: vLLM on two GPUs
groupwise serve calculator --engine Vllm --engine.tensor_parallel_size 2 \\
  --engine-python .venv-vllm/bin/python --socket engine.sock
""",
    "report": """\
groupwise report runs/calculator
groupwise report runs/grpo runs/dapo --out both.html
""",
    "watch": """\
groupwise watch runs/calculator
""",
    "whatif": """\
groupwise whatif runs/calculator --methods grpo,dapo,gspo
groupwise whatif runs/calculator --iteration 10 --group 3
""",
    "explain": """\
groupwise explain runs/calculator --sample 1 --token 5
""",
    "export": """\
groupwise export runs/calculator my-model
groupwise export runs/calculator my-model --at best --dtype bfloat16
""",
    "merge": """\
groupwise merge runs/adapter my-model
""",
    "compare": """\
groupwise eval runs/A --samples 8
groupwise eval runs/B --samples 8
groupwise compare runs/A runs/B

two evaluations can be compared only if their protocols are equal, except for
the model, the number of answers, the seed, the engine and the versions
""",
    "audit": """\
groupwise audit math
groupwise audit my_file.py:grade math --cases cases.jsonl

rows are such as {"answer": "so \\\\boxed{4}", "gold": "4", "right": true}
""",
    "help": """\
groupwise help
groupwise help optimizer.lr
groupwise help Clip
""",
    "methods": """\
groupwise methods --family ratio
groupwise methods --like gspo
""",
    "completion": """\
eval "$(groupwise completion bash)"
""",
    "show": """\
groupwise show gspo
groupwise show runs/calculator
""",
    "certify": """\
groupwise certify gspo
""",
    "diff": """\
groupwise diff grpo dapo
groupwise diff recipe.toml runs/calculator
""",
    "doctor": """\
groupwise doctor
groupwise doctor --json
""",
    "plan": """\
groupwise plan --data problems.jsonl --reward math
groupwise plan recipe.toml --machines a100
groupwise plan recipe.toml --machines rtx4090,a100,8xh100
groupwise plan recipe.toml --machines 2x8xh100
groupwise plan recipe.toml --machines machines.toml

a machine file:
  name = "A100"
  device_count = 8
  memory_gib = 74.5
  tflops = 125.0
  memory_bandwidth_gb_s = 1500.0
  link_bandwidth_gb_s = 150.0
  rates_source = "parts of the data sheet's, assumed"
""",
    "check": """\
groupwise check --data problems.jsonl --reward my_reward.py:reward
groupwise check recipe.toml --iterations 20
""",
}
"""Calls of each command, and notes behind an empty line."""
FIELDS = """\
--dotted.field value sets a field of the recipe. --data, --reward and
--max_tokens are second names of --task, --verifier and --sampling.max_tokens.
groupwise help lists all fields; groupwise help FIELD explains one.
"""
ENGINE_FIELDS = """\
--engine.field value sets a field of the recipe. groupwise help engine and
groupwise help Vllm explain them.
"""


def below_options(command: str, *, fields: bool) -> str:
    """The examples of a command, and for a command that takes `fields` a note on them; for `train` their table, too."""
    parts = [f"examples:\n{textwrap.indent(EXAMPLES[command], '  ')}"]
    if fields:
        note = ENGINE_FIELDS if command == "serve" else FIELDS
        parts.append(note + (fields_table(width()) if command == "train" else ""))
    return "\n".join(parts)


def width() -> int:
    """The columns of the terminal, of which text for reading uses at most 120."""
    return min(shutil.get_terminal_size().columns, 120)


def fields_table(columns: int) -> str:
    """The fields of a recipe: a line or more for each section.

    >>> fields_table(60).splitlines()[-1]
    '  save                  every keep export_every'
    """
    start = max(map(len, RECIPE_FIELDS)) + 4
    lines = [
        textwrap.fill(" ".join(names.split()), columns, initial_indent=f"  {section:<{start - 2}}",
                      subsequent_indent=" " * start)
        for section, names in RECIPE_FIELDS.items()
    ]  # fmt: skip
    return "\n".join(lines)
