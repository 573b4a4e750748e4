"""Refuses reward functions that are written for TRL or verl, and shows how to write them here."""

import inspect
from collections.abc import Sequence

from groupwise.core import Usage

TRL = {"completions": "answers", "prompts": "prompts", "answer": "golds"}
"""Parameters of TRL's reward functions, all lists, each with the corresponding parameter of a bulk grader."""
VERL = {
    "solution_str": "answer",
    "ground_truth": "gold",
    "data_source": 'row["data_source"]',
    "extra_info": 'row["extra_info"]',
}
"""Parameters of verl's reward functions, each with the corresponding parameter of a grade function."""


def refuse_others(name: str, parameters: Sequence[inspect.Parameter]) -> None:
    """Raise `Usage` for a function with TRL's or verl's parameters. The fix shows the signature to use instead.

    >>> refuse_others("grade", list(inspect.signature(lambda completions, **kwargs: []).parameters.values()))
    Traceback (most recent call last):
    groupwise.core.errors.Usage: the reward function grade has TRL's signature
      seen: def grade(completions, **kwargs)
      do:   for one answer, return a number:
            def grade(answer, gold, row): ...
            or keep its lists, and return a list of numbers:
            def grade(answers, prompts, **columns): ...  # completions -> answers
            an answer is a text, also where TRL passes messages; the column answer is gold
    """
    names, name = [p.name for p in parameters], name.rpartition(".")[2]
    name = name if name.isidentifier() else "reward"  # of a lambda
    if "answers" in names:  # a bulk grader here: every other name is a column
        return
    if "completions" in names:
        raise _refusal(name, "TRL", parameters, _trl_fix(name, parameters))
    if "answer" not in names and set(names) & {"solution_str", "ground_truth"}:
        raise _refusal(name, "verl", parameters, _verl_fix(name, names))


def _refusal(name: str, library: str, parameters: Sequence[inspect.Parameter], fix: str) -> Usage:
    seen = f"def {name}({', '.join(str(p.replace(annotation=p.empty)) for p in parameters)})"
    return Usage(f"the reward function {name} has {library}'s signature", evidence=seen, fix=fix)


def _trl_fix(name: str, parameters: Sequence[inspect.Parameter]) -> str:
    """The fix for a function with TRL's signature: a function of one answer, or of lists with `answers`, `prompts`."""
    named = [p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    columns = [TRL.get(n, n) for n in named if n not in ("completion_ids", "trainer_state")]
    bulk = ["answers", *(["prompts"] if "prompts" not in columns else []), *(c for c in columns if c != "answers")]
    several = any(p.kind is p.VAR_KEYWORD for p in parameters)
    renamed = ", ".join(f"{old} -> {new}" for old, new in TRL.items() if old in named and old != new)
    return (
        f"for one answer, return a number:\ndef {name}(answer, gold, row): ...\n"
        "or keep its lists, and return a list of numbers:\n"
        f"def {name}({', '.join([*bulk, *['**columns'] * several])}): ...  # {renamed}\n"
        "an answer is a text, also where TRL passes messages; the column answer is gold"
    )


def _verl_fix(name: str, names: Sequence[str]) -> str:
    changes = ", ".join(f"{old} -> {VERL[old]}" for old in names if old in VERL)
    return f"return a number, True or False:\ndef {name}(answer, gold, row): ...  # {changes}"
