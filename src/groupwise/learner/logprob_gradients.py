"""The gradient of the loss with respect to each token's log-prob, with which the model's backward pass starts."""

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor, zeros_like

from groupwise.data import Batch, NeededMeasure

__all__ = ["token_gradients"]


@runtime_checkable
class Loss(Protocol):
    """An objective for the learner: `prepare` computes constants of the whole step; the call, a microbatch's loss."""

    def prepare(self, step: Batch) -> Batch: ...

    def __call__(self, microbatch: Batch) -> Float[Tensor, ""]: ...


def token_gradients(
    objective: Loss, microbatch: Batch, logp: Float[Tensor, " n"], live: Mapping[NeededMeasure, Tensor]
) -> tuple[Float[Tensor, ""], list[Float[Tensor, " n"]]]:
    """The loss of a prepared step's microbatch, and its gradient for each token's `logp` and each measure in `live`.

    `logp` are the log-probs under the current policy, `live` the measures in its graph, such as a divergence. Without
    old log-probs in the microbatch, they equal `logp`: its first ratio is 1.

    >>> import torch
    >>> from groupwise.data import rollout_of, pack
    >>> from groupwise.objective import Objective
    >>> step = pack([rollout_of([1.0, 0.0], lengths=[1, 1])]).having(advantage=torch.tensor([1.0, -1.0]))
    >>> token_gradients(Objective(), Objective().prepare(step), torch.tensor([-1.0, -2.0]), {})[1]
    [tensor([-0.5000,  0.5000])]
    """
    leaves = [x.detach().requires_grad_() for x in (logp, *live.values())]
    old = microbatch.logp_old if microbatch.logp_old is not None else logp.detach()
    loss = objective(microbatch.having(logp=leaves[0], logp_old=old, measures=dict(zip(live, leaves[1:]))))
    loss.backward()
    assert any(leaf.grad is not None for leaf in leaves), "a loss depends on log-probs or measures in the graph"
    return loss.detach(), [zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves]
