"""Scores an answer in a worker process: generates the problem again from its index and calls its scorer."""

from functools import cache
from importlib import import_module
from typing import Any


def score(prompt: str, answer: str, gold: dict[str, Any]) -> float:
    """The score of an answer, from 0 to 1. `gold` has the generator, seed, size and index that recreate the problem."""
    start = answer.rfind("<answer>")
    if start >= 0:
        answer = answer[start + len("<answer>") :].partition("</answer>")[0]
    entries = data_set(gold["data_set"], gold["seed"], gold["size"])
    return float(entries.score_answer(answer=answer.strip(), entry=entries[gold["index"]]))


@cache
def data_set(name: str, seed: int, size: int) -> Any:
    return import_module("reasoning_gym").create_dataset(name, seed=seed, size=size)
