"""Training an adapter: its gradient by the chain rule, a reference without a copy of the base, its state."""

import pytest
import torch

from groupwise.data import Logp
from groupwise.learner import AdamW, InitialPolicy, Learner, StepPlan
from groupwise.models import Decoder, Lora, attach, merge
from tests.learner.small import model
from tests.learner.test_gradients import OBJECTIVES, credited

pytest.importorskip("peft", reason="adapters need peft: pip install 'groupwise[lora]'")
LORA = Lora(rank=3, alpha=6.0, target_modules=("q_proj", "o_proj", "up_proj"))
PLAN = StepPlan((tuple(range(6)), tuple(range(6, 12)), tuple(range(12, 24))))


def adapted(dtype: torch.dtype = torch.float64, *, taught: bool = True) -> Decoder:
    it = model(dtype)
    attach(it, LORA, seed=0)
    draws = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for name, weight in it.named_parameters():
            if taught and "lora_B" in name:
                weight.copy_(torch.randn(weight.shape, generator=draws, dtype=torch.float64) * 0.1)
    return it


def learner(it: Decoder) -> Learner:
    side_models = (("reference", InitialPolicy()),)
    return Learner(it, optimizer=AdamW(lr=1e-2), steps=10, temperature=0.7, side_models=side_models)


def gradients(it: Decoder) -> dict[str, torch.Tensor]:
    """Gradients of a whole step, computed by the learner."""
    mine = learner(it)
    batch = credited()
    whole = OBJECTIVES["tokens"].prepare(batch.take(PLAN.samples))
    mine._backward(mine._share(whole, PLAN, "none", ()), OBJECTIVES["tokens"], "none", ())
    return {name: w.grad for name, w in it.named_parameters() if w.grad is not None}


def test_the_adapters_gradient_follows_from_the_merged_weights_by_the_chain_rule() -> None:
    """`W + s B A`: dB = s dW A^T and dA = s B^T dW, with dW from the merged model."""
    it, whole = adapted(), adapted()
    merge(whole)
    found, dense, scale = gradients(it), gradients(whole), LORA.alpha / LORA.rank
    weights = dict(it.named_parameters())
    layers = {name.removesuffix(".lora_A.default.weight") for name in found if "lora_A" in name}
    assert len(layers) == 6 and len(found) == 12  # only the adapter has a gradient
    for layer in layers:
        a, b = (weights[f"{layer}.lora_{matrix}.default.weight"].detach() for matrix in "AB")
        slope = dense[f"{layer}.weight"]
        for matrix, expected in (("A", scale * b.T @ slope), ("B", scale * slope @ a.T)):
            got = found[f"{layer}.lora_{matrix}.default.weight"]
            assert got.abs().max() > 1e-6 and (got - expected).abs().max() < 1e-12


@pytest.mark.parametrize("taught", (False, True))
def test_the_reference_is_the_initial_policy_and_shares_the_base(taught: bool) -> None:
    plain, it = model(), adapted(taught=taught)
    mine, batch = learner(it), credited()
    reference = frozenset({Logp("reference")})
    before = mine.compute_measures(batch, [PLAN], reference).measures[Logp("reference")]
    if not taught:  # a fresh adapter gives the base's logits, bit by bit
        other = learner(plain).compute_measures(batch, [PLAN], reference).measures[Logp("reference")]
        assert torch.equal(before, other)
    for _ in range(2):
        assert not mine.step(batch, PLAN, OBJECTIVES["tokens"]).skip_reason
    after = mine.compute_measures(batch, [PLAN], reference | {Logp("policy")})
    assert torch.equal(after.measures[Logp("reference")], before)
    assert after.logp_old is not None and (after.logp_old - before).abs().max() > 1e-4
    own = {w.data_ptr(): w.numel() for w in mine.models["reference"].parameters()}
    for weight in it.parameters():
        own.pop(weight.data_ptr(), None)
    assert sum(own.values()) == sum(w.numel() for w in it.parameters() if w.requires_grad)


def test_state_holds_the_adapters_and_resumes_with_equal_bits() -> None:
    first, batch = learner(adapted(torch.bfloat16)), credited(dtype=torch.float32)
    for _ in range(2):
        first.step(batch, PLAN, OBJECTIVES["tokens"])
    tensors, state = first.state()
    assert all("lora_" in name or name.startswith("optimizer.") for name in tensors)
    again = learner(adapted(torch.bfloat16, taught=False))
    again.restore({name: x.clone() for name, x in tensors.items()}, state)
    for it in (first, again):
        it.step(batch, PLAN, OBJECTIVES["tokens"])
    theirs = again.state()[0]
    assert all(torch.equal(x, theirs[name]) for name, x in first.state()[0].items())
    with pytest.raises(AssertionError, match="another model"):
        again.restore({name: x for name, x in tensors.items() if "q_proj" not in name}, state)
