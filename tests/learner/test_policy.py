"""The learner trains any `Policy`: it asks for measures and never looks at a head."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from groupwise.core import Usage
from groupwise.data import Batch, Entropy, Logp, NeededMeasure, Policy, pack
from groupwise.learner import AdamW, Learner, StepPlan
from groupwise.learner.side_models import InitialPolicy
from tests.learner.small import backward_pass, model, ragged


@dataclass(frozen=True)
class Distance:
    """A measure that only `Table` computes: the squared difference of log-probs from a side model, in the graph."""

    in_graph: ClassVar[bool] = True

    model: str = "reference"


class Table(nn.Module):
    """A policy without hidden states: one logit per token of the vocabulary, whatever the context."""

    def __init__(self, omitted: str = "") -> None:
        super().__init__()
        self.logits, self.omitted = nn.Parameter(torch.linspace(-1, 1, 17, dtype=torch.float64)), omitted

    def measure(
        self, batch: Batch, wanted: Sequence[NeededMeasure], side_models: Mapping[str, Any]
    ) -> dict[NeededMeasure, Tensor]:
        tokens = [s.tokens[i] for s in batch.samples for i, trained in enumerate(s.trained) if trained]
        distribution = torch.distributions.Categorical(logits=self.logits)
        logp = distribution.log_prob(torch.tensor(tokens, dtype=torch.long))
        numbers: dict[NeededMeasure, Tensor] = {
            Logp("policy"): logp,
            Entropy(): distribution.entropy().detach().expand(len(logp)),
        }
        for name, other in side_models.items():
            numbers[Logp(name)] = other.measure(batch, [Logp("policy")], {})[Logp("policy")].detach()
            numbers[Distance(name)] = (logp - numbers[Logp(name)]).square()
        return {m: numbers[m] for m in wanted if type(m).__name__ != self.omitted}


@dataclass(frozen=True)
class Loss:
    """Half of the loss is in the log-probs, half in a measure of the policy."""

    needs = frozenset({Distance()})

    def prepare(self, step: Batch) -> Batch:
        return step

    def __call__(self, microbatch: Batch) -> Tensor:
        return (microbatch[Distance()] - microbatch.logp).sum()


def table_learner(policy: nn.Module) -> Learner:
    return Learner(policy, optimizer=AdamW(lr=0.1), steps=4, side_models=[("reference", InitialPolicy())])


WHOLE = StepPlan((tuple(range(24)),))
PIECES = StepPlan((tuple(range(10)), tuple(range(10, 24))))


def test_gradients_flow_through_log_probs_and_measures_of_any_policy() -> None:
    batch = pack(ragged())
    learner = table_learner(Table())
    with torch.no_grad():
        learner.models["reference"].logits.mul_(0.5)
    loss = backward_pass(learner, batch, PIECES, Loss()).microbatch_sums.loss
    policy, reference = Table(), Table()
    with torch.no_grad():
        reference.logits.mul_(0.5)
    numbers = policy.measure(batch, [Logp("policy"), Distance()], {"reference": reference})
    expected = (numbers[Distance()] - numbers[Logp("policy")]).sum()
    expected.backward()
    assert loss == pytest.approx(expected.item())
    torch.testing.assert_close(learner.model.logits.grad, policy.logits.grad, rtol=1e-12, atol=1e-12)


def test_measures_are_columns_in_the_order_of_the_batch() -> None:
    batch, shuffled = pack(ragged()), StepPlan((tuple(reversed(range(12))), tuple(range(12, 24))))
    measured = table_learner(Table()).compute_measures(
        batch, [shuffled], frozenset({Logp("policy"), Logp("reference")})
    )
    expected = Table().measure(batch, [Logp("policy")], {})[Logp("policy")].detach()
    assert torch.equal(measured.logp_old, expected) and torch.equal(measured[Logp("reference")], expected)


def test_a_policy_that_omits_a_measure_is_an_error_with_its_name() -> None:
    with pytest.raises(Usage, match="the policy Table does not compute Distance"):
        backward_pass(table_learner(Table(omitted="Distance")), pack(ragged()), WHOLE, Loss())


def test_a_language_model_names_a_measure_that_it_cannot_compute() -> None:
    learner = Learner(model(), optimizer=AdamW(), steps=1)
    with pytest.raises(Usage, match="Distance"):
        learner.compute_measures(pack(ragged()), [WHOLE], frozenset({Distance("policy")}))


def test_a_language_model_is_no_policy_itself() -> None:
    assert isinstance(Table(), Policy) and not isinstance(model(), Policy)
    with pytest.raises(AssertionError, match="a model is a policy"):
        Learner(nn.Linear(2, 2), optimizer=AdamW(), steps=1)
