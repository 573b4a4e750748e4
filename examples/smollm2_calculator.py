"""An agent of a pretrained model with a calculator: it writes the calculation of a problem in words, up to its `=`.

groupwise train examples/smollm2_calculator.toml --agent examples/smollm2_calculator.py:agent
"""

import math
import re
from dataclasses import dataclass
from itertools import product
from random import Random

from groupwise.data import Prompt, TaskSettings
from groupwise.tasks import RowsTask

CALL = re.compile(r"\d+(?: [-+*] \d+)+")
TERM = re.compile(r"(-?) ?(\d+(?: \* \d+)*)")
EXAMPLES = (
    ("Ann has 3 bags with 12 nuts each, and 5 more nuts. How many nuts does Ann have?", "3 * 12 + 5 ="),
    ("Ben has 4 boxes with 20 eggs each, and sells 15 eggs. How many eggs does Ben have?", "4 * 20 - 15 ="),
)
PEOPLE = ("Tom", "Max", "Sam", "Mia", "Eva", "Zoe")
THINGS = tuple(product(("boxes", "bags", "baskets", "jars"), ("pens", "coins", "cards", "apples", "beads")))


@dataclass(frozen=True, slots=True)
class Boxes(TaskSettings):
    """640 problems: some boxes with equally many things each, and some more things. Every tenth one is held out."""

    def build(self, encode):
        prompts = [problem(Random(i), encode) for i in range(640)]
        return RowsTask(tuple(p for i, p in enumerate(prompts) if i % 10), tuple(prompts[::10]))


def problem(random, encode):
    """A problem whose calculation is such as `35 * 91 + 299`."""
    name, (boxes, things) = random.choice(PEOPLE), random.choice(THINGS)
    a, b, c = random.randint(12, 99), random.randint(12, 99), random.randint(101, 999)
    text = f"{name} has {a} {boxes} with {b} {things} each, and {c} more {things}. How many {things} does {name} have?"
    return Prompt(text, encode(text), text, {"answer": a * b + c})


async def agent(row, client):
    """The reward: the turn has a calculation, and its value is the answer of the problem."""
    messages = []
    for question, call in EXAMPLES:
        messages += [user(question), {"role": "assistant", "content": call}]
    messages.append(user(row["prompt"]))
    create = client.chat.completions.create
    reply = await create(model="policy", messages=messages, max_tokens=16, stop=["=", "\n"])
    call = CALL.search(reply.choices[0].message.content)
    return call is not None and calculate(call[0]) == row["answer"]


def calculate(text):
    """The value of numbers and signs, with a space around each sign. Products come first.

    >>> calculate("80 - 3 * 12 + 5")
    49
    """
    terms = TERM.findall(text)
    return sum((-1 if sign else 1) * math.prod(map(int, numbers.split(" * "))) for sign, numbers in terms)


def user(text):
    return {"role": "user", "content": text}
