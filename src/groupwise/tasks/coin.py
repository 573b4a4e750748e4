"""The task `coin`: guess a coin that no policy can predict, then talk for as long as you like.

A conversation with the environment `coin_flip`:

    0417:       the problem, a number that says nothing about the coin
    h           the guess
    wrong       the environment
    .......     any number of dots, which are worth nothing

The reward depends on the guess alone, so training cannot raise it. A method that makes answers longer after `wrong`
than after `right` has a length bias.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from groupwise.data import Ids, Prompt
from groupwise.tasks.generated_task import GeneratedTaskSettings

__all__ = ["Coin"]

TRAINING, HELD_OUT = 4096, 64
DEMONSTRATIONS = 12_288
GOES_ON, MOST = 0.8, 40
"""The probability of another dot in a demonstration, and the largest number of dots."""


@dataclass(frozen=True, slots=True)
class Coin(GeneratedTaskSettings):
    """A task with unpredictable rewards: guess a coin in an environment. 4,096 problems to train on, 64 held-out ones.

    >>> task = Coin().build(lambda text: tuple(map(ord, text)))
    >>> task[417].text, task.held_out[0].text, len(task), len(task.held_out)
    ('0417:', '4096:', 4096, 64)
    """

    def problems(self) -> tuple[Sequence[int], Sequence[int]]:
        return range(TRAINING), range(TRAINING, TRAINING + HELD_OUT)

    def prompt(self, index: int, encode: Callable[[str], Ids], /) -> Prompt:
        text = f"{index:04d}:"
        # A conversation that the budget cuts is judged by its last turn, and no turn is a question mark.
        return Prompt(id=text, token_ids=encode(text), text=text, row={"answer": "?"})


def coin_demonstrations() -> Iterator[dict[str, Any]]:
    """12,288 conversations for a warm start. The number of dots is geometric, whatever the outcome."""
    random = Random("demonstrations of coin")
    for _ in range(DEMONSTRATIONS):
        dots = 1
        while dots < MOST and random.random() < GOES_ON:
            dots += 1
        yield {
            "messages": [
                {"role": "user", "content": f"{random.randrange(TRAINING):04d}:"},
                {"role": "assistant", "content": random.choice("ht")},
                {"role": "tool", "content": random.choice(("right\n", "wrong\n"))},
                {"role": "assistant", "content": "." * dots},
            ]
        }
