"""A scalar to new weights: read what formulas need, forward microbatch by microbatch, step, remember."""

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from groupwise.data import Backbone, Batch, Entropy, Logp, Measure, Memory
from groupwise.learner.forward import forward
from groupwise.learner.optimizer import AdamW, Optimizer
from groupwise.learner.plan import StepPlan
from groupwise.learner.routing import RoutedForward, Routing, StepRouting, mixture
from groupwise.learner.side_models import InitialPolicy
from groupwise.models import Decoder, logprob_dtype

__all__ = ["NO_TOKEN", "Learner", "StepResult"]

M = TypeVar("M", bound=torch.nn.Module)
PLAIN = Routing()
OLD = Logp("policy")
NO_TOKEN = "no token is trained"
"""Why a step was skipped whose tokens were all masked."""


@runtime_checkable
class Loss(Protocol):
    """What the learner knows of an objective: constants of the whole step, then a scalar a microbatch."""

    def prepare(self, step: Batch) -> Batch: ...

    def __call__(self, microbatch: Batch) -> Float[Tensor, ""]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """One optimizer step as it happened. `batch` is the whole step with the log-probs it was taken at, without graph.

    `skipped` says why the weights were left alone: empty where they moved. Of `choices` of experts `changed` are
    not the old policy's; `balance` is the load-balancing loss, without its coefficient.
    """

    batch: Batch
    loss: float
    grad_norm: float
    grad_norm_clipped: float
    learning_rate: float
    skipped: str = ""
    changed: int = 0
    choices: int = 0
    balance: float = 0.0


