"""Reward functions that are written for TRL or verl: what their parameters get, by name."""

from collections.abc import Collection
from typing import Any, Literal

from groupwise.data import Prompt, Sample

Library = Literal["", "TRL", "verl"]

TRL = ("prompts", "completions", "completion_ids")
"""Parameters that TRL always passes. All of its other parameters are columns of the rows, as lists."""
VERL = ("data_source", "solution_str", "ground_truth", "extra_info")
"""Parameters that verl passes."""
GOLD = ("answer", "answers", "ground_truth", "gold", "label", "solution", "target")
"""Columns of TRL's functions that get the gold answer where no row has a column of that name."""


def library_of(names: Collection[str]) -> Library:
    """The library for which a reward function with these parameters is written; empty for one of this library.

    >>> library_of(["completions", "kwargs"]), library_of(["solution_str", "ground_truth"]), library_of(["answer"])
    ('TRL', 'verl', '')
    """
    if "completions" in names and "answers" not in names:
        return "TRL"
    return "verl" if "solution_str" in names and "answer" not in names else ""


def trl_value(name: str, prompt: Prompt, sample: Sample) -> Any:
    """The item of a list that TRL passes, for one answer. Raises `KeyError` for a column that the row lacks.

    Prompt and completion are texts, or lists of messages if the row's prompt is a conversation.
    """
    messages = prompt.row.get("messages")
    match name:
        case "prompts":
            return messages or prompt.text
        case "completions":
            return [{"role": "assistant", "content": sample.text}] if messages else sample.text
        case "completion_ids":
            return list(sample.tokens)
    if name in prompt.row:
        return prompt.row[name]
    if name in GOLD and "answer" in prompt.row:
        return prompt.row["answer"]
    raise KeyError(name)


def verl_value(name: str, prompt: Prompt, sample: Sample) -> Any:
    """The argument that verl passes, for one answer: a row without `data_source` has "", one without `extra_info` {}.

    Raises `KeyError` for another parameter that is no column of the row.
    """
    match name:
        case "solution_str":
            return sample.text
        case "ground_truth":
            return prompt.row.get("answer")
        case "data_source":
            return prompt.row.get("data_source", "")
        case "extra_info":
            return prompt.row.get("extra_info", {})
    return prompt.row[name]
