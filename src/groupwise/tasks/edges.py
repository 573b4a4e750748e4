"""The task `edges`: choose the edges of a graph on six nodes, one digit each, so that it joins all nodes.

A problem such as `03;14;25=` names forbidden edges. The answer has a 1 or 0 for each of the fifteen edges in the order
01, 02, 03, 04, 05, 12, and so on to 45.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from random import Random

from groupwise.data import Ids, Prompt
from groupwise.tasks.calculator import is_held_out
from groupwise.tasks.generated_task import GeneratedTaskSettings

__all__ = ["Edges"]

NODES = 6
EDGES = tuple(f"{a}{b}" for a, b in combinations(range(NODES), 2))
FORBIDDEN = (2, 3)
"""How many edges a problem forbids: two or three. Three cannot isolate a node, so every problem has an answer."""
DEMONSTRATIONS = 2048


@cache
def split() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """All problems in a fixed random order: those to train on, and the held-out tenth."""
    problems = [f"{';'.join(edges)}=" for n in FORBIDDEN for edges in combinations(EDGES, n)]
    Random("edges").shuffle(problems)
    return tuple(p for p in problems if not is_held_out(p)), tuple(filter(is_held_out, problems))


@dataclass(frozen=True, slots=True)
class Edges(GeneratedTaskSettings):
    """Choose edges that connect a graph on six nodes: 560 problems, 55 of them held out.

    >>> task = Edges().build(lambda text: tuple(map(ord, text)))
    >>> task[0].text, task[0].row["answer"], len(task), len(task.held_out)
    ('05;34;45=', ['05', '34', '45'], 505, 55)
    """

    def problems(self) -> tuple[Sequence[str], Sequence[str]]:
        return split()

    def prompt(self, problem: str, encode: Callable[[str], Ids], /) -> Prompt:
        row = {"answer": problem.removesuffix("=").split(";")}
        return Prompt(id=problem, token_ids=encode(problem), text=problem, row=row)


def edge_demonstrations() -> Iterator[dict[str, str]]:
    """Demonstrations for a warm start, without held-out problems: each edge is chosen at random."""
    random = Random("demonstrations of edges")
    for _ in range(DEMONSTRATIONS):
        answer = "".join(random.choice("01") for _ in EDGES)
        yield {"prompt": random.choice(split()[0]), "answer": answer}


def joins_all(edges: Iterable[str]) -> bool:
    """Whether the chosen edges connect all nodes of the graph.

    >>> joins_all(["01", "12", "23", "34", "45"]), joins_all(["01", "12", "02", "34", "45"])
    (True, False)
    """
    component = {node: {node} for node in map(str, range(NODES))}
    for a, b in edges:
        joined = component[a] | component[b]
        component |= dict.fromkeys(joined, joined)
    return len(component["0"]) == NODES