class Learner:
    """A model under training: the only owner of weights, optimizer and side_models. It never sees a method's name.

    `steps` is how many optimizer steps the run will have, for the schedule of its rate; `version` counts publications.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        *,
        optimizer: AdamW,
        steps: int,
        temperature: float = 1.0,
        side_models: Sequence[tuple[str, InitialPolicy]] = (),
        memory: Sequence[tuple[str, Memory]] = (),
    ) -> None:
        assert isinstance(model, Backbone), "a model is a torch module with a head"
        if isinstance(model, Decoder):
            model.model.adds_in_place = True
        self.model = model
        self.steps = steps
        self.temperature = temperature
        self.optimizer = Optimizer((p for p in model.parameters() if p.requires_grad), optimizer)
        self.models = {name: _frozen(model) for name, _ in side_models}
        self.memory = tuple(memory)
        self.memories: dict[str, Any] = {name: part.init() for name, part in self.memory}
        self.steps_taken = 0
        self.version = 0

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of its log-probs: at least float32, whatever the weights have."""
        return logprob_dtype(next(self.model.parameters()).dtype)

    def weights(self) -> dict[str, Tensor]:
        """The policy's tensors themselves, not copies."""
        return dict(self.model.state_dict())

    @torch.no_grad()
    def compute_measures(
        self, batch: Batch, plan: Sequence[StepPlan], measures: frozenset[Measure], routing: Routing = PLAIN
    ) -> Batch:
        """The batch with old log-probs and measures, computed on the microbatches of `plan` (see `ahead`).

        `measures` without `Logp("policy")` and `Entropy()` leaves the policy's own forward out. With it goes a
        mixture's choice of experts, which is written down unless the engine's is followed.
        """
        batch = batch.to(self.device).having(memory=dict(self.memories))
        own = bool(measures & {OLD, Entropy()})
        models = sorted(m.model for m in measures if isinstance(m, Logp) and m.model != "policy")
        order = [i for step in plan for i in step.samples]
        columns: dict[Measure, list[Tensor]] = {measure: [] for measure in (OLD, Entropy(), *map(Logp, models))}
        experts, routes = mixture(self.model), list(batch.routes)
        for microbatch in (microbatch for step in plan for microbatch in step.microbatches):
            part = batch.take(microbatch)
            if own:
                trip = RoutedForward(experts, follow=routing.replay == "engine") if experts else None
                logp, entropy = forward(self.model, part, temperature=self.temperature, through=trip)
                columns[OLD].append(logp)
                columns[Entropy()].append(entropy)
                if trip is not None and routing.replay != "engine":
                    for i, lines in zip(microbatch, trip.written()):
                        routes[i] = lines
            for name in models:
                columns[Logp(name)].append(forward(self.models[name], part, temperature=self.temperature)[0])
        back = _places(batch, order)
        found = {measure: torch.cat(parts)[back] for measure, parts in columns.items() if parts}
        return batch.having(logp_old=found.pop(OLD, batch.logp_old), measures=found, routes=tuple(routes))

    def step(self, batch: Batch, step: StepPlan, objective: Loss, routing: Routing = PLAIN) -> StepResult:
        """One optimizer step on these samples. A gradient that is not finite leaves the weights alone."""
        whole = objective.prepare(batch.take(step.samples))
        settings = self.optimizer.settings
        rate = settings.rate(self.steps_taken, self.steps)
        loss, seen, traffic = self._backward(whole, step, objective, routing)
        norm = float(torch.nn.utils.get_total_norm(self.optimizer.gradients))
        skipped = ""
        if not math.isfinite(loss) or not math.isfinite(norm):
            skipped = "loss or gradient is not finite"
        elif not whole.tokens:
            skipped = NO_TOKEN
        else:
            self.optimizer.step(rate, norm)
            self.steps_taken += 1
        self.optimizer.forget()
        return StepResult(
            batch=seen,
            loss=loss,
            grad_norm=norm,
            grad_norm_clipped=min(norm, settings.clip),
            learning_rate=rate,
            skipped=skipped,
            changed=traffic.changed,
            choices=traffic.choices,
            balance=traffic.balance,
        )

    def _backward(
        self, whole: Batch, step: StepPlan, objective: Loss, routing: Routing = PLAIN
    ) -> tuple[float, Batch, StepRouting]:
        """Accumulate gradients by microbatch; return the loss, the step with its log-probs, and its routing."""
        parts = _microbatches(whole, step)
        traffic = StepRouting(self.model, routing, parts)
        losses: list[Tensor] = []
        logps, entropies = [], []
        for part in parts:
            trip = traffic.forward_pass()
            logp, entropy = forward(self.model, part, temperature=self.temperature, through=trip)
            old = part.logp_old if part.logp_old is not None else logp.detach()
            leaf = logp.detach().requires_grad_()
            scalar = objective(part.having(logp=leaf, logp_old=old))
            scalar.backward()
            assert leaf.grad is not None, "a loss depends on its log-probs"
            beside = traffic.add(trip)
            # Every microbatch runs its backward pass, also with a zero gradient: under FSDP a backward pass gathers and
            # reduces weights, so ranks that decide by their own gradients would wait for each other for ever.
            roots, slopes = ([logp], [leaf.grad]) if beside is None else ([logp, beside], [leaf.grad, None])
            torch.autograd.backward(roots, slopes)
            self.optimizer.gather()
            losses += [scalar.detach()] if beside is None else [beside.detach(), scalar.detach()]
            logps.append(logp.detach())
            entropies.append(entropy)
        loss = sum(map(float, losses), start=0.0)  # once a step: on a GPU each reading waits for all that was launched
        logp = torch.cat(logps)
        old = whole.logp_old if whole.logp_old is not None else logp
        return loss, whole.having(logp=logp, logp_old=old, measures={Entropy(): torch.cat(entropies)}), traffic

    def _own(self, model: torch.nn.Module) -> dict[str, Tensor]:
        """The tensors of the policy, or of a model beside it, that a run may change."""
        weights = self.model.named_parameters(remove_duplicate=False)  # a tied one under each of its names
        frozen = {name for name, weight in weights if not weight.requires_grad}
        return {name: x for name, x in model.state_dict().items() if name not in frozen}

    def remember(self, batch: Batch, stats: Mapping[str, float]) -> None:
        """After an iteration's last step: what the method's memories make of it."""
        self.memories = {name: part(self.memories[name], batch, stats) for name, part in self.memory}

    def publish(self) -> int:
        """A new version number for the weights as they stand."""
        self.version += 1
        return self.version

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and JSON from which `restore` goes on to the bit. What is frozen stays where it was read from."""
        tensors = {f"policy.{name}": x for name, x in self._own(self.model).items()}
        for name, model in self.models.items():
            tensors |= {f"beside.{name}.{key}": x for key, x in self._own(model).items()}
        tensors |= {f"optimizer.{name}": x for name, x in self.optimizer.state().items()}
        return tensors, {"taken": self.steps_taken, "version": self.version, "memories": self.memories}

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        places = [("policy.", self.model), *((f"beside.{name}.", model) for name, model in self.models.items())]
        for prefix, model in places:
            given, own = _under(prefix, tensors), self._own(model)
            assert given.keys() == own.keys(), "a checkpoint of another model"
            for name, x in own.items():
                x.copy_(given[name])
        self.optimizer.restore(_under("optimizer.", tensors))
        self.steps_taken, self.version = state["taken"], state["version"]
        self.memories = dict(state["memories"])


def _frozen(model: M) -> M:
    """The model as it stands, never to change. Weights that are not trained are shared, not copied."""
    shared = {id(weight): weight for weight in model.parameters() if not weight.requires_grad}
    return copy.deepcopy(model, shared).requires_grad_(False)


def _microbatches(whole: Batch, step: StepPlan) -> list[Batch]:
    """The microbatches of a step's own batch."""
    if len(step.microbatches) == 1:
        return [whole]
    ends = list(accumulate(map(len, step.microbatches)))
    return [whole.take(range(end - len(microbatch), end)) for microbatch, end in zip(step.microbatches, ends)]


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): x for name, x in tensors.items() if name.startswith(prefix)}


def _places(batch: Batch, order: Sequence[int]) -> Tensor:
    """Where each token of the batch stands in the concatenation of its samples in `order`."""
    numbers = torch.arange(batch.tokens, device=batch.place.device)
    dealt = batch.having(place=numbers).take(order).place
    return torch.empty_like(dealt).scatter_(0, dealt, numbers)
