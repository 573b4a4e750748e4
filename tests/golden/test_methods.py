"""Each method from scores to loss and gradient, against an independent transcription of its paper.

`whole_path.py` has the answers and the comparison, and `papers_FAMILY.py` the transcriptions of a family. The tests are
named in the proofs of each `REFERENCE`.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from groupwise.data import Batch, Logp, pack, rollout_of
from groupwise.methods import (
    Method,
    OverlongPenalty,
    cispo,
    dapo,
    dr_grpo,
    gmpo,
    grpo,
    gspo,
    gspo_token,
    luspo,
    published,
    reference_of,
    reinforce_pp,
    rloo,
    sapo,
    vespo,
)
from groupwise.training.loop import compute_advantages
from tests.golden import (
    papers_agents,
    papers_contrast,
    papers_ratio,
    papers_reward,
    papers_rollout,
    papers_start,
    papers_stored,
)
from tests.golden.whole_path import Selects, all_of, check_whole_path, distinct, mixed, not_all_right, right_ones

FAMILIES = (papers_start, papers_ratio, papers_reward, papers_rollout, papers_contrast, papers_agents, papers_stored)
PAPERS = {name: paper for family in FAMILIES for name, paper in family.PAPERS.items()}
VARIANTS = {name: paper for family in FAMILIES for name, paper in family.VARIANTS.items()}


@pytest.mark.parametrize("method", published, ids=[method.__name__ for method in published])
def test_every_method_has_a_golden_test(method: Callable[..., Method]):
    """Its numbers are computed from the paper, not by the library; the test stands in this folder."""
    assert any(proof.startswith("tests/golden/") for proof in reference_of(method).proof_tests)


MIXED = ("asym_grpo", "cispo", "cispo, masked", "dapo", "dapo, complete answers", "dispo", "unlikeliness")
SELECTS: dict[str, Selects] = {
    **dict.fromkeys(MIXED, mixed),
    "dagrpo": distinct,
    "ngrpo": not_all_right,
    "popo": right_ones,
}
"""What each method trains of a group; the others train all verified answers."""

WITHOUT: dict[str, tuple[str, ...]] = {"mdpo": ("outliers",)}
"""What the paper of a method has no reading for. MDPO: beyond 20 its penalty keeps the gradient of the KL."""
WRITTEN = ("dagrpo", "rgr_grpo")
"""Methods that train written answers, beside sampled ones."""


def test_every_transcription_is_a_proof():
    """A variant is named by its method, so that `certify` runs it."""
    proofs = {proof for method in published for proof in reference_of(method).proof_tests}
    path = "tests/golden/test_methods.py::test_whole_path[{}]"
    assert {name for name in PAPERS | VARIANTS if path.format(name) not in proofs} == set()


@pytest.mark.parametrize("name", [*PAPERS, *VARIANTS])
def test_whole_path(name: str):
    paper, method, spread = (PAPERS | VARIANTS)[name]
    check_whole_path(paper, method, spread, SELECTS.get(name, all_of), WITHOUT.get(name, ()), name in WRITTEN)


# The worked numbers of the specifications


def fixture() -> Batch:
    """F0: two answers of three and two tokens with advantages 1 and -1."""
    l = torch.tensor([-0.5, -1.0, -0.2, -1.2, -0.3], dtype=torch.float64)
    r = torch.tensor([1.5, 0.9, 1.0, 0.5, 1.1], dtype=torch.float64)
    batch = pack([rollout_of([1.0, 0.0], lengths=[3, 2], limit=4)])
    a = torch.tensor([1.0, 1.0, 1.0, -1.0, -1.0], dtype=torch.float64)
    return batch.having(logp=l.clone().requires_grad_(), logp_old=l - r.log(), advantage=a)


WORKED = {
    "grpo": (grpo(kl=0.0), 0.041667, [0, 0.15, 0.166667, 0, -0.275]),
    "dr_grpo": (dr_grpo(), 0.15, [0, 0.1125, 0.125, 0, -0.1375]),
    "dapo": (dapo(), 0.256, [0, 0.18, 0.2, 0, -0.22]),
    "gspo": (gspo(low=0.2, high=0.2), 0.152605, [0.184202, 0.184202, 0.184202, 0, 0]),
    "gspo_token": (gspo_token(low=0.2, high=0.2), 0.152605, [0.184202, 0.184202, 0.184202, 0, 0]),
    "luspo": (luspo(low=0.2, high=0.2), 0.857814, [0.552605, 0.552605, 0.552605, 0, 0]),
    "vespo": (vespo(), -0.094074, [0.127552, 0.127552, 0.127552, -0.081843, -0.081843]),
    "cispo": (cispo(cap=1.28), -0.162, [0.256, 0.18, 0.2, -0.1, -0.22]),
    "gmpo": (gmpo(), 0.122253, [0, 0.183866, 0.183866, 0, -0.214673]),
    "sapo": (sapo(), 0.209835, [0.235004, 0.149626, 0.166667, -0.116767, -0.274243]),
}


@pytest.mark.parametrize("name", WORKED)
def test_worked_numbers(name: str):
    method, value, slopes = WORKED[name]
    step = fixture()
    loss = method.objective(method.objective.prepare(step))
    loss.backward()
    assert -float(loss.detach()) == pytest.approx(value, abs=1e-6)
    assert (-step.logp.grad).tolist() == pytest.approx(slopes, abs=1e-6)


@pytest.mark.parametrize(
    ("name", "one_right", "one_wrong"),
    [
        ("grpo", [1.5, -0.5, -0.5, -0.5], [0.5, 0.5, 0.5, -1.5]),
        ("dr_grpo", [0.75, -0.25, -0.25, -0.25], [0.25, 0.25, 0.25, -0.75]),
        ("rloo", [1, -1 / 3, -1 / 3, -1 / 3], [1 / 3, 1 / 3, 1 / 3, -1]),
    ],
    ids=["grpo", "dr_grpo", "rloo"],
)
def test_worked_advantages(name: str, one_right: list[float], one_wrong: list[float]):
    method = {"grpo": grpo, "dr_grpo": dr_grpo, "rloo": rloo}[name]()
    batch = pack([rollout_of(x, lengths=[1] * 4) for x in ([1.0, 0, 0, 0], [1.0, 1, 1, 0], [1.0] * 4)])
    zeros = torch.zeros(batch.tokens, dtype=torch.float64)
    actual = compute_advantages(batch.having(logp_old=zeros, measures={Logp("reference"): zeros}), method).advantage
    assert actual.tolist() == pytest.approx([*one_right, *one_wrong, 0, 0, 0, 0], abs=5e-6)


def test_overlong_table():
    table = {16384: 0.0, 16385: -0.000244, 18432: -0.5, 20480: -1.0, 20481: -1.0}
    batch = pack([rollout_of([0.0] * len(table), lengths=list(table), limit=20480)])
    (overlong,) = (part for part in dapo().shaping if isinstance(part, OverlongPenalty))
    assert overlong(batch.verdict_score, batch).tolist() == pytest.approx(list(table.values()), abs=1e-6)


def test_paper_window_clips_both():
    """The paper's clip range on F0 clips both answers: the correct one above, the wrong one below."""
    step, objective = fixture(), gspo().objective
    loss = objective(objective.prepare(step))
    loss.backward()
    assert -float(loss.detach()) == pytest.approx(0.00035, abs=1e-12)
    assert not step.logp.grad.any()


