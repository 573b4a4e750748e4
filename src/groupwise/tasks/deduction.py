"""The task `deduction`: prove a goal from facts by rules, one checkable step at a time.

A problem such as `abc|ab>d,cd>e,ae>f|e=` has the facts a, b and c, three rules, and the goal e. The rule `ab>d` says
that a and b give d. A proof: `ab>d;cd>e;#`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise, permutations
from random import Random

from groupwise.data import Ids, Prompt
from groupwise.tasks.calculator import is_held_out
from groupwise.tasks.generated_task import GeneratedTaskSettings

__all__ = ["Deduction"]

LETTERS, FACTS, RULES = "abcdef", 3, 4
DEEPEST = 2
"""The number of steps of the longest proofs. Half of the problems need this many, the others one."""
TRAINING, HELD_OUT, DEMONSTRATIONS = 4096, 256, 8192
PROVEN = 0.5
"""The share of demonstrations that contain a proof. The others write one rule that concludes the goal, right or not."""


@dataclass(frozen=True, slots=True)
class DeductionProblem:
    """A deduction problem: facts, rules and a goal.

    >>> scene = DeductionProblem("abc", ("ab>d", "cd>e", "ae>f"), "e")
    >>> scene.problem, scene.proof
    ('abc|ab>d,cd>e,ae>f|e=', ('ab>d', 'cd>e'))
    """

    facts: str
    rules: tuple[str, ...]
    goal: str

    @property
    def problem(self) -> str:
        return f"{self.facts}|{','.join(self.rules)}|{self.goal}="

    @property
    def proof(self) -> tuple[str, ...]:
        """The first shortest proof in the order of the rules; empty if none has at most `DEEPEST` steps."""
        attempts = (steps for n in range(1, DEEPEST + 1) for steps in permutations(self.rules, n))
        return next((s for s in attempts if all(self.check(s)) and s[-1][-1] == self.goal), ())

    def check(self, steps: Sequence[str]) -> list[bool]:
        """For each step, whether it is a rule whose premises are facts or conclusions of earlier valid steps.

        >>> DeductionProblem("abc", ("ab>d", "cd>e"), "e").check(["cd>e", "ab>d", "cd>e", "ab>e"])
        [False, True, True, False]
        """
        known, valid = set(self.facts), []
        for step in steps:
            valid.append(step in self.rules and known.issuperset(step.partition(">")[0]))
            if valid[-1]:
                known.add(step[-1])
        return valid


def scenes(random: Random) -> Iterator[DeductionProblem]:
    """Generate provable problems; those with proofs of one step and of `DEEPEST` steps take turns."""
    depth = 1
    while True:
        scene = _scene(random, depth)
        if len(set(scene.rules)) == RULES and len(scene.proof) == depth:
            yield scene
            depth = DEEPEST if depth == 1 else 1


def _scene(random: Random, depth: int) -> DeductionProblem:
    """Generate a problem with a proof of this many steps. Its other rules are random and may allow a shorter one."""
    letters = random.sample(LETTERS, len(LETTERS))
    facts, conclusions = letters[:FACTS], letters[FACTS : FACTS + depth]
    rules = [_written_rule(random.sample(facts, 2), conclusions[0])]
    rules += [_written_rule([before, random.choice(facts)], after) for before, after in pairwise(conclusions)]
    for _ in range(RULES - depth):
        *premises, conclusion = random.sample(LETTERS, 3)
        rules.append(_written_rule(premises, conclusion))
    random.shuffle(rules)
    return DeductionProblem("".join(sorted(facts)), tuple(rules), conclusions[-1])


def _written_rule(premises: Sequence[str], conclusion: str) -> str:
    return f"{''.join(sorted(premises))}>{conclusion}"


@cache
def split() -> tuple[tuple[DeductionProblem, ...], tuple[DeductionProblem, ...]]:
    """The training problems and the held-out ones, all different."""
    sides: tuple[dict[str, DeductionProblem], dict[str, DeductionProblem]] = ({}, {})
    for scene in scenes(Random("deduction")):
        held_out = is_held_out(scene.problem)
        if len(sides[held_out]) < (HELD_OUT if held_out else TRAINING):
            sides[held_out][scene.problem] = scene
        elif len(sides[not held_out]) == (TRAINING if held_out else HELD_OUT):
            break
    return tuple(sides[0].values()), tuple(sides[1].values())


@dataclass(frozen=True, slots=True)
class Deduction(GeneratedTaskSettings):
    """The task's problems: 4,096 to train on, and 256 held-out ones; half have proofs of one step, half of two.

    >>> task = Deduction().build(lambda text: tuple(map(ord, text)))
    >>> task[0].text, task[0].row["solution"], len(task), len(task.held_out)
    ('bde|be>c,ef>c,ac>f,bc>f|c=', 'be>c;#', 4096, 256)
    """

    def problems(self) -> tuple[Sequence[DeductionProblem], Sequence[DeductionProblem]]:
        return split()

    def prompt(self, scene: DeductionProblem, encode: Callable[[str], Ids], /) -> Prompt:
        row = {"answer": scene.goal, "facts": scene.facts, "rules": list(scene.rules), "solution": written(scene.proof)}
        return Prompt(id=scene.problem, token_ids=encode(scene.problem), text=scene.problem, row=row)


def written(proof: Sequence[str]) -> str:
    """A proof in the format of an answer.

    >>> written(["ab>d", "cd>e"])
    'ab>d;cd>e;#'
    """
    return "".join(f"{step};" for step in proof) + "#"


def deduction_demonstrations() -> Iterator[dict[str, str]]:
    """Demonstrations for a warm start, without held-out problems."""
    random, count = Random("demonstrations of deduction"), 0
    for scene in scenes(random):
        if is_held_out(scene.problem):
            continue
        guess = random.choice([rule for rule in scene.rules if rule.endswith(scene.goal)])
        yield {"prompt": scene.problem, "answer": written(scene.proof if random.random() < PROVEN else [guess])}
        count += 1
        if count == DEMONSTRATIONS:
            return
