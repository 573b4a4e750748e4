"""What the engines of flow policies and of masked policies share: bits without other samples, and keyed numbers."""

from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch

from groupwise.engines.steps.denoising import DenoisingEngine
from groupwise.engines.steps.unmasking import UnmaskingEngine
from groupwise.models import find_model, read_model
from tests.rollout import test_denoiser, test_unmasking
from tests.rollout.fakes import generate

ENGINES: dict[ModuleType, Any] = {test_denoiser: DenoisingEngine, test_unmasking: UnmaskingEngine}
PACKAGED = {test_denoiser: ("quilts", (0, 1, 2, 0), 8), test_unmasking: ("beads", (0, 2, 3), 64)}
"""A packaged model of each kind, the words of a prompt, and the limit of its answers."""
kinds = pytest.mark.parametrize("kind", ENGINES, ids=["flow", "masked"])


@kinds
@pytest.mark.parametrize("n", [1, 15, 16, 40])
@pytest.mark.parametrize("packaged", [False, True])
def test_other_samples_change_no_bit(kind: Any, n: int, packaged: bool) -> None:
    torch.set_num_threads(1)
    policy, request, extra = kind.policy_with(), kind.REQUEST, kind.others(n)
    if packaged:
        name, words, limit = PACKAGED[kind]
        policy = read_model(find_model(name))
        assert type(policy) is type(kind.policy_with())
        first = getattr(policy.shape, "first_word", kind.FIRST)
        context = tuple(first + word for word in words)
        request, *extra = (replace(r, context=context, limit=limit) for r in (request, *extra))
    among = generate(ENGINES[kind](policy, seed=0), [*extra[: n // 2], request, *extra[n // 2 :]])[n // 2]
    assert kind.bits(among) == kind.bits(kind.alone(policy, request))


@kinds
def test_samples_wait_for_rows_and_change_no_bit(kind: Any) -> None:
    requests, least = [kind.REQUEST, *kind.others(20)], {test_denoiser: 2, test_unmasking: 16}[kind]
    few, many = (
        generate(ENGINES[kind](kind.policy_with(), seed=0, max_num_seqs=rows), requests) for rows in (least, 256)
    )
    assert list(map(kind.bits, few)) == list(map(kind.bits, many))
    assert len({generation.actions for generation in many}) > 10


@kinds
def test_random_numbers_are_keyed_by_seed_purpose_draw_and_stream(kind: Any) -> None:
    policy, request = kind.policy_with(), kind.REQUEST
    first = kind.alone(policy).actions
    changed = [replace(request, random_purpose=4), replace(request, draw_id=6), replace(request, stream=(3,))]
    assert all(kind.alone(policy, other).actions != first for other in changed)
    assert kind.alone(policy, seed=1).actions != first and kind.alone(policy).actions == first
