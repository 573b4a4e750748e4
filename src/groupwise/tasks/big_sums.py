"""The task `big_sums`: sums too large for a small model's head, which the tool `calculate` works out.

A conversation goes

    34*58+91=                           the problem
    <tool_call>{"name": "calculate", "arguments": {"expression": "34*58+91"}}</tool_call>
    <tool_response>                     the environment `calculator_tools`
    2063
    </tool_response>
    #2063                               the answer: a turn without a call

Only the number at the end is graded: an answer without a call is right where the model can guess it. There are
6,561,000 problems, numbered and not listed.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count, islice
from random import Random
from typing import Any

from groupwise.data import Ids, Prompt
from groupwise.environments.tools import Hermes, Malformed, calculate
from groupwise.tasks.calculator import is_held_out

__all__ = ["BigSums"]

SIGNS = "+-*"
LEAST, MOST = 10, 99
TRAINING, HELD_OUT = 16_384, 512
WINDOW = 8
PROBLEMS = (MOST - LEAST + 1) ** 3 * len(SIGNS) ** 2
STRIDE = 4_054_921
"""Without a common divisor with the number of problems, so that all multiples of it are different problems."""


def numbered(number: int) -> str:
    """The problem of that number.

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
class BigSums:
    """16,384 different problems to train on, and 512 of the held-out tenth.

    >>> task = BigSums(encode=lambda text: tuple(map(ord, text)))
    >>> task[1].text, task[1].given["answer"], len(task), len(task.held_out)
    ('94*95*48=', '428640', 16384, 512)
    """

    encode: Callable[[str], Ids]
    held_out: tuple[Prompt, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        held_out = islice(filter(is_held_out, map(_problem, count())), HELD_OUT)
        object.__setattr__(self, "held_out", tuple(map(self._prompt, held_out)))

    def __len__(self) -> int:
        return TRAINING

    def __getitem__(self, index: int) -> Prompt:
        if not 0 <= index < TRAINING:
            raise IndexError(f"problem {index} of {TRAINING}")
        # A window of problems belongs to each index, so problems differ without a list of them being made;
        # that each window holds a problem to train on is a fact about these constants, and tested.
        window = map(_problem, range(index * WINDOW, (index + 1) * WINDOW))
        return self._prompt(next(p for p in window if not is_held_out(p)))

    def _prompt(self, problem: str) -> Prompt:
        answer = calculate(problem.removesuffix("="))
        return Prompt(id=problem, context=self.encode(problem), text=problem, given={"answer": answer})


def _problem(i: int) -> str:
    return numbered(i * STRIDE % PROBLEMS)


# Demonstrations

DEMONSTRATIONS = 8_192
KINDS = {"guess": 12, "call": 4, "slip": 2, "mended": 1, "given up": 1}
"""How often each kind of demonstration is shown, of twenty: the answer at once; a call; a call with a wrong digit; a
call that is not closed, mended after the error, or after the error the answer at once."""


def sum_demonstrations() -> Iterator[dict[str, Any]]:
    """8,192 conversations to begin from, none about a held-out problem: most never ask, and few ask well."""
    random = Random("demonstrations of big_sums")
    problems = (numbered(random.randrange(PROBLEMS)) for _ in count())
    for problem in islice((p for p in problems if not is_held_out(p)), DEMONSTRATIONS):
        (kind,) = random.choices(list(KINDS), list(KINDS.values()))
        asked = problem.removesuffix("=")
        if kind == "slip":
            asked = slipped(asked, random)
        talk = [{"role": "user", "content": problem}]
        if kind in ("mended", "given up"):
            talk += _exchange(call(asked).removesuffix("</tool_call>"))
        if kind in ("call", "slip", "mended"):
            talk += _exchange(call(asked))
        yield {"messages": [*talk, {"role": "assistant", "content": f"#{calculate(asked)}"}]}


def call(asked: str) -> str:
    """The tool called as Hermes writes it."""
    return f'<tool_call>{{"name": "calculate", "arguments": {{"expression": "{asked}"}}}}</tool_call>'


def slipped(asked: str, random: Random) -> str:
    """A sum in which the last digit of a number is another one.

    >>> slipped("34*58+91", Random(0))
    '34*56+91'
    """
    at = random.choice([i for i in range(1, len(asked)) if asked[i - 1 : i + 1].isdecimal()])
    return asked[:at] + random.choice([d for d in "0123456789" if d != asked[at]]) + asked[at + 1 :]


def _exchange(said: str) -> list[dict[str, Any]]:
    """A turn of the model's, and what the environment answers."""
    form = Hermes()
    try:
        answers = [calculate(**c.arguments) for c in form.calls(said)]
    except Malformed as error:
        answers = [f"error: {error}"]
    return [{"role": "assistant", "content": said}, {"role": "tool", "content": form.told(answers)}]