def test_rloo_gradient_ignores_length():
    """Every token's slope is A / answers, in an answer of one token and in one of eight."""
    method = rloo(kl=0.0)
    step = compute_advantages(pack([rollout_of([1.0, 0.0, 0.0, 0.0], lengths=[1, 8, 2, 3])]), method)
    step = step.having(logp=torch.full((14,), -1.0, dtype=torch.float64, requires_grad=True))
    method.objective(method.objective.prepare(step)).backward()
    expected = [1 / 4] + [-1 / 12] * 13
    assert (-step.logp.grad).tolist() == pytest.approx(expected)


def test_reinforce_pp_worked_credit():
    batch = pack([rollout_of([1.0], lengths=[3]), rollout_of([0.0], lengths=[2])])
    k = torch.tensor([0.1, 0, 0.2, 0.05, -0.05], dtype=torch.float64)
    batch = batch.having(logp_old=k, measures={Logp("reference"): torch.zeros_like(k)})
    actual = compute_advantages(batch, reinforce_pp(kl=0.1)).advantage
    assert actual.tolist() == pytest.approx([0.8025, 0.823453, 0.823453, -1.229941, -1.219464], abs=1e-6)


@pytest.mark.parametrize(
    ("tau", "table"),
    [(1.0, [1.075766, 1.510163, 2, 2.489837, 3.523188]), (1.05, [0.987524, 1.415938, 1.904762, 2.393585, 3.393917])],
)
def test_soft_gate_table(tau: float, table: list[float]):
    r = torch.tensor([1e-12, 0.5, 1, 1.5, 3], dtype=torch.float64)
    batch = pack([rollout_of([1.0] * 5, lengths=[1] * 5)])
    batch = batch.having(logp=r.log(), logp_old=torch.zeros_like(r), advantage=torch.ones_like(r))
    batch = batch.having(logp=r.log().clamp(min=-20))
    gate = replace(sapo().objective.surrogate, tau_positive=tau)
    assert gate(batch).tolist() == pytest.approx(table, abs=1e-6)
