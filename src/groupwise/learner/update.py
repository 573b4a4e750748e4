"""The learner: compute measures, run forward and backward per microbatch, take the optimizer step."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, pairwise
from types import MappingProxyType
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from groupwise.core import Usage
from groupwise.data import (
    Backbone,
    Batch,
    Entropy,
    Ids,
    Logp,
    MethodState,
    NeededMeasure,
    Policy,
    in_batch,
    in_graph,
    name_of,
    needs,
)
from groupwise.learner.auxiliary import AuxiliaryLoss, AuxiliaryLossInputs, ForwardResult, Term, coefficient_of
from groupwise.learner.compute_measures import reads_policy
from groupwise.learner.distributed import Ranks, ReplicatedRanks, SingleProcess
from groupwise.learner.forward import TokenStates
from groupwise.learner.gathered_weights import GatheredWeights
from groupwise.learner.gradient_lane_sums import LaneSums, joined
from groupwise.learner.language_policy import LanguagePolicy, policy_of
from groupwise.learner.logprob_gradients import Loss, token_gradients
from groupwise.learner.microbatch_sharing import MicrobatchSharing, RankShare, key_of_measure, readable
from groupwise.learner.microbatch_sums import MicrobatchSums
from groupwise.learner.microbatches import StepPlan
from groupwise.learner.optimizer import AdamW, Optimizer
from groupwise.learner.routing import (
    RoutedForward,
    RouterReplay,
    StepRouting,
    joined_routes,
    mixture,
    routes_of_samples,
)
from groupwise.learner.side_models import FollowingWeights, SideModel
from groupwise.learner.value_model import Critic, ValueModel
from groupwise.models import Decoder, PrefixPacking, logprob_dtype, logprobs

__all__ = ["NO_TOKEN", "Learner", "StepResult"]

OLD = Logp("policy")
MEASURES, STEP, END = "measures", "step", "end_iteration"
"""What a message of rank 0 says to do."""
POLICY = "policy."
"""The prefix of the policy's tensors in a checkpoint."""
NO_TOKEN = "no token is trained"
"""The reason that is recorded for a skipped step if a mask removed all its tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """The result of one optimizer step. `batch` is the step, or this rank's part of it, with new log-probs, detached.

    `skip_reason` is the reason why the weights did not change, empty if they did. `changed_route_count` of
    `route_count` expert choices differ from the old policy's. `auxiliary_losses` are the auxiliary losses by their
    metric, without their coefficients. `logp_gradient` is `d loss / d logp` of each token of `batch`, without the
    auxiliary losses.
    """

    batch: Batch
    loss: float
    grad_norm: float
    grad_norm_clipped: float
    learning_rate: float
    skip_reason: str = ""
    changed_route_count: int = 0
    route_count: int = 0
    auxiliary_losses: Mapping[str, float] = field(default_factory=dict)
    logp_gradient: Float[Tensor, " n"] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class MicrobatchResult:
    """The results of one microbatch: columns and `d loss / d logp` per token, and its packed `MicrobatchSums`."""

    token_measures: Mapping[NeededMeasure, Float[Tensor, " n"]]
    logp_gradient: Float[Tensor, " n"]
    packed_sums: Float[Tensor, " k"]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class TakenStep:
    """An optimizer step on one rank: the columns per token, sums and norms of all microbatches."""

    token_measures: Mapping[NeededMeasure, Float[Tensor, " n"]]
    logp_gradient: Float[Tensor, " n"]
    microbatch_sums: MicrobatchSums
    grad_norm: float
    learning_rate: float
    critic_norms: Mapping[str, float]
    skip_reason: str


class Learner:
    """Trains the policy. It holds the weights, the optimizer and the extra models (reference, teacher, critic).

    `steps` is the number of optimizer steps of the run, for the learning-rate schedule. `version` counts the weights
    that were published. `from_directories` are the side models that were read from directories; the others start as
    copies of `model`. With several `ranks`, each one has a learner, and rank 0 has the batch: its `compute_measures`,
    `step` and `end_iteration` send the other ranks a message, which they pass to `follow`. Each computes its own
    microbatches; every rank has the losses and gradients of the whole step. `ranks` may be replaced by others with
    equal lanes. With `optimizer_offload` the policy's moments and masters are on the device only from an iteration's
    first step to `end_iteration`.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        *,
        optimizer: AdamW,
        steps: int,
        temperature: float = 1.0,
        side_models: Sequence[tuple[str, SideModel]] = (),
        from_directories: Mapping[str, torch.nn.Module] = MappingProxyType({}),
        states: Sequence[tuple[str, MethodState]] = (),
        ranks: Ranks = SingleProcess(),  # noqa: B008
        optimizer_offload: bool = False,
    ) -> None:
        assert isinstance(model, Policy | Backbone), "a model is a policy, or a language model with a head"
        self._whole = model
        self._dtypes = {name: x.dtype for name, x in model.state_dict().items()}
        self.model = ranks.held(model)
        self.ranks = ranks
        if isinstance(self.model, Decoder):
            self.model.model.adds_in_place = True
        self.steps = steps
        self.temperature = temperature
        trained = (p for p in self.model.parameters() if p.requires_grad)
        self.optimizer = Optimizer(trained, optimizer, ranks, offload=optimizer_offload)
        self.models = {
            name: ranks.held(from_directories[name]) if name in from_directories else self._started(part)
            for name, part in side_models
        }
        self._critics = {name: it for name, it in self.models.items() if isinstance(it, Critic)}
        self._from_directories = frozenset(from_directories)
        self._following = {
            name: FollowingWeights(
                part, self._trained_tensors(self.models[name]), self._trained_tensors(self.model), self._dtypes
            )
            for name, part in side_models
            if not (getattr(part, "frozen", False) or name in self._critics)
        }
        if ranks.shards and ranks.rank:
            self._whole = model.to("meta")  # its weights are on no rank but 0
        self.states = tuple(states)
        self.method_states: dict[str, Any] = {name: part.init() for name, part in self.states}
        self.steps_taken = 0
        self.version = 0

    @property
    def ranks(self) -> Ranks:
        """The processes that share the work."""
        return self._ranks

    @ranks.setter
    def ranks(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self.sharing = MicrobatchSharing(ranks, self.model)

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of log-probs: the dtype of the weights, but at least float32."""
        return logprob_dtype(next(self.model.parameters()).dtype)

    def weights(self, names: Sequence[str] = ()) -> Mapping[str, Tensor]:
        """The policy's tensors themselves, not copies. Sharded ones are gathered into the model that rank 0 was given.

        If that is on the meta device, `GatheredWeights` gathers them when they are looked up. With shards, all ranks
        take part: rank 0 sends the others a message with the `names` of weights, with which they call this.
        """
        if not names and self.ranks.shards and next(self._whole.parameters()).is_meta:
            return GatheredWeights(self._whole.state_dict(), self.weights, self.score)
        return self.ranks.weights(self.model, self._whole, names)

    @torch.no_grad()
    def score(self, context: Ids, tokens: Ids) -> tuple[float, ...]:
        """The log-prob of each token after those before it, by a language model at temperature 1.

        With shards, all ranks take part: rank 0 sends the others a message with the tokens.
        """
        if isinstance(self.ranks, ReplicatedRanks) and self.ranks.shards and not self.ranks.rank:
            self.ranks.send(json.dumps({"do": "score", "context": context, "tokens": tokens}).encode() + b"\n")
        assert isinstance(self.model, Backbone), "a language model has log-probs of tokens"
        layout = PrefixPacking.of([context], [tokens], device=self.device)
        hidden = self.model(layout.tokens, layout)[layout.predicting_indices]
        logp = logprobs(self.model.head(hidden), 1.0).gather(-1, layout.target_tokens[:, None])[:, 0]
        self.ranks.release([self.model])
        return tuple(logp.tolist())

    def _started(self, part: SideModel) -> torch.nn.Module:
        """Create an extra model at the start of a run: a value model, or a copy of the policy without gradients."""
        if not isinstance(part, ValueModel):
            return self.ranks.copied(self._whole, frozen=getattr(part, "frozen", False)).requires_grad_(False)
        if not isinstance(self._whole, Backbone):
            why = f"a value model reads hidden states, and {type(self._whole).__name__} is not a language model"
            raise Usage(why, fix="use a method without a value model, or compute its values in the policy's measure()")
        own = self.ranks.copied(self._whole, frozen=not part.trains_trunk) if part.trunk == "own" else None
        return Critic(part, self.model, own, self.ranks)

    @torch.no_grad()
    def compute_measures(
        self, batch: Batch, plan: Sequence[StepPlan], measures: frozenset[NeededMeasure], replay: RouterReplay = "none"
    ) -> Batch:
        """The batch with old log-probs and other `measures` (numbers per token), computed in the order of `plan`.

        The policy is forwarded only if `measures` has `Logp("policy")`, `Entropy()` or another measure of its
        distribution. That forward also records a mixture's choice of experts, unless the engine's choice is replayed.
        """
        batch = batch.to(self.device).having(method_states=dict(self.method_states))
        wanted = sorted((m for m in measures if not in_batch(m)), key=repr)
        forwards_policy = any(map(reads_policy, wanted))
        if forwards_policy:
            wanted = [OLD, Entropy(), *(m for m in wanted if m not in (OLD, Entropy()))]
        microbatches = [microbatch for step in plan for microbatch in step.microbatches]
        self.sharing.forget()
        if not (wanted and microbatches):
            return batch
        names = [key_of_measure(measure) for measure in wanted]
        share = self.sharing.hand_out(batch, microbatches, do=MEASURES, wanted=names, replay=replay)
        columns, routes = self._measure(share, wanted, replay)
        order = [i for microbatch in microbatches for i in microbatch]
        back = _indices_after(batch, order)
        values = {measure: torch.cat(parts)[back] for measure, parts in columns.items()}
        lines = dict(zip(order, routes_of_samples(routes, [batch.samples[i] for i in order]))) if routes else {}
        return batch.having(
            logp_old=values.pop(OLD, batch.logp_old), measures=values,
            routes=tuple(lines.get(i, known) for i, known in enumerate(batch.routes)),
        )  # fmt: skip

    @torch.no_grad()
    def _measure(
        self, share: RankShare, wanted: Sequence[NeededMeasure], replay: RouterReplay
    ) -> tuple[dict[NeededMeasure, list[Tensor]], list[Tensor]]:
        """The measures of all microbatches, and their routes if a mixture's choice of experts is recorded."""
        columns: dict[NeededMeasure, list[Tensor]] = {measure: [] for measure in wanted}
        experts = mixture(self.model)
        records = OLD in wanted and experts is not None and replay != "engine"
        lines: list[list[tuple[bytes, ...]]] = []
        for part in share.microbatches:
            routed = RoutedForward(experts, replay=replay == "engine") if experts else None
            numbers = self._measured(self._policy(routed), part, wanted)
            for measure, column in columns.items():
                column.append(numbers[measure])
            if records and routed is not None:
                lines.append(routed.encoded_routes())
        self.ranks.release([self.model, *self.models.values()])
        every = {m: joined(self.ranks, parts, share.token_counts) for m, parts in columns.items()}
        routes = joined_routes(self.ranks, experts, lines, share.position_counts) if records and experts else []
        return every, routes

    def follow(
        self, header: Mapping[str, Any], tensors: Mapping[str, Tensor], objective: Loss,
        auxiliary: Sequence[AuxiliaryLoss] = (), measures: Iterable[NeededMeasure] = (),
    ) -> None:  # fmt: skip
        """Do this rank's share of a call on rank 0, whose message is `header` and `tensors`.

        `measures` are all that rank 0 may ask for or send. `BadData` for a message that cannot be read.
        """
        if header["do"] == END:
            self.end_iteration()
            return
        known = {OLD, Entropy(), *measures}
        share = self.sharing.received(header, tensors, known, self.method_states)
        if header["do"] == MEASURES:
            names = {key_of_measure(measure): measure for measure in known}
            with readable():
                wanted = [names[name] for name in header["wanted"]]
            self._measure(share, wanted, header["replay"])
        else:
            self._take_step(share, objective, header["replay"], auxiliary)

    def _policy(self, routed: RoutedForward | None = None) -> Policy:
        """The model as a `Policy` for one forward pass."""
        return policy_of(self.model, temperature=self.temperature, routed=routed)

    def _measured(self, policy: Policy, part: Batch, wanted: Sequence[NeededMeasure]) -> Mapping[NeededMeasure, Tensor]:
        """The policy's log-probs and other measures of a microbatch. `Usage` if one is missing or has a wrong shape."""
        numbers = policy.measure(part, wanted, self.models)
        for measure in wanted:
            if measure not in numbers or numbers[measure].shape != part.index_in_sample.shape:
                shape = f"shape {tuple(numbers[measure].shape)}" if measure in numbers else "nothing"
                raise Usage(
                    f"the policy {type(self.model).__name__} does not compute {measure}",
                    evidence=f"measure() returned {shape} for it, and the batch has {part.tokens} tokens",
                    fix="return one number per token for each wanted measure, or remove the component that needs it",
                )
        return numbers

    def step(
        self,
        batch: Batch,
        step: StepPlan,
        objective: Loss,
        replay: RouterReplay = "none",
        auxiliary: Sequence[AuxiliaryLoss] = (),
    ) -> StepResult:
        """Take one optimizer step. The weights stay if loss or gradient is not finite, or no token is trained."""
        whole = objective.prepare(batch.take(step.samples))
        share = self._share(whole, step, replay, auxiliary)
        taken = self._take_step(share, objective, replay, auxiliary)
        sums, norm = taken.microbatch_sums, taken.grad_norm
        measures = dict(taken.token_measures)
        logp = measures.pop(OLD)
        old = whole.logp_old if whole.logp_old is not None else logp
        return StepResult(
            batch=whole.having(logp=logp, logp_old=old, measures=measures),
            loss=sums.loss,
            grad_norm=norm,
            grad_norm_clipped=min(norm, self.optimizer.settings.max_grad_norm),
            learning_rate=taken.learning_rate,
            skip_reason=taken.skip_reason,
            changed_route_count=sums.changed_route_count,
            route_count=sums.route_count,
            auxiliary_losses={**sums.auxiliary_losses, **taken.critic_norms},
            logp_gradient=taken.logp_gradient,
        )

    def _share(
        self, whole: Batch, step: StepPlan, replay: RouterReplay, auxiliary: Sequence[AuxiliaryLoss]
    ) -> RankShare:
        """Rank 0's microbatches of a step's prepared batch. The other ranks are sent theirs."""
        microbatches = [range(*ends) for ends in pairwise(accumulate(map(len, step.microbatches), initial=0))]
        to_all = any(getattr(part, "reads_step", True) for part in terms_of(auxiliary))
        return self.sharing.hand_out(whole, microbatches, to_all=to_all, do=STEP, replay=replay)

    def _take_step(
        self, share: RankShare, objective: Loss, replay: RouterReplay, auxiliary: Sequence[AuxiliaryLoss]
    ) -> TakenStep:
        """Take one optimizer step with this rank's microbatches, prepared, and those of the other ranks."""
        self.optimizer.load()
        rate = self.optimizer.settings.rate(self.steps_taken, self.steps)
        measures, gradient, sums = self._backward(share, objective, replay, auxiliary)
        norm = self.optimizer.norm()
        critic_norms = {name: critic.optimizer.norm() for name, critic in self._critics.items()}
        skipped = ""
        if not all(map(math.isfinite, (sums.loss, norm, *critic_norms.values()))):
            skipped = "loss or gradient is not finite"
        elif not sum(share.token_counts):
            skipped = NO_TOKEN
        else:
            self.optimizer.step(rate, norm)
            for name, critic in self._critics.items():
                critic.step(self.steps_taken, self.steps, critic_norms[name])
            self.steps_taken += 1
            self._update_side_models(per_iteration=False)
        for optimizer in self._optimizers():
            optimizer.zero_grad()
        return TakenStep(
            token_measures=measures, logp_gradient=gradient, microbatch_sums=sums, grad_norm=norm, learning_rate=rate,
            critic_norms={f"value/{name}/grad_norm": x for name, x in critic_norms.items()}, skip_reason=skipped,
        )  # fmt: skip

    def end_iteration(self) -> None:
        """Call it after an iteration's last step: side models that follow the policy once an iteration are updated."""
        self.sharing.tell(do=END)
        self._update_side_models(per_iteration=True)
        self.optimizer.unload()

    def _update_side_models(self, *, per_iteration: bool) -> None:
        for weights in self._following.values():
            if weights.per_iteration == per_iteration:
                weights.update(self.steps_taken)

    def _backward(
        self, share: RankShare, objective: Loss, replay: RouterReplay, auxiliary: Sequence[AuxiliaryLoss]
    ) -> tuple[dict[NeededMeasure, Tensor], Tensor, MicrobatchSums]:
        """Accumulate gradients by microbatch. Returns measures, `d loss / d logp` and sums of the whole step."""
        terms = terms_of(auxiliary)
        keep_logits = any(getattr(part, "needs_router_logits", False) for part in terms)
        step_routing = StepRouting(self.model, replay, keep_logits=keep_logits)
        forwards = AuxiliaryLossInputs(self.model, share.step_microbatches, step_routing.forward_pass, self.ranks)
        prepared = [(coefficient_of(part), part(forwards)) for part in terms]
        lane_sums = LaneSums(self._optimizers(), self.ranks)
        computed: list[MicrobatchResult] = []
        for part in share.microbatches:
            computed.append(self._compute(part, objective, step_routing, prepared))
            for optimizer in self._optimizers():
                optimizer.gather()
            lane_sums.add_microbatch()
        lane_sums.finish()
        self.ranks.release([self.model, *self.models.values()])
        sizes = share.token_counts
        columns = {
            m: joined(self.ranks, [x.token_measures[m] for x in computed], sizes) for m in computed[0].token_measures
        }
        gradient = torch.cat(joined(self.ranks, [x.logp_gradient for x in computed], sizes))
        counts = [len(computed[0].packed_sums)] * len(sizes)
        names = [getattr(part, "metric", f"auxiliary/{name_of(part)}") for part in terms]
        packed = joined(self.ranks, [x.packed_sums for x in computed], counts)
        sums = sum((MicrobatchSums.unpack(names, row) for row in packed), start=MicrobatchSums())
        return {measure: torch.cat(parts) for measure, parts in columns.items()}, gradient, sums

    def _compute(
        self, part: Batch, objective: Loss, step_routing: StepRouting, prepared: Sequence[tuple[float, Term]]
    ) -> "MicrobatchResult":
        """Forward and backward of one microbatch. `prepared` are coefficient and function of each auxiliary loss."""
        routed = step_routing.forward_pass()
        policy = self._policy(routed)
        live = sorted(filter(in_graph, needs(objective)), key=repr)
        numbers = self._measured(policy, part, [OLD, Entropy(), *live])
        logp, graph = numbers[OLD], {measure: numbers[measure] for measure in live}
        loss, gradients = token_gradients(objective, part, logp, graph)
        states = policy.states if isinstance(policy, LanguagePolicy) else None
        forwarded = ForwardResult(part, states, logp, routed, partial(self._values, part, states))
        values = [term(forwarded) for _, term in prepared]
        added = [coefficient * x for (coefficient, _), x in zip(prepared, values, strict=True)]
        in_graph_terms = [x for x in added if x.requires_grad]
        # Every microbatch runs its backward pass, also with a zero gradient: under FSDP a backward pass gathers and
        # reduces weights, so ranks that decide by their own gradients would wait for each other for ever.
        torch.autograd.backward([logp, *graph.values(), *in_graph_terms], [*gradients, *(None for _ in in_graph_terms)])
        in_loss = [x if x.requires_grad else torch.zeros_like(x) for x in added]
        return MicrobatchResult(
            token_measures={measure: numbers[measure].detach() for measure in (OLD, Entropy(), *live)},
            logp_gradient=gradients[0],
            packed_sums=MicrobatchSums.pack(values, [*in_loss, loss], step_routing.choices_of(routed)),
        )

    def _values(self, part: Batch, states: TokenStates | None, name: str) -> Float[Tensor, " n"]:
        """A critic's values for a microbatch, with gradient."""
        assert states is not None, "the policy of a value model is a language model"
        return self._critics[name].values(part, lambda: states)

    def _optimizers(self) -> list[Optimizer]:
        """The optimizers of the policy and of the trained critics."""
        return [self.optimizer, *(critic.optimizer for critic in self._critics.values())]

    def _trained_tensors(self, model: torch.nn.Module) -> dict[str, Tensor]:
        """This rank's tensors of the policy, or of another model, without those that are frozen in the policy."""
        return {name: self.ranks.local(x) for name, x in _unfrozen(model.state_dict(), self.model).items()}

    def _rounded(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors in the dtype in which the policy computes with them: themselves, or copies of sharded rows."""
        return {name: x.to(self._dtypes[name]) for name, x in tensors.items()}

    def _saved_models(self) -> dict[str, dict[str, Tensor]]:
        """The tensors of the extra models, by name prefix, for a checkpoint; without models read from directories."""
        exact = {name: weights.exact for name, weights in self._following.items()}
        names = [name for name in self.models if name not in self._from_directories and name not in self._critics]
        saved = {f"models.{name}.": exact.get(name) or self._trained_tensors(self.models[name]) for name in names}
        for name, critic in self._critics.items():
            if critic.trunk is not None:
                saved[f"value_models.{name}.trunk."] = self._rounded(self._trained_tensors(critic.trunk))
            head = critic.head.state_dict()
            saved[f"value_models.{name}.head."] = {key: self.ranks.local(x) for key, x in head.items()}
            saved[f"value_models.{name}.optimizer."] = critic.optimizer.state()
        return saved

    def remember(self, batch: Batch, stats: Mapping[str, float]) -> None:
        """Update the method's states (such as an adaptive KL coefficient) after an iteration's last step."""
        self.method_states = {name: part(self.method_states[name], batch, stats) for name, part in self.states}

    def publish(self) -> int:
        """Increase and return the version number of the weights, before they are loaded into the engine."""
        self.version += 1
        return self.version

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and JSON to restore bit for bit, without models from directories and the policy's frozen weights.

        With shards, the tensors are the rows that this rank holds; those without rows are equal on all ranks.
        """
        tensors = {f"{POLICY}{name}": x for name, x in self._rounded(self._trained_tensors(self.model)).items()}
        for model, weights in self._saved_models().items():
            tensors |= {f"{model}{name}": x for name, x in weights.items()}
        tensors |= {f"optimizer.{name}": x for name, x in self.optimizer.state().items()}
        return tensors, {"taken": self.steps_taken, "version": self.version, "memories": self.method_states}

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Copy the tensors and values of `state()` back. The tensors are whole; this rank copies the rows it holds.

        Sharded rows of half-precision weights are the masters, which come with the optimizers.
        """
        for prefix, current in {POLICY: self._trained_tensors(self.model), **self._saved_models()}.items():
            _copy_saved(_WithPrefix(prefix, tensors), current, self.ranks)
        for weights in self._following.values():
            weights.round()
        self.optimizer.restore(_WithPrefix("optimizer.", tensors))
        self.steps_taken, self.version = state["taken"], state["version"]
        self.method_states = dict(state["memories"])


def terms_of(auxiliary: Sequence[AuxiliaryLoss]) -> list[AuxiliaryLoss]:
    """The auxiliary losses whose coefficient is not 0."""
    return [part for part in auxiliary if coefficient_of(part)]


@torch.no_grad()
def restore_policy(model: torch.nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy the policy's tensors from a checkpoint to the model. AssertionError if they are another model's."""
    _copy_saved(policy_tensors(tensors), _unfrozen(model.state_dict(), model))


def policy_tensors(tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """The policy's tensors of a checkpoint, by their names in the model."""
    return _WithPrefix(POLICY, tensors)


def _unfrozen(tensors: Mapping[str, Tensor], policy: torch.nn.Module) -> dict[str, Tensor]:
    """The tensors without those that are frozen in the policy."""
    weights = policy.named_parameters(remove_duplicate=False)  # a tied weight under each of its names
    frozen = {name for name, weight in weights if not weight.requires_grad}
    return {name: x for name, x in tensors.items() if name not in frozen}


def _copy_saved(saved: Mapping[str, Tensor], current: Mapping[str, Tensor], ranks: Ranks = SingleProcess()) -> None:  # noqa: B008
    assert saved.keys() == current.keys(), "a checkpoint of another model"
    for name, x in current.items():
        x.copy_(ranks.shard(saved[name], x))


class _WithPrefix(Mapping[str, Tensor]):
    """The tensors whose names start with a prefix, without it. Each is read from `tensors` when it is needed."""

    def __init__(self, prefix: str, tensors: Mapping[str, Tensor]) -> None:
        self._prefix, self._tensors = prefix, tensors

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[f"{self._prefix}{name}"]

    def __iter__(self) -> Iterator[str]:
        return (name.removeprefix(self._prefix) for name in self._tensors if name.startswith(self._prefix))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _indices_after(batch: Batch, order: Sequence[int]) -> Tensor:
    """For each token of the batch, its index in the concatenation of the samples in the order `order`."""
    indices = torch.arange(batch.tokens, device=batch.index_in_sample.device)
    permuted = batch.having(index_in_sample=indices).take(order).index_in_sample
    return torch.empty_like(permuted).scatter_(0, permuted, indices)
