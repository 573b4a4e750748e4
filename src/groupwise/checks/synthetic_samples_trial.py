"""A trial of a method's formulas on synthetic samples: columns, advantages, loss and gradient."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from groupwise.data import Batch, Subscore, in_graph, needs
from groupwise.methods import Method
from groupwise.training.loop import OLD_LOGP, compute_advantages


def with_columns(batch: Batch, method: Method, states: Mapping[str, Any]) -> Batch:
    """The batch with made-up log-probs and measures, as far as the method needs them, and its states."""
    logp = -torch.linspace(0.1, 1.1, batch.tokens, dtype=torch.float64)
    return batch.having(
        # A single step has no old log-probs, unless a component declares that it needs them.
        logp_old=logp if OLD_LOGP in method.needs or method.old_logprobs == "engine" else None,
        measures={measure: logp.clone() for measure in method.needs if not isinstance(measure, Subscore)},
        method_states=states,
    )


def backward(step: Batch, method: Method) -> tuple[Batch, Tensor, list[Tensor]]:
    """The prepared step, its loss, and the gradient of each column that the loss reads, by token."""
    logp = -torch.linspace(0.1, 1.1, step.tokens, dtype=torch.float64)
    leaves = {m: (-logp).requires_grad_() for m in needs(method.objective) if in_graph(m)}
    step = method.objective.prepare(step).having(logp_old=logp, logp=logp.clone().requires_grad_(), measures=leaves)
    loss = method.objective(step)
    loss.backward()
    return step, loss, [x.grad for x in (step.logp, *leaves.values()) if x is not None and x.grad is not None]


def trained_roles(method: Method, batch: Batch) -> set[str]:
    """The roles of the samples at which the loss of the batch has a gradient."""
    states = {name: part.init() for name, part in method.states}
    step, _, gradients = backward(compute_advantages(with_columns(batch, method, states), method), method)
    trained = sum((x.abs() for x in gradients), start=torch.zeros(step.tokens, dtype=torch.float64)) > 0
    return {step.samples[i].role for i in step.sequences.index[trained].unique().tolist()}
