"""The user's own value in the answer for an option of TRL or verl, in place of the example."""

import re
from typing import Any

from groupwise.config.trl_and_verl_names import OTHER_VALUES, OtherLibraryOption, answer_of, option_of, other_name_fix
from groupwise.methods.families import method_files, published_name

__all__ = ["line_with_value", "option_with_value"]


def option_with_value(path: str, option: str, value: str, method: str = "") -> str:
    """The option of the answer for `path`, with the user's value where it means the same as the example.

    That is a published method, and a value of the example's type of an answer without a note, or with other names of
    the field. In a table, or a list of one table, that is a part of one kind, it is the part's constant. `method` is
    the published method that the user named, or empty.

    >>> option_with_value("loss_type", "--method grpo (...)", "dr_grpo")
    '--method dr_grpo'
    >>> option_with_value("max_steps", "--iterations 100 (...)", "7")
    '--iterations 100 (...)'
    >>> option_with_value("learning_rate", "--optimizer.lr 1e-6", "1e-5")
    '--optimizer.lr 1e-5'
    >>> option_with_value("bf16", "--machine.dtype bfloat16", "true")
    '--machine.dtype bfloat16'
    >>> print(option_with_value("tp", "--engine '{ kind = 'Vllm' ... }'", "4"))
    --engine '{ kind = "Vllm", tensor_parallel_size = 4 }'
    >>> option_with_value("beta", "--method.beta 0.04", "0.2", "dpo")
    '--method.beta 0.2'
    """
    answer = answer_of(path, method)
    if answer is None:
        return option
    if answer.field_path == "method" and isinstance(answer.equivalent_field_value, str):
        name = published_name(OTHER_VALUES.get(("method", value), value))
        if name in method_files():
            return f"--method {name}"
        return f"--method NAME{answer.note}" if re.fullmatch(r"(?!true$|false$)[a-z_]+", value) else option
    example, written = constant_with(answer.equivalent_field_value, value)
    kind = bool if value in ("true", "false") else int if value.isdecimal() else float if is_number(value) else str
    fits = type(example) is kind or (isinstance(example, float) and kind is int)
    if not (value and fits and means_the_same(answer)):
        return option
    return f"{option_of(answer.field_path, written)}{answer.note}"


def line_with_value(path: str, value: object, method: str = "") -> str:
    """The fix for an option with a value of TOML or Python; empty for another name. The arguments are those above.

    >>> line_with_value("beta", 0.2, "dpo")
    'write method.beta = 0.2, as an option --method.beta 0.2'
    >>> line_with_value("promts", 4)
    ''
    """
    fix = other_name_fix(path, method)
    _, divider, option = fix.partition(", as an option ")
    if not divider or isinstance(value, bool) or not isinstance(value, int | float):
        return fix
    new = option_with_value(path, option, str(value), method)
    if new == option:
        return fix
    answer = answer_of(path, method)
    assert answer is not None, "its fix has an option"
    _, written = constant_with(answer.equivalent_field_value, str(value))
    return f"write {answer.field_path} = {written}, as an option {new}"


def means_the_same(answer: OtherLibraryOption) -> bool:
    """Whether the option's value is that of the field: a note says where it is another one."""
    return not answer.note or bool(answer.other_argument_names)


def constant_with(example: Any, value: str) -> tuple[Any, str]:
    """The example of the one constant in an answer's example, and the whole as TOML with the value in its place.

    >>> constant_with([{"kind": "KL", "coefficient": 0.04}], "0.2")
    (0.04, '[{ kind = "KL", coefficient = 0.2 }]')
    """
    match example:
        case [dict(table)]:
            constant, written = constant_with(table, value)
            return constant, f"[{written}]"
        case {"kind": str(part), **constants} if len(constants) == 1:
            word = "kind"
        case {"base": str(part), **constants} if len(constants) == 1:
            word = "base"
        case _:
            return example, value
    ((name, constant),) = constants.items()
    text = f'"{value}"' if isinstance(constant, str) else value
    return constant, f'{{ {word} = "{part}", {name} = {text} }}'


def is_number(text: str) -> bool:
    """Whether a text is a number as Python writes it."""
    try:
        return float(text) == float(text)
    except ValueError:
        return False
