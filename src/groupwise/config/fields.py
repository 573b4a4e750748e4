"""The meaning of each recipe field, by dotted name. Source files are parsed, not imported, so torch is not needed."""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from groupwise.core.lazy_imports import home_of, names_of, part_names

SECTIONS: dict[str, str] = {
    "": "Recipe",
    "lora": "Lora",
    "pipeline": "PipelineSettings",
    "warm_start": "WarmStart",
    "warm_start.columns": "Columns",
    "warm_start.optimizer": "AdamW",
    "columns": "Columns",
    "agent": "Agent",
    "extra_tasks": "ExtraTask",
    "extra_tasks.columns": "Columns",
    "method": "Method",
    "method.objective": "Objective",
    "sampling": "Sampling",
    "engine": "Native",
    "optimizer": "AdamW",
    "machine": "Machine",
    "cluster": "Cluster",
    "evaluate": "Evaluate",
    "save": "Save",
}
"""The sections of a recipe (its TOML tables), each with the class that defines it, in the docs' order."""
SECOND_NAMES: dict[str, str] = {
    "data": "task",
    "eval_data": "held_out",
    "reward": "verifier",
    "max_tokens": "sampling.max_tokens",
}
"""Second names of fields, in Python and on the command line. A recipe has the first names only."""

MEANINGS: dict[str, tuple[str, str, str]] = {
    "model": ("the model to train: a directory, a packaged name, owner/name of the hub, a GGUF file", "", "my-model"),
    "task": ("a packaged task, a published set, or a source of rows such as a JSONL file", "", "problems.jsonl"),
    "held_out": (
        "a task to evaluate on: all other rows are then trained on, else a tenth of them is held out",
        "",
        "test.jsonl",
    ),
    "max_prompt_tokens": (
        "problems with more prompt tokens are left out; without it, they are an error",
        "tokens",
        "512",
    ),
    "template": ("the text around a problem, or chat for the model's chat template", "", "chat"),
    "system": ("the system message of prompts that have none, under the template chat", "", "Answer in one line."),
    "template_arguments": ("variables of the chat template", "", "{ enable_thinking = false }"),
    "verifier": ("the grader of answers: a name, a table, or my_file.py:grade on the command line", "", "math"),
    "correct_threshold": ("an answer with at least this score is correct", "score", "0.5"),
    "environment": ("the other side of a conversation, such as my_file:MyEnvironment", "", "tools"),
    "agent.file": ("the function of your agent, short: --agent; empty for --agent-command", "", "my_agent.py:agent"),
    "agent.deadline": ("the time limit of one run of the agent", "seconds", "120"),
    "agent.processes": ("the runs of a program, or of a function that is not async, at a time", "", "32"),
    "agent.model_names": ("names of the policy in requests, besides policy", "", '["gpt-4o-mini"]'),
    "agent.tool_call_parser": (
        "hermes, llama3_json, mistral, or my_file:MyCalls; empty for the format of the chat template",
        "",
        "hermes",
    ),
    "prompts": ("prompts of one iteration", "prompts", "32"),
    "iterations": ("iterations of the run", "iterations", "100"),
    "epochs": ("passes over the training problems; sets iterations when the run starts", "epochs", "3"),
    "seed": ("the seed of all random numbers of the run", "", "1"),
    "max_unverifiable": ("a run stops if more than this share of its answers cannot be verified", "share", "0.2"),
    "trackers": ("trackers that receive the metrics: tensorboard, wandb, trackio, or your own", "", '["wandb"]'),
    "lora.rank": ("the rank of the adapter", "", "32"),
    "lora.alpha": ("the adapter's scale times its rank", "", "64"),
    "lora.target_modules": ("the adapted linear layers, by the end of their names", "", '["q_proj", "v_proj"]'),
    "freeze_vision_tower": (
        "for a vision-language model: its vision tower and connector keep their weights",
        "",
        "true",
    ),
    "pipeline.guidance_scale": (
        "for a pipeline of diffusers: the scale of guidance; 1 is none; by default the usual one",
        "",
        "7.0",
    ),
    "pipeline.picture_size": ("for a pipeline of diffusers: the side of its pictures", "pixels", "512"),
    "warm_start.demonstrations": ("the source of the demonstrations", "", "solutions.jsonl"),
    "warm_start.steps": ("optimizer steps", "steps", "200"),
    "warm_start.prompts": ("demonstrations of one step", "rows", "16"),
    "warm_start.save_every": ("steps between two checkpoints", "steps", "50"),
    "warm_start.drop_thoughts": ("the share of demonstrations without their thought", "share", "0.5"),
    "warm_start.thought_marks": ("the marks before and after a thought; the first may be empty", "", '["", "#"]'),
    "columns.prompt": ("the column of the prompt: a name, or a dotted path into nested rows", "", "question"),
    "columns.answer": ("the column of the gold answer; empty if the rows have none", "", "solution"),
    "extra_tasks.task": ("the additional task", "", "big_sums"),
    "extra_tasks.weight": ("how often it is drawn, relative to the recipe's task", "", "0.5"),
    "extra_tasks.verifier": ("its verifier; without it the task's own, else the recipe's", "", "exact"),
    "method.base": (
        "the published method whose constants the other fields change; its own arguments are fields, too",
        "",
        "my_file:mine",
    ),
    "method.group_size": ("answers to one prompt", "answers", "8"),
    "method.curriculum": ("the order of the prompts", "", "Shuffled"),
    "method.strategy": ("how a prompt is answered: independent answers, conversations, your own", "", "Turns"),
    "method.denoise": ("for a flow policy: steps, times and noise of its denoising", "", "{ steps = 20 }"),
    "method.unmask": ("for a masked policy: steps of its unmasking, and its schedule", "", "{ steps = 4 }"),
    "method.trained_roles": ("roles of the samples that are trained", "", '["answer"]'),
    "method.filter": ("the groups that are selected for training", "", "mixed_outcomes"),
    "method.max_refills": ("extra rounds of sampling that replace filtered prompts", "rounds", "2"),
    "method.unverifiable": ("the treatment of answers that cannot be verified", "", "drop_group"),
    "method.shaping": ("verdict to reward, in order", "", '["Score"]'),
    "method.advantage": ("reward to advantage of a sample, in order", "", '["Standardised"]'),
    "method.credit": ("advantage of a sample to advantages of its tokens", "", "every_token"),
    "method.mask": ("the tokens that are trained, in order", "", "[]"),
    "method.auxiliary": ("losses beside the objective", "", '["RouterBalance"]'),
    "method.minibatches": ("optimizer steps of one epoch", "steps", "4"),
    "method.shuffle": ("the unit that an epoch shuffles", "", "samples"),
    "method.epochs": ("passes over the samples of an iteration", "epochs", "2"),
    "method.old_logprobs": ("the old log-probs: computed again by the learner, or the engine's", "", "engine"),
    "method.models": ("side models by name: references, teachers, critics", "", '{ ref = "InitialPolicy" }'),
    "method.states": ("numbers that outlive an iteration, by name", "", '{ kl = "AdaptiveKL" }'),
    "method.schedules": ("constants that change over the run, by their dotted names", "", "{}"),
    "method.objective.surrogate": ("the gain of a token", "", "Clip"),
    "method.objective.weights": ("factors of a token's gain", "", "[]"),
    "method.objective.penalties": ("costs of a token, such as a KL penalty", "", "[]"),
    "method.objective.aggregate": ("the weight of a token in the mean of a step", "", "token_mean"),
    "method.router_replay": ("the recorded experts that a mixture of experts uses again", "", "engine"),
    "sampling.temperature": ("temperature of the softmax; 0 is greedy, in eval and sample only", "", "0.7"),
    "sampling.max_tokens": ("the longest answer", "tokens", "256"),
    "sampling.top_p": ("tokens with this much probability are kept; in eval and sample only", "share", "0.95"),
    "sampling.top_k": ("this many tokens are kept, 0 for all; in eval and sample only", "tokens", "20"),
    "sampling.min_p": ("least probability relative to the likeliest token; in eval and sample only", "share", "0.05"),
    "sampling.stop": ("texts that end an answer; they stay in it", "", '["</answer>"]'),
    "engine.max_num_seqs": ("answers that are generated at once", "answers", "64"),
    "engine.kv_cache_tokens": ("the size of the engine's cache of keys and values", "tokens", "65536"),
    "engine.batch_invariant": ("on a GPU: steps of one shape, whatever else is generated", "", "false"),
    "engine.max_logprob_diff": (
        "the largest difference between the engine's and the learner's log-prob",
        "nats",
        "0.01",
    ),
    "optimizer.lr": ("the learning rate, after the warmup", "", "1e-5"),
    "optimizer.betas": ("decay of AdamW's averages of the gradient and its square", "", "[0.9, 0.95]"),
    "optimizer.eps": ("the term in the denominator of AdamW", "", "1e-8"),
    "optimizer.weight_decay": ("the decoupled weight decay", "", "0.01"),
    "optimizer.max_grad_norm": ("the largest norm of a step's gradient", "", "0.5"),
    "optimizer.warmup_steps": ("steps in which the learning rate rises from 0", "steps", "10"),
    "optimizer.lr_scheduler": ("the learning rate after the warmup", "", "cosine"),
    "machine.device": ("the torch device of model and optimizer; auto is cuda if there is one, else cpu", "", "cuda:1"),
    "machine.dtype": ("the type of weights and activations; auto is bfloat16 on a GPU, else float32", "", "bfloat16"),
    "machine.threads": ("threads of torch", "threads", "4"),
    "machine.microbatch_tokens": ("tokens of one forward pass of the learner", "tokens", "8192"),
    "machine.gradient_checkpointing": (
        "less memory, about a third more learning time: layers run again backward",
        "",
        "true",
    ),
    "machine.quantization": (
        "the linear layers are in 4 bits, frozen under an adapter; NF4 of bitsandbytes",
        "",
        "nf4",
    ),
    "machine.compile": ("compiled elementwise kernels, for GPUs", "", "true"),
    "machine.optimizer_offload": (
        "moments and master weights are in the host's memory while the engine samples, for GPUs",
        "",
        "true",
    ),
    "machine.rollout_deadline": ("the time limit of one draw", "seconds", "120"),
    "machine.verdict_deadline": ("the time limit of one call of your grade function or environment", "seconds", "30"),
    "cluster.launch": ("the processes of a run are started by it, by others, or on the nodes of Ray", "", "ray"),
    "cluster.ranks": ("processes that share the microbatches of each optimizer step", "processes", "2"),
    "cluster.reduction_lanes": (
        "microbatches whose gradients are added in a tree, a power of two; on CPUs equal lanes give equal bits",
        "",
        "4",
    ),
    "cluster.shard": ("full: each rank holds a part of the rows of weights, gradients and moments", "", "full"),
    "cluster.max_staleness": ("iterations that are sampled ahead of the learner; 0 waits for it", "iterations", "1"),
    "cluster.deadline": ("the time limit of one rank's wait for another", "seconds", "60"),
    "evaluate.every": ("iterations between two evaluations; 0: only first and last", "iterations", "10"),
    "evaluate.problems": ("held-out problems of an evaluation", "problems", "128"),
    "evaluate.samples": ("sampled answers to each problem, beside the greedy one", "answers", "4"),
    "evaluate.strategy": ("how a held-out problem is answered", "", "Turns"),
    "evaluate.by_column": ("a column of the rows; accuracy is also given for each of its values", "", "level"),
    "evaluate.denoising_steps": ("denoising steps of a flow model, if not those of training", "steps", "40"),
    "evaluate.best_metric": ("metric of the best checkpoint; empty: greedy accuracy, else score", "", "eval/accuracy"),
    "save.every": ("iterations between two checkpoints; 0: only at the end", "iterations", "20"),
    "save.keep": ("the newest checkpoints that are kept, beside the best one", "checkpoints", "3"),
    "save.export_every": ("iterations between two model directories in models/; 0: none", "iterations", "50"),
}
"""(meaning, unit, example) of each recipe field. `warm_start.optimizer.lr` means the same as `optimizer.lr`."""


