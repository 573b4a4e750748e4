"""`Method`: all components and numbers of a training method, in one dataclass."""

from dataclasses import dataclass, field
from typing import Literal

from groupwise.advantages import every_token
from groupwise.core import InvalidValue, check_types
from groupwise.data import (
    Advantage,
    Credit,
    Curriculum,
    Filter,
    Mask,
    MethodState,
    NeededMeasure,
    Return,
    Shaping,
    Strategy,
    in_batch,
    in_graph,
    needs,
    side_models_of,
)
from groupwise.learner import AuxiliaryLoss, RouterReplay, SideModel, ValueModel
from groupwise.methods.preference_checks import check_preference
from groupwise.methods.schedule_input import ScheduleInput
from groupwise.methods.schedules import Schedule, StateValue, with_value
from groupwise.methods.side_model_checks import check_side_models, value_targets
from groupwise.methods.strategy_checks import check_curriculum, check_group_size
from groupwise.models import DenoisingSettings, UnmaskingSettings
from groupwise.objective import Objective
from groupwise.rewards import Score, everything
from groupwise.rollout import Independent, Shuffled

__all__ = ["Method"]

MOST_SAMPLES = 1 << 16
"""The most samples of a group."""
FIXED = ("curriculum", "trained_roles", "unverifiable", "denoise", "unmask", "models", "states", "schedules")
"""Fields of a method that cannot have a schedule, since a run reads them only at its start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A training method: all its components and numbers, from the choice of prompts to the gradient. Hashable.

    An epoch of an iteration has `minibatches` optimizer steps, and an iteration has `epochs` epochs, shuffled by
    `prompts` or by `samples`. `max_refills` is the number of extra sampling rounds that replace filtered prompts.
    `old_logprobs` selects the old log-probs: those of the `learner`, computed again, or of the `engine`, as it sampled.
    `unverifiable` answers are excluded from statistics, sums and divisors, count as wrong, or drop their group.
    `denoise` is set for a flow policy, whose tokens are denoising steps, and None for a language model.
    `unmask` is set for a masked policy, whose tokens are commits of symbols and the knobs of its schedule.
    `trained_roles` lists the roles of samples that are trained. Filters, curricula and metrics read the answers only.
    `auxiliary` are losses beside the objective, and `router_replay` reuses recorded experts in mixtures of experts.
    `models` are the side models, and `states` its states over iterations, as pairs of a name and a value.
    `schedules` are pairs of a dotted path to a constant and a `Schedule`.
    """

    group_size: int = 8
    curriculum: Curriculum = Shuffled()  # noqa: RUF009
    strategy: Strategy = Independent()  # noqa: RUF009
    denoise: DenoisingSettings | None = field(default=None, metadata={"written_if_set": True})
    unmask: UnmaskingSettings | None = field(default=None, metadata={"written_if_set": True})
    trained_roles: tuple[str, ...] = ("answer",)
    filter: Filter = everything
    max_refills: int = field(default=0, metadata={"printed_with": "filter"})
    unverifiable: Literal["exclude", "wrong", "drop_group"] = "exclude"
    shaping: tuple[Shaping, ...] = (Score(),)
    advantage: tuple[Advantage, ...] = ()
    credit: Credit = every_token
    mask: tuple[Mask, ...] = ()
    objective: Objective = Objective()  # noqa: RUF009
    auxiliary: tuple[AuxiliaryLoss, ...] = ()
    minibatches: int = 1
    shuffle: Literal["prompts", "samples"] = "prompts"
    epochs: int = 1
    old_logprobs: Literal["learner", "engine"] = "learner"
    router_replay: RouterReplay = "none"
    models: tuple[tuple[str, SideModel], ...] = ()
    states: tuple[tuple[str, MethodState], ...] = ()
    schedules: tuple[tuple[str, Schedule], ...] = ()

    def __post_init__(self) -> None:
        check_types(self)
        for name, least in (("group_size", 1), ("max_refills", 0), ("minibatches", 1), ("epochs", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}: needs at least {least}")
        if self.group_size > MOST_SAMPLES:
            raise ValueError(f"group_size is {self.group_size}\nuse at most {MOST_SAMPLES}")
        if "answer" not in self.trained_roles:
            raise ValueError(
                f"trains, the roles of trained samples, is {self.trained_roles}: the role answer is missing\n"
                'add "answer" to method.trained_roles'
            )
        if not self.shaping:
            raise ValueError('shaping is empty: its first component creates the reward\nset method.shaping = ["Score"]')
        if "policy" in dict(self.models):
            raise ValueError(
                "models has an entry called policy, which is the name of the model under training\nrename the entry"
            )
        check_side_models(self.models, self.needs)
        value_targets(self.models, self.credit)
        check_curriculum(self.curriculum, self.strategy, self.max_refills, self.old_logprobs)
        check_group_size(self.group_size, self.curriculum, self.strategy)
        check_preference(self.objective.surrogate)
        early = [m for m in needs(self.filter) if isinstance(m, Return) or not in_batch(m)]
        if early:
            why = f"the filter needs {early[0]}, and a filter runs before the learner computes measures"
            raise ValueError(f"{why}\nuse a filter that needs Subscore or Mark only: these exist before learning")
        if self.group_size == 1 and any(getattr(a, "group_relative", False) for a in (*self.advantage, self.credit)):
            why = "group_size is 1 and the advantage compares samples of a group: every advantage would be 0"
            raise ValueError(f"{why}\nset group_size to 2 or more")
        for path, schedule in self.schedules:
            if path.partition(".")[0] in FIXED:
                raise ValueError(
                    f"a schedule cannot change {path}: a run reads it once, at its start\nremove the schedule"
                )
            if isinstance(schedule, StateValue) and schedule.state_name not in dict(self.states):
                why = f"the schedule of {path} reads state {schedule.state_name!r}, which method.states does not define"
                raise ValueError(f'{why}\nset method.states = {{ {schedule.state_name} = "AdaptiveKL" }}')
        if self.old_logprobs == "engine" and self.objective.weights:
            why = (
                'old_logprobs = "engine": ratios already correct the engine-learner gap; weights would correct it twice'
            )
            raise ValueError(f'{why}\nremove objective.weights, or set method.old_logprobs = "learner"')
        if self.old_logprobs == "engine" and self.router_replay == "learner":
            why = 'old_logprobs = "engine": without old log-probs, router_replay = "learner" has nothing to replay'
            raise ValueError(f'{why}\nset method.router_replay = "engine", or method.old_logprobs = "learner"')

    def at(self, now: ScheduleInput) -> "Method":
        """The method with the current number in place of each schedule. `InvalidValue` if a field refuses it."""
        method = self
        for path, schedule in self.schedules:
            value = schedule(now)
            try:
                method = with_value(method, path, value)
            except ValueError as error:
                what = f"at iteration {now.iteration} the schedule of {path} returns {value:g}, which is refused"
                fix = f"change method.schedules: {path} must be valid at each iteration"
                raise InvalidValue(what, evidence=str(error), fix=fix) from error
        return method

    @property
    def models_in_use(self) -> tuple[tuple[str, SideModel], ...]:
        """The extra models (reference, teacher, critic) that the components need; with schedules, all of them."""
        if self.schedules:
            return self.models
        names = side_models_of(self.needs)
        return tuple((name, model) for name, model in self.models if name in names)

    @property
    def needs(self) -> frozenset[NeededMeasure]:
        """The measures, such as reference log-probs, that the method's components need."""
        states = (state for _, state in self.states)
        credits = (self.credit, *(target for _, target in self.value_targets))
        losses = (self.objective, *self.auxiliary_losses)
        return needs((self.filter, *self.shaping, *self.advantage, *credits, *self.mask, *losses, *states))

    @property
    def auxiliary_losses(self) -> tuple[AuxiliaryLoss, ...]:
        """All losses besides the objective: those in `auxiliary`, and the losses of the value models (critics)."""
        return (*self.auxiliary, *(model.loss for _, model in self.models if isinstance(model, ValueModel)))

    @property
    def value_targets(self) -> tuple[tuple[str, Credit], ...]:
        """For each value model (critic), by name: the credit estimator, such as GAE, whose returns it learns."""
        return value_targets(self.models, self.credit)

    @property
    def needs_before_steps(self) -> frozenset[NeededMeasure]:
        """The measures (such as reference log-probs) to compute before the first step, not in the loss's forward."""
        loss = needs((self.objective.surrogate, self.objective.penalties))
        others = (*self.shaping, *self.advantage, self.credit, *self.mask, self.objective.weights)
        return self.needs - {m for m in loss - needs((*others, self.objective.aggregate)) if in_graph(m)}
