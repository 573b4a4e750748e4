"""Names of TRL, verl and earlier recipes that a user may write, with the names here (docs/coming-from.md)."""

import re
import shlex
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from groupwise.config.fields import SECTIONS
from groupwise.methods.families import method_family, method_files, methods_with_argument

__all__ = [
    "DICTIONARY",
    "EARLIER_COMPONENTS",
    "EARLIER_FIELDS",
    "OTHER_VALUES",
    "TRAINERS",
    "OtherLibraryOption",
    "answer_of",
    "field_named",
    "method_fix",
    "option_of",
    "other_name_fix",
    "other_value_fix",
    "verifier_fix",
]


@dataclass(frozen=True, slots=True)
class OtherLibraryOption:
    """What to write for an option of TRL, verl or peft, in the words of the command line.

    `python_text` is what a program writes; if it is empty, the text is rendered (`python_spelling`). `field_path` and
    `equivalent_field_value` are the field of a recipe that does the same, if there is one, and `other_argument_names`
    other names of it in constructors, each with an example. `stored_answers_text` is what to write for a method of
    stored answers, if that differs.
    """

    command_line_text: str
    python_text: str = ""
    field_path: str = ""
    equivalent_field_value: Any = field(default=None, hash=False)
    note: str = ""
    other_argument_names: Mapping[str, float] = field(default_factory=dict[str, float], hash=False)
    stored_answers_text: str = ""


@cache
def answers() -> Mapping[str, OtherLibraryOption]:
    """The answer for each option of `trl_and_verl_names.toml`, by the last words of the option's path.

    >>> answers()["num_generations"].command_line_text
    'write method.group_size = 8, as an option --method.group_size 8'
    >>> answers()["num_generations"].python_text
    'write method=gw.grpo(group_size=8)'
    """
    text = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    return {name: _answer(entry) for entry in tomllib.loads(text)["option"] for name in entry["names"].split()}


def _answer(entry: Mapping[str, Any]) -> OtherLibraryOption:
    """The answer that an entry of the table gives."""
    answer = _answer_for_any_method(entry)
    return replace(answer, stored_answers_text=f"leave it out: {entry['stored']}") if "stored" in entry else answer


def _answer_for_any_method(entry: Mapping[str, Any]) -> OtherLibraryOption:
    python = entry.get("python", "")
    if "do" in entry:
        return OtherLibraryOption(entry["do"], python)
    if "leave" in entry:
        return OtherLibraryOption(f"leave it out: {entry['leave']}", python)
    path, _, value = entry["line"].partition(" = ")
    note = f" ({entry['note']})" if "note" in entry else ""
    return OtherLibraryOption(
        f"write {entry['line']}, as an option {option_of(path, value)}{note}",
        python and f"write {python}{note}",
        path,
        tomllib.loads(f"x = {value}")["x"],
        note,
        entry.get("arguments", {}),
    )


def option_of(path: str, value: str) -> str:
    """The option that sets the field at a dotted path to a value of TOML.

    >>> option_of("optimizer.lr", "1e-6"), option_of("template", '"chat"')
    ('--optimizer.lr 1e-6', '--template chat')
    >>> print(option_of("trackers", '["wandb"]'))
    --trackers '["wandb"]'
    """
    word = value if value[0] in "[{" else value.strip('"')
    return f"--{path} {word if re.fullmatch(r'[^ {}]+', word) and word[0] != '[' else shlex.quote(word)}"