@dataclass(frozen=True, slots=True)
class RecipeField:
    """A field of a recipe. `default` is TOML or a component's name; an empty default means that a value is required."""

    name: str
    meaning: str
    type: str
    unit: str
    default: str
    example: str


@cache
def recipe_fields() -> Mapping[str, RecipeField]:
    """All fields by dotted name, section by section. Fields that are sections are left out."""
    return {field.name: field for section in SECTIONS for field in _fields(section)}


def same_end(name: str) -> list[str]:
    """Suggestions for an unknown name: the recipe fields with the same last word.

    >>> same_end("trainer.lr")
    ['warm_start.optimizer.lr', 'optimizer.lr']
    """
    end = name.rpartition(".")[2]
    return [path for path in recipe_fields() if path.rpartition(".")[2] == end]


def home(name: str) -> str:
    """The module of a section's class."""
    return names_of(home_of(name))[name]


def _fields(section: str) -> Iterator[RecipeField]:
    for name, kind, default in declared(home(SECTIONS[section]), SECTIONS[section]):
        path = f"{section}.{name}" if section else name
        if path not in SECTIONS:
            meaning, unit, example = MEANINGS.get(path) or MEANINGS.get(path.partition(".")[2], ("", "", ""))
            is_table = kind.startswith("a table")
            yield RecipeField(path, meaning, kind, unit, "{}" if is_table and default == "[]" else default, example)
    if section == "method":
        meaning, unit, example = MEANINGS["method.base"]
        yield RecipeField("method.base", meaning, "a method", unit, "", example)


