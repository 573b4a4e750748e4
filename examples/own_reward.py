"""Your own reward on an instruct model: it learns to answer with a JSON object whose two numbers have a given sum.

python examples/own_reward.py
python examples/own_reward.py my-model
"""

import json
import sys
from typing import Any

import groupwise as gw

MODEL = "Qwen/Qwen2.5-0.5B-Instruct"
ASK = "Answer only with a JSON object with two whole numbers a and b greater than 0, so that a + b = {}."
ROWS = [{"prompt": ASK.format(total), "total": total} for total in range(5, 105)]


def read(answer: str) -> dict[str, int] | None:
    """The object, or None if the answer is not one with exactly the two positive numbers."""
    try:
        value = json.loads(answer)
    except ValueError:
        return None
    good = (
        isinstance(value, dict) and value.keys() == {"a", "b"} and all(type(x) is int and x > 0 for x in value.values())
    )
    return value if good else None


def right(answer: str, total: int) -> bool:
    """A column of the row is an argument by its name."""
    value = read(answer)
    return value is not None and sum(value.values()) == total


def shape(answer: str) -> float:
    """A number that is above 0 sooner, so that groups differ before any sum is right."""
    return float(read(answer) is not None)


def train(model: str, **fields: Any) -> gw.Run:
    """A run with both rewards: the first gives the outcome, the second has half its weight."""
    reward = {"right": right, "shape": (0.5, shape)}
    fields = {"prompts": 16, "iterations": 30, "max_tokens": 48, "method": gw.grpo(group_size=8)} | fields
    return gw.train(model=model, template="chat", data=ROWS, reward=reward, **fields)


if __name__ == "__main__":
    print(train(*sys.argv[1:] or [MODEL]).report)
