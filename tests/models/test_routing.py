"""Routes of one forward: recorded, replayed, and with gradients for the routers."""

import copy
from pathlib import Path

import pytest
import torch

from groupwise.models import ChosenExperts, MixtureOfExpertsSizes, PrefixPacking, experts_of, outline
from groupwise.models.decoder.transformers_model import TransformersBackbone
from tests.models.directories import directory
from tests.models.mixtures import mixture, routers
from tests.models.plain import PROMPT, made

TEXT = PrefixPacking.of([PROMPT[:20], PROMPT[:20]], [PROMPT[20:40], PROMPT[50:60]])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TransformersBackbone:
    return mixture(tmp_path_factory.mktemp("mixture"))


def read(model: TransformersBackbone, routes: ChosenExperts | None = None) -> torch.Tensor:
    return model(TEXT.tokens, TEXT, routes)


def elsewhere(experts: MixtureOfExpertsSizes, seed: int = 5) -> torch.Tensor:
    """Experts for every token, distinct within a router and drawn at random."""
    draws = torch.Generator().manual_seed(seed)
    scores = torch.rand(len(TEXT.tokens), experts.router_count, experts.expert_count, generator=draws)
    return scores.topk(experts.experts_per_token).indices.to(torch.int16)


def written(model: TransformersBackbone) -> ChosenExperts:
    assert model.experts is not None
    read(model, routes := ChosenExperts(model.experts))
    return routes


def test_replaying_a_models_own_choice_changes_no_bit(model: TransformersBackbone) -> None:
    experts = MixtureOfExpertsSizes(router_count=2, experts_per_token=2, expert_count=8)
    assert model.experts == experts
    chosen_ids = written(model).ids
    assert (
        len({tuple(ids.tolist()) for ids in chosen_ids.flatten(0, 1)}) > 10
    )  # the routers choose many different pairs
    again = ChosenExperts(experts, chosen_ids, replay=True)
    assert torch.equal(read(model, again), read(model)) and torch.equal(again.ids, chosen_ids)


@pytest.mark.parametrize("normalised", [True, False])
def test_the_weights_of_replayed_experts_are_their_softmax(tmp_path: Path, normalised: bool) -> None:
    it = mixture(tmp_path, norm_topk_prob=normalised)
    assert it.experts is not None
    outputs: list[tuple[torch.Tensor, ...]] = []
    for router in routers(it):
        router.register_forward_hook(lambda _, __, out: outputs.append(out))
    recorded = elsewhere(it.experts)
    read(it, ChosenExperts(it.experts, recorded, replay=True))
    for number, (logits, weights, chosen) in enumerate(outputs):
        assert torch.equal(chosen, recorded[:, number].long())
        mask = torch.zeros_like(logits).scatter_(1, chosen, 1.0)
        if normalised:  # I_j exp(s_j) / sum of I_k exp(s_k)
            expected = mask * logits.exp() / (mask * logits.exp()).sum(-1, keepdim=True)
        else:
            expected = mask * logits.softmax(-1)
        assert torch.allclose(expected.gather(1, chosen), weights.double(), rtol=0, atol=1e-6)


def test_routers_get_gradients_under_replay(model: TransformersBackbone) -> None:
    assert model.experts is not None
    read(model, ChosenExperts(model.experts, elsewhere(model.experts), replay=True)).pow(2).sum().backward()
    slopes = [router.weight.grad for router in routers(model)]
    assert all(slope is not None and slope.norm() > 1e-3 for slope in slopes)
    model.zero_grad()


def test_replaying_a_replay_gives_the_same_routes(model: TransformersBackbone) -> None:
    assert model.experts is not None
    first = ChosenExperts(model.experts, elsewhere(model.experts), replay=True)
    once = read(model, first)
    second = ChosenExperts(model.experts, first.ids, replay=True)
    assert torch.equal(first.ids, elsewhere(model.experts))
    assert torch.equal(read(model, second), once) and not torch.allclose(once, read(model))


def test_tokens_without_a_record_follow_their_router(model: TransformersBackbone) -> None:
    assert model.experts is not None
    chosen_ids, recorded = written(model).ids, elsewhere(model.experts)
    recorded[:20] = -1
    routes = ChosenExperts(model.experts, recorded, replay=True)
    hidden = read(model, routes)
    assert torch.equal(routes.ids[:20], chosen_ids[:20]) and torch.equal(routes.ids[20:], recorded[20:])
    assert torch.equal(hidden[:20], read(model)[:20])  # the prompt does not attend to its answers


def test_recomputed_layers_replay_again(model: TransformersBackbone) -> None:
    assert model.experts is not None
    slopes = []
    for recompute in (False, True):
        it = copy.deepcopy(model)
        it.recompute = recompute
        routes = ChosenExperts(
            it.experts or MixtureOfExpertsSizes(0, 0, 0), elsewhere(model.experts), replay=True, keep_logits=True
        )
        hidden = read(it, routes)
        beside = sum((x.softmax(-1)[:, 0].sum() for x in routes.logits.values()), start=torch.zeros(()))
        torch.autograd.backward([hidden.pow(2).sum(), beside])
        slopes.append([p.grad for p in it.parameters()])
    assert all(a is not None and torch.equal(a, b) for a, b in zip(*slopes) if b is not None)


def test_a_copied_model_has_independent_hooks(model: TransformersBackbone) -> None:
    """The reference is a copy; its routes do not reach the policy."""
    assert model.experts is not None
    twin = copy.deepcopy(model)
    routes = ChosenExperts(model.experts)
    read(twin, routes)
    assert torch.equal(routes.ids, written(model).ids)
    with torch.no_grad():
        routers(twin)[0].weight.neg_()
    assert not torch.equal(written(twin).ids, written(model).ids)


def test_routes_are_encoded_as_bytes() -> None:
    experts = MixtureOfExpertsSizes(router_count=2, experts_per_token=3, expert_count=300)
    ids = torch.randint(0, 300, (5, 2, 3), generator=torch.Generator().manual_seed(0)).to(torch.int16)
    lines = experts.encode(ids)
    assert len(lines) == 5 and all(len(line) == 12 for line in lines)
    assert torch.equal(torch.from_numpy(experts.decode(lines)), ids)
    assert experts.decode((b"", lines[3])).tolist() == [[[-1] * 3] * 2, ids[3].tolist()]


@pytest.mark.parametrize("kind", ["Mixtral", "Qwen2Moe", "Olmoe"])
def test_other_mixtures_with_such_routers(tmp_path: Path, kind: str) -> None:
    size = "num_local_experts" if kind == "Mixtral" else "num_experts"
    made(tmp_path, kind, **{size: 6, "num_experts_per_tok": 3, "moe_intermediate_size": 16})
    assert experts_of(outline(tmp_path)) == MixtureOfExpertsSizes(router_count=2, experts_per_token=3, expert_count=6)


def test_models_without_experts(tmp_path: Path) -> None:
    directory(tmp_path / "native")
    made(tmp_path / "dense", "GPT2", n_embd=32, n_head=4, n_layer=1, n_positions=64)
    assert experts_of(outline(tmp_path / "native")) is None and experts_of(outline(tmp_path / "dense")) is None


def test_routers_of_another_kind_have_no_hooks(tmp_path: Path) -> None:
    """Such as sigmoid routers: the weights of other experts cannot be derived."""
    it = mixture(tmp_path)
    for router in routers(it):
        router.forward = lambda x, r=router: (x @ r.weight.T, (x @ r.weight.T)[:, :2].sigmoid(), x[:, :2].long() * 0)
    assert TransformersBackbone(it.causal, it.shape).experts is None