def section_text(section: str) -> str:
    """The docstring of a section's class, without its examples."""
    text = ast.get_docstring(_class(home(SECTIONS[section]), SECTIONS[section])) or ""
    return text.partition("\n\n>>>")[0]


def documentation(module: str, name: str) -> str:
    """The docstring of a component, a class or a function, without its examples; empty without one.

    >>> documentation("groupwise.objective.aggregates", "token_mean").splitlines()[0]
    'Every token of the step has the same weight, so long answers weigh more. DAPO, arXiv:2503.14476, equation 8.'
    """
    for node in _source(module).body:
        match node:
            case ast.ClassDef() | ast.FunctionDef() if node.name == name:
                return (ast.get_docstring(node) or "").partition("\n\n>>>")[0]
            case ast.Assign([ast.Name(target)], ast.Call(ast.Name(owner))) if target == name:
                return documentation(module, owner)
    return ""


def part_constants(socket: str, constant: str) -> dict[str, tuple[str, str]]:
    """The type and default of a constant, by component, for each component of a Protocol that has this constant.

    >>> part_constants("Surrogate", "high")["Clip"]
    ('a number', '0.2')
    """
    return {
        name: (kind, default)
        for name, module in parts_of(socket).items()
        for field, kind, default in declared(module, name)
        if field == constant
    }


