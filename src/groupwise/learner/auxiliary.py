"""Auxiliary losses: terms of the loss beside the objective, such as the load balancing of a mixture of experts."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from groupwise.data import Batch
from groupwise.learner.distributed import Ranks, SingleProcess
from groupwise.learner.forward import TokenStates
from groupwise.learner.gradient_lane_sums import order_of
from groupwise.learner.routing import RoutedForward
from groupwise.models import PrefixPacking

__all__ = ["AuxiliaryLoss", "RouterBalance"]


@dataclass(frozen=True, slots=True, eq=False)
class ForwardResult:
    """The results of a microbatch's forward pass.

    `token_states`, `logp` and the logits in `routed_forward` carry gradients.

    `token_states` are the hidden states of a language model; None for another policy. `compute_values` computes the
    values of a value model, by its name, in the graph.
    """

    batch: Batch
    token_states: TokenStates | None
    logp: Float[Tensor, " n"]
    routed_forward: RoutedForward | None
    compute_values: Callable[[str], Float[Tensor, " n"]]


@dataclass(frozen=True, slots=True, eq=False)
class AuxiliaryLossInputs:
    """An auxiliary loss's input: the microbatches of one optimizer step on all ranks, before their forward passes.

    There are none if no auxiliary loss of the step reads them (`reads_step`). Divisors must count the whole step.
    `route_recorder` creates the recorder of expert choices of one forward; None for a dense model. A loss that forwards
    the microbatches itself forwards those `of_rank`, and adds its numbers with `process_ranks.add`.
    """

    model: Any
    step_microbatches: Sequence[Batch]
    route_recorder: Callable[[], RoutedForward | None]
    process_ranks: Ranks = SingleProcess()  # noqa: RUF009

    @property
    def of_rank(self) -> list[Batch]:
        """The microbatches that this rank computes."""
        return [
            self.step_microbatches[i]
            for i in order_of(self.process_ranks, self.process_ranks.rank, len(self.step_microbatches))
        ]


Term = Callable[[ForwardResult], Float[Tensor, ""]]


@runtime_checkable
class AuxiliaryLoss(Protocol):
    """A term added to the objective's loss, such as a critic's loss. Its field `coefficient`, if any, scales it.

    The call prepares the constants of a step, without gradient. It returns the function of a forwarded microbatch; the
    values of all microbatches of a step must add up to the step's term. With `needs_router_logits = True` the routers'
    logits are kept. With the class variable `reads_step = False` the call does not read the step's microbatches, and
    each rank gets only those that it computes.
    """

    __slots__ = ()

    @abstractmethod
    def __call__(self, step: AuxiliaryLossInputs) -> Term: ...


def coefficient_of(loss: AuxiliaryLoss) -> float:
    """The factor with which an auxiliary loss is added to the objective's loss; 1 by default."""
    return getattr(loss, "coefficient", 1.0)


@dataclass(frozen=True, slots=True)
class RouterBalance(AuxiliaryLoss):
    """The load-balancing loss of a mixture of experts. Switch, arXiv:2101.03961, equations 4 to 6.

    The configuration of Qwen3-MoE calls its coefficient `router_aux_loss_coef`. Every token that a sample's log-probs
    depend on counts once for that sample, its prompt's tokens, too. Steps of several microbatches are forwarded once
    more to count the load.
    """

    needs_router_logits: ClassVar[bool] = True
    metric: ClassVar[str] = "routing/balance"

    coefficient: float = 0.001

    def __post_init__(self) -> None:
        if not 0 <= self.coefficient < float("inf"):
            raise ValueError(f"coefficient is {self.coefficient}\ntake a coefficient of at least 0, such as 0.001")

    def __call__(self, step: AuxiliaryLossInputs) -> Term:
        samples = [s for b in step.step_microbatches for s in b.samples]
        tokens = sum(len(s.context) + len(s.tokens) - 1 for s in samples if s.tokens)
        several = len(step.step_microbatches) > 1
        load = torch.stack([_load(step, b) for b in step.of_rank]).sum(0) if several else None
        if load is not None:
            step.process_ranks.add([load])

        def term(forwarded: ForwardResult) -> Float[Tensor, ""]:
            routed = forwarded.routed_forward
            assert routed is not None, "a balanced model has routers"
            if not len(routed.uses):
                return forwarded.logp.new_zeros(())
            return routed.balance(routed.load() if load is None else load, tokens)

        return term


@torch.no_grad()
def _load(step: AuxiliaryLossInputs, microbatch: Batch) -> Float[Tensor, "routers count"]:
    """The number of tokens that each expert gets in a microbatch, by an extra forward pass without gradient."""
    routed = step.route_recorder()
    assert routed is not None, "a balanced model has routers"
    samples, device = microbatch.samples, microbatch.index_in_sample.device
    contexts, tokens, contents = ([getattr(s, name) for s in samples] for name in ("context", "tokens", "content_hash"))
    routed(step.model, microbatch, PrefixPacking.of(contexts, tokens, contents=contents, device=device))
    return routed.load()
