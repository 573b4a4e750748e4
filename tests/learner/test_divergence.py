"""Whole-distribution divergences: value and gradient of dense code, in chunks, in an objective's graph."""

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from groupwise.core import Usage
from groupwise.data import Batch, Divergence, Logp, NeededMeasure, pack
from groupwise.learner import AdamW, FromDirectory, InitialPolicy, Learner, StepPlan
from groupwise.learner.divergence import divergence
from groupwise.methods import Method
from groupwise.models import Decoder, PrefixPacking
from groupwise.objective import KL, Clip, Objective, token_mean
from tests.learner.small import SHAPE, backward_pass, model, ragged
from tests.learner.test_gradients import credited

WHOLE = StepPlan((tuple(range(24)),))
PIECES = StepPlan((tuple(range(7)), tuple(range(7, 16)), tuple(range(16, 24))))
JSD = Divergence("teacher")
ALPHAS = (0.0, 0.3, 0.5, 1.0)


@dataclass(frozen=True, slots=True)
class Distil:
    """The divergence from a teacher as a penalty."""

    measure: Divergence = JSD
    coefficient: float = 0.7
    needs: frozenset[NeededMeasure] = field(init=False, default=frozenset())

    def __post_init__(self) -> None:
        object.__setattr__(self, "needs", frozenset({self.measure}))

    def __call__(self, b: Batch) -> Tensor:
        return self.coefficient * b[self.measure]


@dataclass(frozen=True, slots=True)
class NoSurrogate:
    """A surrogate that ignores log-probs, so that only the penalty has a gradient."""

    unsplit_unit: ClassVar[str] = "token"

    def __call__(self, b: Batch) -> Tensor:
        return torch.zeros_like(b.advantage)


def dense_distributions(decoder: Decoder, batch: Batch) -> Tensor:
    """Log-probs [n, vocabulary] of each token's distribution: one plain forward per sample."""
    rows = []
    for sample in batch.samples:
        if sample.tokens:
            layout = PrefixPacking.of([sample.context], [sample.tokens])
            logits = decoder.head(decoder(layout.tokens, layout))
            rows.append((logits[layout.predicting_indices] / 0.7).log_softmax(-1))
    return torch.cat(rows)


def dense(p: Tensor, q: Tensor, alpha: float) -> Tensor:
    """The definition, term by term."""
    if alpha == 0:
        return (q.exp() * (q - p)).sum(-1)
    if alpha == 1:
        return (p.exp() * (p - q)).sum(-1)
    m = alpha * q.exp() + (1 - alpha) * p.exp()
    return alpha * (q.exp() * (q - m.log())).sum(-1) + (1 - alpha) * (p.exp() * (p - m.log())).sum(-1)


def learner(teacher: Decoder | None = None) -> Learner:
    teacher = model(seed=3) if teacher is None else teacher
    return Learner(
        model(), optimizer=AdamW(lr=1e-2, max_grad_norm=1e9), steps=4, temperature=0.7,
        side_models=(("teacher", FromDirectory("elsewhere")),), from_directories={"teacher": teacher},
    )  # fmt: skip


