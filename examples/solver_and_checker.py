"""An agent with a tool and two conversations: a solver with a calculator, and a checker that reads its answer.

groupwise train examples/solver_and_checker.toml --agent examples/solver_and_checker.py:agent
"""

import operator
import re

CALL = re.compile(r"([0-9]{1,4})([-+*])([0-9]{1,4})")
SIGNS = {"+": operator.add, "-": operator.sub, "*": operator.mul}


async def agent(row, client):
    """The reward: the solver is right, and the checker, who reads its answer behind the problem, says the same."""
    problem = row["prompt"]
    solved = await converse(client, problem)
    checked = await converse(client, f"{problem}{solved};{problem}")
    return solved == checked == f"#{row['answer']}"


async def converse(client, prompt):
    """The last turn of a conversation with a calculator. A step up to its `=`, such as `7*5`, is a call."""
    messages = [{"role": "user", "content": prompt}]
    while True:
        reply = await client.chat.completions.create(model="policy", messages=messages, stop="=")
        turn = reply.choices[0].message.content
        call = CALL.fullmatch(turn)
        if call is None:
            return turn
        left, sign, right = call.groups()
        result = SIGNS[sign](int(left), int(right))
        messages += [{"role": "assistant", "content": turn}, {"role": "tool", "content": f"{result};"}]
