"""An agent of a pretrained model with a calculator: it writes the calculation of a problem in words, then the answer.

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
    ("Ann has 3 bags with 12 nuts each, and 5 more nuts. How many nuts does Ann have?", "3 * 12 + 5 =", 41),
    ("Ben has 4 boxes with 20 eggs each, and sells 15 eggs. How many eggs does Ben have?", "4 * 20 - 15 =", 65),
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
    """The reward: the last number of the answer is right. A turn without a calculation is the answer itself."""
    messages = []
    for question, call, result in EXAMPLES:
        messages += [user(question), assistant(call), user(str(result)), assistant(f"The answer is {result}.")]
    messages.append(user(row["prompt"]))
    ask = client.chat.completions.create
    reply = await ask(model="policy", messages=messages, max_tokens=16, stop=["=", "\n"])
    answer = reply.choices[0].message.content
    if call := CALL.search(answer):
        messages += [assistant(answer), user(str(calculate(call[0])))]
        reply = await ask(model="policy", messages=messages, max_tokens=16)
        answer = reply.choices[0].message.content
    return re.findall(r"\d+", answer.replace(",", ""))[-1:] == [str(row["answer"])]


def calculate(text):
    """The value of numbers and signs, with a space around each sign. Products come first.

    >>> calculate("80 - 3 * 12 + 5")
    49
    """
    terms = TERM.findall(text)
    return sum((-1 if sign else 1) * math.prod(map(int, numbers.split(" * "))) for sign, numbers in terms)


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}