def gradients(it: Learner, step: StepPlan, objective: Any) -> tuple[Tensor, Batch]:
    batch = backward_pass(it, objective.prepare(credited().take(step.samples)), step, objective).batch
    gradient = torch.cat([p.grad.flatten() for p in it.model.parameters() if p.grad is not None])
    it.optimizer.zero_grad()
    return gradient, batch


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("logits", [17 * 60, 1 << 22])
def test_value_and_gradient_equal_dense_code(alpha: float, logits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("groupwise.learner.compute_measures.divergence", partial(divergence, logits_at_once=logits))
    objective = Objective(surrogate=NoSurrogate(), penalties=(Distil(Divergence("teacher", alpha)),))
    it, plain, teacher = learner(), model(), model(seed=3)
    gradient, batch = gradients(it, PIECES, objective)
    p = dense_distributions(plain, batch)
    expected = dense(p, dense_distributions(teacher, batch).detach(), alpha)
    torch.testing.assert_close(batch[Divergence("teacher", alpha)], expected.detach(), rtol=1e-10, atol=1e-13)
    (0.7 * expected * batch.loss_share).sum().backward()
    direct = torch.cat([x.grad.flatten() for x in plain.parameters() if x.grad is not None])
    assert direct.norm() > 1e-3
    torch.testing.assert_close(gradient, direct, rtol=1e-9, atol=1e-12)


def test_divergence_adds_to_the_gradient_of_the_surrogate() -> None:
    it = learner()
    both = Objective(surrogate=Clip(), penalties=(Distil(),), aggregate=token_mean)
    parts = (replace(both, penalties=()), replace(both, surrogate=NoSurrogate()))
    total, _ = gradients(it, PIECES, both)
    one, two = (gradients(it, PIECES, objective)[0] for objective in parts)
    torch.testing.assert_close(total, one + two, rtol=1e-10, atol=1e-13)


def test_compute_measures_gives_the_numbers_before_the_update_and_the_plain_log_probs() -> None:
    it = learner()
    measures = frozenset({Divergence("teacher", 0.0), Logp("teacher"), Logp("policy")})
    batch = it.compute_measures(pack(ragged()), (PIECES,), measures)
    p, q = (dense_distributions(m, batch).detach() for m in (model(), model(seed=3)))
    torch.testing.assert_close(batch[Divergence("teacher", 0.0)], dense(p, q, 0.0), rtol=1e-10, atol=1e-13)
    assert not batch[Divergence("teacher", 0.0)].requires_grad
    without = it.compute_measures(pack(ragged()), (PIECES,), measures - {Divergence("teacher", 0.0)})
    assert torch.equal(batch.logp_old, without.logp_old) and torch.equal(
        batch[Logp("teacher")], without[Logp("teacher")]
    )


def test_no_chunk_is_larger_than_the_bound() -> None:
    largest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            if isinstance(out, Tensor) and out.ndim == 2 and out.shape[1] == SHAPE.vocabulary_size != len(out) + 1:
                largest = max(largest, out.numel())
            return out

    policy, teacher = model(), model(seed=3)
    hidden = torch.randn(50, SHAPE.hidden_size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    hidden.requires_grad_()
    with Watch():
        divergence(
            policy, hidden, teacher, hidden.detach(), alpha=0.5, temperature=1.0, logits_at_once=600
        ).sum().backward()
    assert 0 < largest <= 600 // 3


def test_a_certain_distribution_gives_finite_numbers() -> None:
    p = torch.tensor([[0.0, -torch.inf], [-0.5, -0.9]], dtype=torch.float64)

    class Head:
        def __call__(self, tokens: Tensor, layout: object) -> Tensor:
            raise AssertionError

        def head(self, rows: Tensor) -> Tensor:
            return rows

    for alpha in ALPHAS:
        x = divergence(Head(), p, Head(), p, alpha=alpha, temperature=1.0)  # pyright: ignore[reportArgumentType]
        torch.testing.assert_close(x, torch.zeros(2, dtype=torch.float64), rtol=0, atol=1e-15)


def test_another_vocabulary_is_refused() -> None:
    it = learner(model(seed=3, shape=replace(SHAPE, vocabulary_size=19)))
    with pytest.raises(Usage, match="same number of logits"):
        it.compute_measures(pack(ragged()), (WHOLE,), frozenset({Divergence("teacher")}))
    with pytest.raises(ValueError, match=r"alpha.* is 2"):
        Divergence("teacher", 2.0)


def test_a_method_computes_it_before_the_steps_only_for_parts_outside_the_loss() -> None:
    models = (("teacher", InitialPolicy()), ("reference", InitialPolicy()))
    objective = Objective(penalties=(Distil(), KL(0.1)))
    method = Method(objective=objective, models=models)
    assert method.needs_before_steps == {Logp("reference")} and Divergence("teacher") in method.needs
    assert dict(method.models_in_use) == dict(models)
    shaped = replace(method, shaping=(*method.shaping, Distil()))
    assert Divergence("teacher") in shaped.needs_before_steps
    with pytest.raises(ValueError, match="the model 'teacher'"):
        replace(method, models=models[1:])
