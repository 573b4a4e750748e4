"""The task `big_sums`: sums that a small model cannot compute by itself, with the tool `calculate`.

A conversation:

    34*58+91=                           the problem
    <tool_call>{"name": "calculate", "arguments": {"expression": "34*58+91"}}</tool_call>
    <tool_response>                     the environment `calculator_tools`
    2063
    </tool_response>
    #2063                               the answer: a turn without a call

Only the number at the end is graded, so a correct guess without a call is right. There are 6,561,000 problems. Each
has a number, from which it is computed; no list of them exists.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice
from random import Random
from typing import Any

from groupwise.data import Ids, Prompt
from groupwise.environments.tools import HermesFormat, MalformedCall, calculate
from groupwise.tasks.calculator import is_held_out
from groupwise.tasks.generated_task import GeneratedTaskSettings, LazySequence

__all__ = ["BigSums"]

SIGNS = "+-*"
LEAST, MOST = 10, 99
TRAINING, HELD_OUT = 16_384, 512
WINDOW = 8
PROBLEMS = (MOST - LEAST + 1) ** 3 * len(SIGNS) ** 2
STRIDE = 4_054_921
"""A step coprime to the number of problems: its multiples modulo that number are all different."""


def numbered(number: int) -> str:
    """The text of the problem with this number: three operands of two digits, and two signs.

    >>> numbered(0), numbered(PROBLEMS - 1)
    ('10+10+10=', '99*99*99=')
    """
    assert 0 <= number < PROBLEMS, f"there is no problem {number}"
    text = "="
    for i in range(3):
        number, operand = divmod(number, MOST - LEAST + 1)
        text = f"{LEAST + operand}{text}"
        if i < 2:
            number, sign = divmod(number, len(SIGNS))
            text = f"{SIGNS[sign]}{text}"
    return text


@dataclass(frozen=True, slots=True)
class BigSums(GeneratedTaskSettings):
    """The problems of the task `big_sums`: sums for a calculator tool; 16,384 to train on, 512 held-out ones.

    >>> task = BigSums().build(lambda text: tuple(map(ord, text)))
    >>> task[1].text, task[1].row["answer"], len(task), len(task.held_out)
    ('94*95*48=', '428640', 16384, 512)
    """

    def problems(self) -> tuple[Sequence[str], Sequence[str]]:
        held_out = islice(filter(is_held_out, map(_problem, count())), HELD_OUT)
        return LazySequence(TRAINING, training_problem), tuple(held_out)

    def prompt(self, problem: str, encode: Callable[[str], Ids], /) -> Prompt:
        answer = calculate(problem.removesuffix("="))
        return Prompt(id=problem, token_ids=encode(problem), text=problem, row={"answer": answer})


def training_problem(index: int) -> str:
    """The training problem with this index, from 0."""
    # Each index has its own window of problems, so all problems differ and no list is needed. A test checks
    # that with these constants every window contains a training problem.
    window = map(_problem, range(index * WINDOW, (index + 1) * WINDOW))
    return next(p for p in window if not is_held_out(p))


def _problem(i: int) -> str:
    return numbered(i * STRIDE % PROBLEMS)


# Demonstrations

DEMONSTRATIONS = 8_192
KINDS = {"guess": 12, "call": 4, "slip": 2, "mended": 1, "given up": 1}
"""Frequency of each kind of demonstration, out of twenty. `guess`: the answer without a call. `call`: a correct call.
`slip`: a call with one wrong digit. `mended`: an unclosed call, then a correct one. `given up`: an unclosed call, then
the answer."""


def sum_demonstrations() -> Iterator[dict[str, Any]]:
    """8,192 conversations for a warm start, none with a held-out problem. Most make no call, and few call correctly."""
    random = Random("demonstrations of big_sums")
    problems = (numbered(random.randrange(PROBLEMS)) for _ in count())
    for problem in islice((p for p in problems if not is_held_out(p)), DEMONSTRATIONS):
        (kind,) = random.choices(list(KINDS), list(KINDS.values()))
        expression = problem.removesuffix("=")
        if kind == "slip":
            expression = with_wrong_digit(expression, random)
        messages = [{"role": "user", "content": problem}]
        if kind in ("mended", "given up"):
            messages += _exchange(call(expression).removesuffix("</tool_call>"))
        if kind in ("call", "slip", "mended"):
            messages += _exchange(call(expression))
        yield {"messages": [*messages, {"role": "assistant", "content": f"#{calculate(expression)}"}]}


def call(expression: str) -> str:
    """A call of the tool in the Hermes format."""
    return f'<tool_call>{{"name": "calculate", "arguments": {{"expression": "{expression}"}}}}</tool_call>'


def with_wrong_digit(expression: str, random: Random) -> str:
    """The sum with the last digit of one number replaced.

    >>> with_wrong_digit("34*58+91", Random(0))
    '34*56+91'
    """
    i = random.choice([i for i in range(1, len(expression)) if expression[i - 1 : i + 1].isdecimal()])
    digit = random.choice([d for d in "0123456789" if d != expression[i]])
    return expression[:i] + digit + expression[i + 1 :]


def _exchange(message: str) -> list[dict[str, Any]]:
    """Two chat messages: the model's message with its tool call, and the calculator's result."""
    form = HermesFormat()
    try:
        answers = [calculate(**c.arguments) for c in form.calls(message)]
    except MalformedCall as error:
        answers = [f"error: {error}"]
    return [{"role": "assistant", "content": message}, {"role": "tool", "content": form.render(answers)}]
