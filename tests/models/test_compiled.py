"""Compiled layers give the same tokens and gradients as plain ones."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from jaxtyping import config

from groupwise.learner import AdamW, Learner, StepPlan
from groupwise.models import Lora, attach
from groupwise.models.decoder import decoder as decoders
from tests.learner.small import backward_pass, model
from tests.learner.test_gradients import OBJECTIVES, close, credited
from tests.rollout.fakes import decoder, engine, generate, prompt_of, request

make = torch.compile


@pytest.fixture
def halves(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Callable[..., Any]]]:
    """What was compiled: into one graph each, without the minute that kernels take to build. No annotation is enforced
    here, since checks cannot be compiled."""
    compiled_halves: list[Callable[..., Any]] = []

    def traced(half: Callable[..., Any], **how: Any) -> Callable[..., Any]:
        compiled_halves.append(half)
        return make(half, backend="aot_eager", fullgraph=True, **how)

    monkeypatch.setattr(torch, "compile", traced)
    monkeypatch.setattr(config, "jaxtyping_disable", True)
    decoders._compiled.cache_clear()
    yield compiled_halves
    decoders._compiled.cache_clear()


def test_the_engine_gives_the_same_tokens(halves) -> None:
    asks = [
        request(i // 3, context=prompt_of(i // 3, 5 + 60 * (i // 3)), stream=(i,), limit=5 + 3 * i) for i in range(6)
    ]
    plain, quick = decoder(), decoder()
    quick.compiled = True
    spans = [generate(engine(it), asks) for it in (plain, quick)]
    assert [s.tokens for s in spans[1]] == [s.tokens for s in spans[0]]
    assert [s.logp for s in spans[1]] == [pytest.approx(s.logp, abs=1e-12) for s in spans[0]]
    assert len(halves) == 2 and not plain.compiled


@pytest.mark.t(5)
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("adapter", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_learner_has_the_same_gradient(halves, recompute: bool, adapter: bool) -> None:
    batch, objective = credited(), OBJECTIVES["tokens"]

    def gradient(compiled: bool) -> torch.Tensor:
        it = model()
        if adapter:
            attach(it, Lora(rank=2, target_modules=("q_proj", "down_proj")), seed=0)
        it.recompute, it.compiled = recompute and compiled, compiled
        learner = Learner(it, optimizer=AdamW(lr=1e-2), steps=10, temperature=0.7)
        backward_pass(learner, objective.prepare(batch), StepPlan((tuple(range(12)), tuple(range(12, 24)))), objective)
        return torch.cat([p.grad.flatten() for p in it.parameters() if p.grad is not None])

    plain = gradient(compiled=False)
    assert not halves and plain.norm() > 1e-3
    assert close(gradient(compiled=True), plain, 1e-12)
    assert len(halves) == 2
