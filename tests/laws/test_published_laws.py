"""Laws of every published method on its whole path, taken from `published`: a new method needs no line here.

`test_objective_laws.py` compares the parts with a loop over tokens. Here each method computes its own advantages from
made-up verdicts, and its loss obeys the laws that need no second implementation.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from groupwise.advantages import WhitenedTokens
from groupwise.certificates.proofs import OF_EVERY_METHOD
from groupwise.data import Batch, Subscore, in_graph, unsplit_unit, with_fields
from groupwise.methods import Method, ScheduleInput, published, reinforce_pp_baseline
from groupwise.objective import Objective, complete, positive_advantage
from groupwise.training.loop import compute_advantages
from tests.laws.batches import step_of

LAYOUT = [[3, 5, 2, 7], [4, 1, 0], [6, 2, 9, 1], [2]]
EACH = pytest.mark.parametrize("publish", published, ids=[method.__name__ for method in published])
Publish = Callable[..., Method]


def whole_path(publish: Publish, layout: Sequence[Sequence[int]], seed: int = 0) -> tuple[Method, Batch]:
    """A method, and a batch with every measure, subscore and memory that its parts need."""
    method = publish()
    states = {name: part.init() for name, part in method.states}
    method = method.at(ScheduleInput(0, 10, states))
    parts = sorted(m.name for m in method.needs if isinstance(m, Subscore))
    batch = step_of(layout, seed=seed, subscores=parts)
    rng = np.random.default_rng(seed + 3)
    others = [m for m in method.needs if m not in batch.measures and not isinstance(m, Subscore)]
    numbers = {m: torch.from_numpy(-rng.random(batch.tokens)) for m in sorted(others, key=repr)}
    measures = {m: x.requires_grad_() if in_graph(m) else x for m, x in numbers.items()}
    return method, batch.having(measures=measures, method_states=states)


def credited(publish: Publish, layout: Sequence[Sequence[int]], seed: int = 0) -> tuple[Objective, Batch]:
    """The objective of a method, and a step with the advantages of the method, prepared."""
    method, batch = whole_path(publish, layout, seed)
    step = compute_advantages(batch, method)
    return method.objective, method.objective.prepare(step)


def gradients(loss: Tensor, step: Batch) -> list[Tensor]:
    """The gradient of a loss for every number that the policy computes."""
    leaves = [step.logp, *(x for m, x in step.measures.items() if in_graph(m))]
    found = torch.autograd.grad(loss, leaves, allow_unused=True, retain_graph=True)
    return [torch.zeros_like(leaf) if x is None else x for leaf, x in zip(leaves, found)]


def close(a: Tensor, b: Tensor, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def units(objective: Objective, step: Batch) -> list[list[int]]:
    """The samples that a microbatch must not part."""
    match unsplit_unit(objective):
        case "token" | "sequence":
            return [[i] for i in range(len(step))]
        case "group":
            groups = step.groups.index.tolist()
            return [[i for i, g in enumerate(groups) if g == group] for group in sorted(set(groups))]
    return [list(range(len(step)))]


@EACH
def test_the_method_moves_the_policy(publish: Publish) -> None:
    """Without the group of one answer: a bundle of prompts has as many draws as its smallest group has answers."""
    objective, step = credited(publish, LAYOUT[:3])
    assert any(bool(x.any()) for x in gradients(objective(step), step))


@EACH
def test_microbatches_add_up_to_the_step(publish: Publish) -> None:
    for seed in range(2):
        objective, step = credited(publish, LAYOUT, seed)
        whole = objective(step)
        dealt: list[list[int]] = [[], [], []]
        for i, unit in zip(np.random.default_rng(seed).integers(0, 3, len(step)), units(objective, step)):
            dealt[i] += unit
        total = torch.stack([objective(step.take(microbatch)) for microbatch in dealt]).sum()
        close(total, whole)
        for x, y in zip(gradients(total, step), gradients(whole, step)):
            close(x, y)


@EACH
def test_a_step_or_a_microbatch_without_tokens_gives_0(publish: Publish) -> None:
    objective, step = credited(publish, LAYOUT)
    assert objective(step.take([])).item() == 0
    objective, step = credited(publish, [[0, 0], [0, 0]])
    assert objective(step).item() == 0


@EACH
def test_the_order_of_samples_in_a_group_does_not_matter(publish: Publish) -> None:
    for seed in range(2):
        method, batch = whole_path(publish, LAYOUT, seed)
        groups = batch.groups.index.tolist()
        order = [i for g in sorted(set(groups)) for i in reversed([i for i, x in enumerate(groups) if x == g])]
        plain, permuted = (compute_advantages(b, method) for b in (batch, batch.take(order)))
        first, second = (method.objective(method.objective.prepare(step)) for step in (plain, permuted))
        close(second, first)
        for x, y in zip(gradients(second, batch), gradients(first, batch)):
            close(x, y)


def test_every_law_is_a_proof_of_every_method() -> None:
    tests = {name: law for name, law in globals().items() if name.startswith("test_")}
    laws = {name for name, law in tests.items() if EACH.mark in getattr(law, "pytestmark", ())}
    named = {proof.rpartition("::")[2] for proof in OF_EVERY_METHOD if "test_published_laws" in proof}
    assert laws == named


WHITENED = [m for m in published if any(isinstance(part, WhitenedTokens) for part in with_fields(m().credit))]


@pytest.mark.parametrize("publish", WHITENED, ids=[method.__name__ for method in WHITENED])
def test_whitening_sees_the_tokens_that_a_mask_keeps(publish: Publish) -> None:
    """Overlong filtering takes truncated answers out of the loss, and so out of the statistics over tokens."""
    method, batch = whole_path(publish, LAYOUT)
    step = compute_advantages(batch, replace(method, mask=(complete,)))
    assert 0 < step.tokens < batch.tokens
    ddof = next(part.ddof for part in with_fields(method.credit) if isinstance(part, WhitenedTokens))
    assert float(step.advantage.mean()) == pytest.approx(0, abs=1e-12)
    assert float(step.advantage.std(correction=ddof)) == pytest.approx(1, rel=1e-6)


def test_a_mask_that_reads_the_advantage_sees_it_after_credit() -> None:
    method, batch = whole_path(reinforce_pp_baseline, LAYOUT)
    whole = compute_advantages(batch, method).advantage
    kept = compute_advantages(batch, replace(method, mask=(positive_advantage,))).advantage
    assert torch.equal(kept, whole[whole > 0]) and 0 < len(kept) < len(whole)


@EACH
def test_float32_gives_the_loss_of_float64(publish: Publish) -> None:
    objective, step = credited(publish, LAYOUT)
    columns = {name: getattr(step, name).detach().float() for name in ("logp", "logp_old", "logp_engine")}
    half = step.having(**columns, measures={m: x.detach().float() for m, x in step.measures.items()})
    close(objective(objective.prepare(half)).double(), objective(step).detach(), 1e-4)
