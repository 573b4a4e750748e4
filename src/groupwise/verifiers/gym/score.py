"""Run in a worker process: the problem is generated again from its number, and the answer scored by its generator."""

from functools import cache
from importlib import import_module
from typing import Any


def score(prompt: str, answer: str, gold: dict[str, Any]) -> float:
    """Between 0 and 1. `gold` names generator, seed, size and index: a problem's own data do not survive JSON."""
    opened = answer.rfind("<answer>")
    if opened >= 0:
        answer = answer[opened + len("<answer>") :].partition("</answer>")[0]
    made = data_set(gold["data_set"], gold["seed"], gold["size"])
    return float(made.score_answer(answer=answer.strip(), entry=made[gold["index"]]))


@cache
def data_set(name: str, seed: int, size: int) -> Any:
    return import_module("reasoning_gym").create_dataset(name, seed=seed, size=size)
