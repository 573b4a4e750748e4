"""The advice for an argument that a constructor lacks, such as `gw.AdamW(learning_rate=...)`: the call to write."""

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from inspect import Parameter
from typing import Any

from groupwise.config.fields import SECOND_NAMES, SECTIONS, recipe_fields
from groupwise.config.python_advice import field_literal, in_python, literal, setting_in_python
from groupwise.config.trl_and_verl_names import EARLIER_FIELDS, OtherLibraryOption, answer_of
from groupwise.methods.families import method_files, methods_with_argument

__all__ = ["PublicCallable"]

METHOD = SECTIONS["method"]


@dataclass(frozen=True, slots=True)
class PublicCallable:
    """A class or function of `gw` by its name, with its arguments."""

    name: str
    arguments: Mapping[str, Parameter]

    def advice(self, word: str, value: object) -> str:
        """What to write in place of an argument that is not one of the constructor.

        An option of TRL, verl or peft is answered first where it is an argument here, and last where it is a setting
        of something else.

        >>> grpo = PublicCallable("grpo", {"kl": Parameter("kl", Parameter.KEYWORD_ONLY, default=0.04)})
        >>> grpo.advice("beta", 0.1), grpo.advice("kll", 0.1)
        ('write gw.grpo(kl=0.1)', 'did you mean kl?')
        >>> machine = PublicCallable("Machine", {"gradient_checkpointing": Parameter("x", Parameter.KEYWORD_ONLY)})
        >>> machine.advice("recompute", True)
        'write gradient_checkpointing, its name here'
        >>> grpo.advice("learning_rate", 1e-5)
        'pass it to gw.train: optimizer=gw.AdamW(lr=1e-06)'
        """
        sections = [section for section, owner in SECTIONS.items() if owner == self.owner and section]
        earlier = (EARLIER_FIELDS.get(f"{section}.{word}", "").rpartition(".")[2] for section in sections)
        if name := next((name for name in earlier if name in self.arguments), ""):
            return f"write {name}, its name here"
        answer = answer_of(f"{sections[0]}.{word}" if sections else word)
        if answer and (call := self._call(answer, value)):
            return f"write {call}"
        if near := get_close_matches(word, self.arguments, n=1, cutoff=0.6):
            return f"did you mean {near[0]}?"
        if self.owner == METHOD and (methods := methods_with_argument().get(word)):
            return f"it is an argument of {', '.join(methods[:3])}{' and others' if len(methods) > 3 else ''}"
        if answer:
            return (
                self._elsewhere(answer.field_path, answer.equivalent_field_value)
                if answer.field_path
                else in_python(answer.command_line_text)
            )
        return self._elsewhere(path, value) if (path := field_of(word)) else self.signature()

    @property
    def owner(self) -> str:
        """The class of the values that it makes, of those that are sections of a recipe."""
        return METHOD if self.name in method_files() else self.name

    def _call(self, answer: OtherLibraryOption, value: object) -> str:
        """The call with the argument here that an answer names, or in the section of a recipe below; else empty."""
        table, _, field = answer.field_path.rpartition(".")
        inner = SECTIONS.get(table)
        names = {
            **({field: answer.equivalent_field_value} if inner in (self.owner, None) else {}),
            **answer.other_argument_names,
        }
        if name := next((name for name in names if name in self.arguments), ""):
            note = answer.note if name == field else ""
            return f"gw.{self.name}({name}={field_literal(like(names[name], value))}){note}"
        if inner and self.owner == SECTIONS[""]:
            literal = field_literal(like(answer.equivalent_field_value, value))
            return f"gw.{self.name}({table}=gw.{inner}({field}={literal}))"
        return ""

    def _elsewhere(self, path: str, value: object) -> str:
        """The argument of `gw.train` for a field of a recipe that the constructor does not set."""
        given = f"method=gw.{self.name}(), " if self.name in method_files() and path.startswith("method.") else ""
        return f"pass it to gw.train: {given}{setting_in_python(path, value)}"

    def signature(self) -> str:
        """The arguments with their defaults."""
        if not self.arguments:
            return f"leave it out: gw.{self.name}() has none"
        return f"its arguments are {', '.join(map(in_short, self.arguments.values()))}"


def in_short(argument: Parameter) -> str:
    """An argument with its default."""
    if argument.default is Parameter.empty:
        return argument.name
    name = getattr(argument.default, "__name__", "")
    return f"{argument.name}={name or literal(argument.default)}"


def field_of(word: str) -> str:
    """The field of a recipe that a word names: itself, by a second name, or as the only one with this end; or none.

    >>> field_of("max_tokens"), field_of("microbatch_tokens"), field_of("kind")
    ('sampling.max_tokens', 'machine.microbatch_tokens', '')
    """
    ends = [path for path in (*recipe_fields(), *SECTIONS) if word in (path, path.rpartition(".")[2])]
    return SECOND_NAMES.get(word) or (word if word in ends else ends[0] if len(ends) == 1 else "")


def like(example: Any, value: Any) -> Any:
    """The value that a user passed, if it is of the kind of an answer's example, else the example.

    >>> like(1e-6, 1), like([0.9, 0.999], 0.9), like("bfloat16", True)
    (1, [0.9, 0.999], 'bfloat16')
    """
    return value if type(value) is type(example) or (type(example), type(value)) == (float, int) else example