def parts_of(socket: str) -> dict[str, str]:
    """The module of each packaged component that implements a Protocol (socket), by the component's name."""
    return {name: names_of(home_of(name))[name] for name in part_names().get(socket, ())}


def declared(module: str, name: str) -> list[tuple[str, str, str]]:
    """The name, type and default of each field of a dataclass, read from its source; nothing for a function."""
    try:
        owner = _class(module, name)
    except LookupError:
        return []
    inherited = [field for base in _bases(module, name) for field in declared(_home(module, base), base)]
    return inherited + [
        (node.target.id, type_words(node.annotation), default_text(node.value))
        for node in owner.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
        if "ClassVar" not in ast.unparse(node.annotation)
    ]


def _bases(module: str, name: str) -> list[str]:
    """The names of a class's base classes; none for a function, and for a class of another package."""
    try:
        return [base.id for base in _class(module, name).bases if isinstance(base, ast.Name)]
    except LookupError:
        return []


def _home(module: str, name: str) -> str:
    """The module of a class of this package that a module uses: where it is imported from, else the module itself."""
    imports = (node for node in _source(module).body if isinstance(node, ast.ImportFrom) and node.module)
    found = (node.module for node in imports if any(alias.name == name for alias in node.names))
    return next((home for home in found if home and home.count(".") > 1), module)


def _class(module: str, name: str) -> ast.ClassDef:
    for node in _source(module).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return node
    raise LookupError(f"{module} has no class {name}")


@cache
def _source(module: str) -> ast.Module:
    room, _, stem = module.rpartition(".")
    spec = find_spec(room)
    assert spec is not None and spec.origin is not None, f"there is no package {room}"
    return ast.parse((Path(spec.origin).parent / f"{stem}.py").read_text(encoding="utf-8"))


WORDS = {"str": "a string", "int": "a whole number", "float": "a number", "bool": "true or false", "None": '"none"'}


def type_words(node: ast.expr) -> str:
    """A type annotation in words, such as `a number or none`.

    >>> type_words(ast.parse("tuple[str, ...]").body[0].value)
    'a list, each a string'
    >>> type_words(ast.parse("Literal['a', 'b'] | None").body[0].value)
    '"a" or "b" or "none"'
    """
    match node:
        case ast.BinOp(left, ast.BitOr(), right):
            return f"{type_words(left)} or {type_words(right)}"
        case ast.Subscript(ast.Name("Literal"), values):
            items = values.elts if isinstance(values, ast.Tuple) else [values]
            return " or ".join(default_text(item) for item in items)
        case ast.Subscript(ast.Name("tuple"), ast.Tuple([ast.Subscript(_, ast.Tuple([_, value])), *_])):
            return f"a table, each value {type_words(value)}"
        case ast.Subscript(ast.Name("tuple"), ast.Tuple([element, ast.Constant(), *_])):
            return f"a list, each {type_words(element)}"
        case ast.Subscript(ast.Name("tuple"), ast.Tuple(elements)):
            return f"a list of {len(elements)}, each {type_words(elements[0])}"
    text = ast.unparse(node)
    return WORDS.get(text) or f"{'an' if text[0] in 'AEIOU' else 'a'} {text}"


def default_text(node: ast.expr | None) -> str:
    """A default value as a recipe writes it; empty without a default.

    >>> default_text(ast.parse("(0.9, 4, Clip(), None)").body[0].value)
    '[0.9, 4, Clip, "none"]'
    """
    match node:
        case None:
            return ""
        case ast.Constant(value):
            return _scalar(value)
        case ast.Tuple(elements):
            return f"[{', '.join(map(default_text, elements))}]"
        case ast.Call(ast.Name("field"), _, keywords):
            return next((default_text(k.value) for k in keywords if k.arg == "default"), "")
        case ast.Call(function, arguments, keywords) if not (arguments or keywords):
            return ast.unparse(function)
    return ast.unparse(node)


def _scalar(value: Any) -> str:
    if value is None:
        return '"none"'
    return f'"{value}"' if isinstance(value, str) else repr(value).lower()
