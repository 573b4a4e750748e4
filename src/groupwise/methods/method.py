"""What a paper fixes, as one value."""

from dataclasses import dataclass, field
from typing import Literal

from groupwise.advantages import every_token
from groupwise.data import Advantage, Credit, Curriculum, Filter, Logp, Mask, Measure, Memory, Shaping, Strategy, needs
from groupwise.learner import InitialPolicy, Routing
from groupwise.methods.schedules import Schedule
from groupwise.objective import Objective
from groupwise.rewards import Correctness, everything
from groupwise.rollout import Independent, Shuffled

__all__ = ["Method"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A published method: parts from draw to gradient, each defaulted to the plain thing. Hashable.

    An iteration is cut into `minibatches` steps and swept `passes` times, shuffled by `prompts` or by `samples`.
    `proximal` says whose log-probs are the old ones: `recomputed` by the learner, or as `sampled` by the engine.
    `unverifiable` answers are excluded from statistics, sums and divisors, count as wrong, or drop their group.
    `routing` says what is done about the experts of a mixture: nothing, unless a paper does.
    `schedules` change constants over the iterations: pairs of a dotted path and a `Schedule`.
    """

    group_size: int = 8
    curriculum: Curriculum = Shuffled()  # noqa: RUF009
    strategy: Strategy = Independent()  # noqa: RUF009
    filter: Filter = everything
    refill: int = field(default=0, metadata={"beside": "filter"})
    unverifiable: Literal["exclude", "wrong", "drop_group"] = "exclude"
    shaping: tuple[Shaping, ...] = (Correctness(),)
    advantage: tuple[Advantage, ...] = ()
    credit: Credit = every_token
    mask: tuple[Mask, ...] = ()
    objective: Objective = Objective()  # noqa: RUF009
    minibatches: int = 1
    shuffle: Literal["prompts", "samples"] = "prompts"
    epochs: int = 1
    proximal: Literal["recomputed", "sampled"] = "recomputed"
    routing: Routing = Routing()  # noqa: RUF009
    models: tuple[tuple[str, InitialPolicy], ...] = ()
    memory: tuple[tuple[str, Memory], ...] = ()
    schedules: tuple[tuple[str, Schedule], ...] = ()

    def __post_init__(self) -> None:
        for name, least in (("group_size", 1), ("refill", 0), ("minibatches", 1), ("epochs", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}: needs at least {least}")
        if not self.shaping:
            raise ValueError("shaping is empty: its first part makes the reward, for instance Correctness()")
        if "policy" in dict(self.models):
            raise ValueError("no model beside the policy is called policy: that is the one under training\nrename it")
        missing = sorted(
            {m.model for m in self.needs if isinstance(m, Logp)} - {"policy"} - {n for n, _ in self.models}
        )
        if missing:
            raise ValueError(
                f"a part needs Logp({missing[0]!r}) and there is no such model\n"
                f'say method.models = {{ {missing[0]} = "Start" }}, or set the part\'s coefficient to 0'
            )
        if self.group_size == 1 and any(getattr(a, "compares", False) for a in self.advantage):
            why = "group_size is 1 and the advantage compares siblings: every advantage would be 0"
            raise ValueError(f"{why}\ntake 2 or more")
        if self.proximal == "sampled" and self.objective.weights:
            why = "proximal is sampled, so ratios answer for the engine's gap already: weights would count it twice"
            raise ValueError(f"{why}\ndrop objective.weights, or say proximal = recomputed")
        if self.proximal == "sampled" and self.routing.replay == "learner":
            why = "proximal is sampled, so the learner reads no old log-probs, and routing.replay has nothing to replay"
            raise ValueError(f'{why}\nsay routing.replay = "engine", or proximal = "recomputed"')

    @property
    def models_in_use(self) -> tuple[tuple[str, InitialPolicy], ...]:
        """The models beside the policy that a part reads; all of them where a schedule may change a coefficient."""
        if self.schedules:
            return self.models
        read = {m.model for m in self.needs if isinstance(m, Logp)}
        return tuple((name, start) for name, start in self.models if name in read)

    @property
    def needs(self) -> frozenset[Measure]:
        """All the measures that the parts read."""
        return needs((*self.shaping, *self.advantage, self.credit, *self.mask, self.objective))