EARLIER_FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "also": "extra_tasks",
        "cluster.lag": "cluster.max_staleness",
        "cluster.lanes": "cluster.reduction_lanes",
        "engine.cache_tokens": "engine.kv_cache_tokens",
        "engine.drafts": "engine.max_stored_answers",
        "engine.keyed": "engine.keyed_randomness",
        "engine.max_gap": "engine.max_logprob_diff",
        "engine.place": "engine.placement",
        "engine.rows": "engine.max_num_seqs",
        "evaluate.best": "evaluate.best_metric",
        "evaluate.by": "evaluate.by_column",
        "evaluate.steps": "evaluate.denoising_steps",
        "lora.targets": "lora.target_modules",
        "machine.deadline": "machine.rollout_deadline",
        "machine.recompute": "machine.gradient_checkpointing",
        "method.memory": "method.states",
        "method.proximal": "method.old_logprobs",
        "method.refill": "method.max_refills",
        "method.routing": "method.router_replay",
        "method.trains": "method.trained_roles",
        "optimizer.clip": "optimizer.max_grad_norm",
        "optimizer.decay": "optimizer.lr_scheduler",
        "optimizer.warmup": "optimizer.warmup_steps",
        "pipeline.guidance": "pipeline.guidance_scale",
        "pipeline.size": "pipeline.picture_size",
        "save.model_every": "save.export_every",
        "sinks": "trackers",
        "threshold": "correct_threshold",
        "warm_start.per_step": "warm_start.prompts",
    }
)
"""The name of a field by its name in earlier recipes of this project."""
EARLIER_COMPONENTS: Mapping[str, str] = MappingProxyType(
    {
        "AddCalibration": "AddBrierScore",
        "After": "DelayedStart",
        "Anchored": "WithSolutionAnchor",
        "CPSNoise": "CoefficientsPreservingNoise",
        "CoSampled": "AnswerAndScheduleStrategy",
        "Decay": "ExponentialDecay",
        "HintLadder": "HintLevelCurriculum",
        "MemoryValue": "StateValue",
        "Pilots": "PilotAllocation",
        "Preference": "PairwisePreference",
        "Proposing": "ProposalCollectingStrategy",
        "ReasoningCues": "CorrectPrefixCuesStrategy",
        "Retraced": "ForwardProcess",
        "SelfHints": "PolicyWrittenHints",
        "SquaredRatio": "LogRatioAdvantageFit",
        "Synthesised": "ProposedProblemCurriculum",
        "TakingTurns": "AlternatingRoleMask",
    }
)
"""The name of a component by its name in earlier recipes, where a similar name would be another component."""
OTHER_VALUES: Mapping[tuple[str, str], str] = MappingProxyType(
    {
        ("cluster.launch", "given"): "external",
        ("engine.placement", "apart"): "separate",
        ("engine.placement", "same"): "colocated",
        ("method", "nll"): "sft",
        ("method", "reward"): "bradley_terry",
        ("method", "reward_model"): "bradley_terry",
        ("method", "rm"): "bradley_terry",
        ("method", "sigmoid"): "dpo",
        ("method.old_logprobs", "recomputed"): "learner",
        ("method.old_logprobs", "sampled"): "engine",
        ("method.router_replay", "R2"): "learner",
        ("method.router_replay", "R3"): "engine",
    }
)
"""The value of a field by its name in TRL, in verl or in earlier recipes."""
WHOLE = re.compile(
    "algo|algorithm|alpha|args|callbacks?|config|datasets?|debug|device|dtype|epochs|num_workers|precision|project|rewards|seed"
    "|steps|stop|tools"
)
"""Words that are no option of TRL or verl in a table of a recipe: `evaluate.denoising_steps` has another meaning."""
ROWS = "docs/coming-from.md has a row for each option of TRL and verl"


def other_value_fix(path: str, value: object) -> str:
    """The fix for a value that has another name in TRL, in verl or in earlier recipes; empty for any other value.

    >>> other_value_fix("method.router_replay", "R3")
    "write 'engine', its name here"
    """
    name = OTHER_VALUES.get((path, value)) if isinstance(value, str) else None
    return f"write {name!r}, its name here" if name else ""


def answer_of(path: str, method: str = "") -> OtherLibraryOption | None:
    """The answer for an option of TRL or verl by its dotted path. The longest end of the path counts, then its table.

    It fits the published `method`, if the user named one. None for another name, and for a word of a recipe's table,
    such as `evaluate.denoising_steps`.

    >>> answer_of("beta").field_path, answer_of("beta", "dpo").field_path, answer_of("beta", "grpo").field_path
    ('method.objective.penalties', 'method.beta', 'method.kl')
    >>> answer_of("max_length", "sft").command_line_text
    "leave it out: nothing is cut, and a row that is longer than the model's context is refused by number"
    """
    words, tables = path.split("."), {name.partition(".")[0] for name in SECTIONS}
    for end in range(len(words), 0, -1):
        for start in range(max(0, end - 3), end):
            name = ".".join(words[start:end])
            if name in answers() and not (words[0] in tables and WHOLE.fullmatch(name)):
                return _fitting(answers()[name], method)
    return None


def _fitting(answer: OtherLibraryOption, method: str) -> OtherLibraryOption:
    """An answer for a published method: with the method's own argument, or that of stored answers."""
    if method not in method_files():
        return answer
    owners = methods_with_argument()
    if name := next((name for name in answer.other_argument_names if method in owners.get(name, ())), ""):
        path, example = f"method.{name}", answer.other_argument_names[name]
        text = f"write {path} = {example}, as an option {option_of(path, str(example))}"
        return OtherLibraryOption(text, "", path, example, "", answer.other_argument_names)
    if answer.stored_answers_text and method_family(method) == "stored":
        return OtherLibraryOption(answer.stored_answers_text)
    return answer


