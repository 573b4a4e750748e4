"""The arguments of a user's grade function, chosen by the names of its parameters."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from groupwise.core import Usage
from groupwise.data import Prompt, Sample
from groupwise.models.flow.denoising_actions import all_states, graded_state
from groupwise.verifiers.trl_verl_signatures import TRL, VERL, Library, library_of, trl_value, verl_value

Kind = Literal["answer", "group", "bulk"]
Item = tuple[Prompt, Sample]

STATES = ("final_state", "trajectory")
"""Names of parameters that are arrays: states of a flow model. For other models they are columns of the row."""
ANSWER = ("prompt", "answer", "gold", "row", "messages", "finish", "tokens", *STATES)
"""Parameter names with a fixed meaning for one answer. Names in neither this nor `PLURAL` are columns of the row."""
PLURAL = {
    "prompts": "prompt", "answers": "answer", "golds": "gold", "rows": "row", "finishes": "finish",
    "final_states": "final_state",
}  # fmt: skip
"""Names of parameters that are lists with one value per answer, each with the name for a single value."""
EACH = ("messages", "tokens", "trajectory")
"""Names of parameters that are lists with one value per answer in functions that grade several answers."""
SEVERAL = ("answers", "final_states")
"""Names of list parameters that mark a function which grades several answers."""
BULK = ("prompts", "golds", "rows")
"""Names of list parameters that, together with `SEVERAL`, mark a function that grades answers of different problems."""


READ = frozenset(
    ("answer", "answers", "messages", "finish", "finishes", "tokens", *STATES, "final_states", "completions",
     "completion_ids", "solution_str")
)  # fmt: skip
"""Names of parameters that depend on the answer."""


class MissingColumn(Exception):
    """A parameter of a grade function is neither a known name nor a column of the data row."""


@dataclass(frozen=True, slots=True)
class GradeFunctionParameters:
    """A grade function's parameters, which determine its kind: it grades one answer, a group, or many answers (bulk).

    With `answers` or `final_states` a function grades a group; with `prompts`, `golds` or `rows` too, in bulk.
    `positional_names` are passed by position, `keyword_names` by name. `optional_names` have a default. `columns`: it
    takes `**columns`. A function of TRL grades a group and one of verl an answer, with the arguments of that
    `signature_library`.
    """

    graded_unit: Kind = "answer"
    positional_names: tuple[str, ...] = ("prompt", "answer", "gold")
    keyword_names: tuple[str, ...] = ()
    optional_names: frozenset[str] = frozenset()
    takes_columns: bool = False
    signature_library: Library = ""

    @classmethod
    def of(cls, function: Callable[..., Any]) -> "GradeFunctionParameters":
        """Read a grade function's signature, also one of TRL or verl. `Usage` for one that fits no kind of grader.

        If no parameter has a known name, the first three get prompt, answer and gold.

        >>> GradeFunctionParameters.of(lambda row, answer: 1.0).keyword_names
        ('row', 'answer')
        >>> GradeFunctionParameters.of(lambda p, a, g: 1.0).positional_names
        ('prompt', 'answer', 'gold')
        >>> GradeFunctionParameters.of(lambda prompt, answers: [1.0]).graded_unit
        'group'
        """
        try:
            parameters = list(inspect.signature(function).parameters.values())
        except (TypeError, ValueError):
            return cls()
        several = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        names = [p.name for p in several]
        columns = any(p.kind is p.VAR_KEYWORD for p in parameters)
        if library := library_of(names):
            optional = frozenset(p.name for p in several if p.default is not p.empty)
            return cls("group" if library == "TRL" else "answer", (), tuple(names), optional, columns, library)
        if not {*ANSWER, *PLURAL}.intersection(names):
            return cls._by_position(function, parameters)
        several_answers = [name for name in SEVERAL if name in names]
        kind: Kind = "answer" if not several_answers else "bulk" if set(BULK).intersection(names) else "group"
        if mixed := set(names).intersection(("answer", "finish", "final_state") if several_answers else PLURAL):
            beside = f" beside {several_answers[0]}" if several_answers else ""
            _refuse(function, f"it takes {', '.join(sorted(mixed))}{beside}")
        return cls(
            kind,
            tuple(p.name for p in several if p.kind is p.POSITIONAL_ONLY),
            tuple(p.name for p in several if p.kind is not p.POSITIONAL_ONLY),
            frozenset(p.name for p in several if p.default is not p.empty),
            columns,
        )

    @classmethod
    def _by_position(
        cls, function: Callable[..., Any], parameters: Sequence[inspect.Parameter]
    ) -> "GradeFunctionParameters":
        placed = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        names = [p.name for p in parameters]
        required = [p for p in parameters if p.default is p.empty and p not in placed[:3]]
        if "ground_truth" in names:  # by position it would get a prompt, an answer, or the gold answer
            _refuse(function, "it takes ground_truth, and neither solution_str nor answer")
        if len(placed) < 3 and not any(p.kind is p.VAR_POSITIONAL for p in parameters):
            _refuse(function, f"its parameters are {', '.join(names) or 'none'}")
        if any(p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in required):
            _refuse(function, f"its parameters are {', '.join(names)}")
        return cls()

    @property
    def reads_states(self) -> bool:
        """Whether the function may ask for states of a flow model."""
        return not {*STATES, "final_states"}.isdisjoint((*self.positional_names, *self.keyword_names))

    @property
    def reads_answer(self) -> bool:
        """Whether the function may ask for anything of the answer that it grades."""
        return self.takes_columns or not READ.isdisjoint((*self.positional_names, *self.keyword_names))

    @property
    def many(self) -> bool:
        """Whether the function returns a list, with one grade per answer."""
        return self.graded_unit != "answer"

    def arguments(self, items: Sequence[Item]) -> tuple[list[Any], dict[str, Any]]:
        """The arguments of a call, by position and by name, for one answer or several. May raise `MissingColumn`."""
        named = {name: self._value(name, items) for name in self.keyword_names if self._has(name, items)}
        if self.takes_columns and self.signature_library:
            always = {*TRL, *(column for prompt, _ in items for column in prompt.row)} - {"messages"}
            others = sorted(always - named.keys()) if self.signature_library == "TRL" else []
            named |= {name: self._value(name, items) for name in others if name.isidentifier()}
        elif self.takes_columns:
            taken = {*self.positional_names, *named, "answer"}
            others = sorted({column for prompt, _ in items for column in prompt.row} - taken)
            named |= {name: self._value(name, items) for name in others if name.isidentifier()}
        return [self._value(name, items) for name in self.positional_names], named

    def _has(self, name: str, items: Sequence[Item]) -> bool:
        """Whether to pass this parameter: always, unless it has a default and a data row lacks its column."""
        known = name not in STATES and (name in ANSWER or name in PLURAL)
        if self.signature_library:
            known = name in (TRL if self.signature_library == "TRL" else VERL)
        given = known or all(name in prompt.row or _state(name, sample) is not None for prompt, sample in items)
        return given or name not in self.optional_names

    def _value(self, name: str, items: Sequence[Item]) -> Any:
        if self.signature_library:
            return self._value_of_library(name, items)
        values = [_value_of(PLURAL.get(name, name), *item) for item in items]
        if self.graded_unit == "bulk" or (self.many and (name in PLURAL or name in EACH)):
            return values
        return values[0]

    def _value_of_library(self, name: str, items: Sequence[Item]) -> Any:
        """The argument of a function of TRL or verl."""
        try:
            if self.signature_library == "verl":
                return verl_value(name, *items[0])
            return [trl_value(name, *item) for item in items]
        except KeyError:
            columns = ", ".join(items[0][0].row)
            raise MissingColumn(f"the reward's parameter {name} is no column of the row, which has {columns}") from None


def _name_of(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__qualname__", function))


def _refuse(function: Callable[..., Any], evidence: str) -> None:
    raise Usage(
        f"the grade function {_name_of(function)} has parameters that fit no kind",
        evidence=evidence,
        fix="write def grade(prompt, answer, gold), def grade(row, answer), def grade(prompt, answers) for a group, "
        "or def grade(prompts, answers) for bulk",
    )


def _value_of(name: str, prompt: Prompt, sample: Sample) -> Any:
    """The value of a grade function's parameter for one answer."""
    match name:
        case "prompt":
            return prompt.text
        case "answer":
            return sample.text
        case "gold":
            return prompt.row.get("answer")
        case "row":
            return dict(prompt.row)
        case "messages":
            return conversation(prompt, sample)
        case "finish":
            return None if sample.finish is None else sample.finish.name
        case "tokens":
            return list(sample.tokens)
    if (state := _state(name, sample)) is not None:
        return state
    if name not in prompt.row:
        only = "; only flow models have states" if name in STATES else ""
        columns = f"the row, which has {', '.join(prompt.row)}{only}"
        raise MissingColumn(f"the grader's parameter {name} is no column of {columns}")
    return prompt.row[name]


def conversation(prompt: Prompt, sample: Sample) -> list[dict[str, Any]]:
    """The messages of a problem, with the answer as the assistant's at their end."""
    earlier = prompt.row.get("messages") or [{"role": "user", "content": prompt.text}]
    return [*earlier, {"role": "assistant", "content": sample.text}]


def _state(name: str, sample: Sample) -> NDArray[np.float32] | None:
    """A copy of the states that a parameter asks for; None for other parameters, and for samples without states."""
    if name not in STATES:
        return None
    array = graded_state(sample.actions) if name == "final_state" else all_states(sample.actions)
    return None if array is None else array.copy()