def other_name_fix(path: str, method: str = "") -> str:
    """The fix for an option of TRL or verl, or an earlier name of a field, by its dotted path; empty for another name.

    An earlier name counts as a whole. The fix fits the published `method`, if the user named one.

    >>> other_name_fix("actor_rollout_ref.rollout.n")
    'write method.group_size = 8, as an option --method.group_size 8'
    >>> other_name_fix("promts")
    ''
    """
    earlier = (name for name in EARLIER_FIELDS if f"{path}.".startswith(f"{name}."))
    if name := next(earlier, ""):
        return f"write {EARLIER_FIELDS[name]}, its name here"
    return answer.command_line_text if (answer := answer_of(path, method)) else ""


def field_named(path: str) -> str:
    """The field for an option of TRL or verl, or for an earlier name of a field; empty for another name.

    >>> field_named("actor_rollout_ref.rollout.n"), field_named("machine.recompute"), field_named("trainer.nodes")
    ('method.group_size', 'machine.gradient_checkpointing', '')
    """
    match = re.match(r"write ([\w.]+)(?: = |, its name here)", other_name_fix(path))
    return match[1] if match else ""


TRAINERS = ("GRPOTrainer", "GRPOConfig")
DICTIONARY = """\
one call trains, and all settings are its arguments: run = gw.train(...)
  model="Qwen/Qwen2.5-0.5B-Instruct"  -> model="Qwen/Qwen2.5-0.5B-Instruct", template="chat"
  train_dataset=, eval_dataset=       -> data=rows, eval_data=rows
  reward_funcs=                       -> reward=your_function, with the same signature
  num_generations=, loss_type=, beta= -> method=gw.grpo(group_size=8), or another of gw.list_methods()
  learning_rate=                      -> optimizer=gw.AdamW(lr=1e-6)
  max_completion_length=, max_steps=  -> max_tokens=512, iterations=100
  peft_config=                        -> lora=gw.Lora(rank=16)
  callbacks=                          -> on_iteration=f
  output_dir=, report_to=             -> out="runs", trackers=["wandb"]
  trainer.save_model(DIR)             -> run.export(DIR)
any other option is answered with the argument to write (docs/coming-from.md)"""
"""What a user of TRL's trainer writes here."""
FORMER_VERIFIERS = {
    "several": "combined",
    "flipping": "noisy_verdicts",
    "noisy": "noisy_verdicts",
    "hackable": "hackable_score",
    "glyphs": "glyph_patches",
}
"""The names of verifiers by names that they had before."""
COMBINED = (
    'write a table: verifier = { kind = "Combined", members = [{ name = "answer", verifier = "math" }, '
    '{ name = "shape", verifier = "tag_format", weight = 0.2 }] }'
)
ARGUMENT = re.compile(r"""(\w+)\s*=\s*("[^"]*"|'[^']*'|[^,()]+)""")


def verifier_fix(text: str) -> str:
    """The fix for a verifier in the notation of a call, or with a former name: the table to write; else empty.

    >>> verifier_fix("math(which_answer='first', use_algebra=False)")
    'write a table: verifier = { kind = "math", which_answer = "first", use_algebra = false }'
    >>> verifier_fix("flipping")
    'write noisy_verdicts, its name here'
    >>> verifier_fix("math")
    ''
    """
    name, bracket, rest = text.partition("(")
    new = FORMER_VERIFIERS.get(name.strip(), name.strip())
    if not bracket:
        return f"write {new}, its name here" if new != name else ""
    if new == "combined":
        return COMBINED
    fields = [f'kind = "{new}"', *(f"{match[1]} = {_as_toml(match[2])}" for match in ARGUMENT.finditer(rest))]
    return f"write a table: verifier = {{ {', '.join(fields)} }}"


def method_fix(text: str, names: Iterable[str]) -> str:
    """The fix for a method by a name in TRL, or in the notation of a call: the table to write; empty for another text.

    >>> method_fix("grpo(group_size=8)", ["grpo"])
    'write method = { base = "grpo", group_size = 8 }'
    """
    name, bracket, rest = text.partition("(")
    if fix := other_value_fix("method", text):
        return fix
    if not bracket or name not in names:
        return ""
    fields = [f'base = "{name}"', *(f"{match[1]} = {_as_toml(match[2])}" for match in ARGUMENT.finditer(rest))]
    return f"write method = {{ {', '.join(fields)} }}"


def _as_toml(value: str) -> str:
    """A plain value of Python as TOML; a name becomes a string."""
    text = value.strip().strip("'\"")
    if text in ("True", "False"):
        return text.lower()
    return text if re.fullmatch(r"[-+\d.eE]+", text) else f'"{text}"'
