"""The learner: measures, steps, skipped steps, states of the method and resume."""

from dataclasses import replace

import pytest
import torch

from groupwise.config import Recipe
from groupwise.data import Entropy, Logp, pack
from groupwise.learner import AdamW, InitialPolicy, Learner, StepPlan, forward, make_plan, measure_plan
from groupwise.methods import Method
from groupwise.training.loop import plan
from tests.learner.small import model, ragged, rollouts
from tests.learner.test_gradients import OBJECTIVES, credited, learner

PLAN = (StepPlan((tuple(range(6)), tuple(range(6, 12)))), StepPlan((tuple(range(12, 24)),)))


@pytest.mark.t(16)
@pytest.mark.parametrize("dtype", (torch.float32, torch.float64))
@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_first_ratio_is_exactly_one(name, dtype):
    it, batch = learner(dtype), credited(dtype=dtype).having(logp_old=None)
    plan = measure_plan(PLAN, batch, microbatch_tokens=10_000)
    assert plan[0] == PLAN[0]  # equal microbatches, although others may give equal bits on this machine
    batch = it.compute_measures(batch, plan, frozenset({Logp("policy")}))
    taken = it.step(batch, PLAN[0], OBJECTIVES[name])
    assert taken.batch.logp is not None
    assert torch.equal(taken.batch.logp, taken.batch.logp_old)


@pytest.mark.t(16)
def test_a_single_step_has_equal_bits_with_and_without_computed_old_log_probs():
    step = StepPlan((tuple(range(24)),))
    states = []
    for measures in (frozenset(), frozenset({Logp("policy")})):
        it = learner(torch.float32)
        batch = it.compute_measures(credited(dtype=torch.float32).having(logp_old=None), (step,), measures)
        assert (batch.logp_old is None) == (not measures)
        it.step(batch, step, OBJECTIVES["tokens"])
        states.append(it.state()[0])
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_measures_come_back_in_the_order_of_the_batch():
    it = Learner(model(), optimizer=AdamW(), steps=1, side_models=(("reference", InitialPolicy()),))
    plan = (StepPlan(((3, 1), (20, 5))), StepPlan((tuple(i for i in range(24) if i not in (3, 1, 20, 5)),)))
    batch = it.compute_measures(pack(ragged()), plan, frozenset({Logp("policy"), Logp("reference"), Entropy()}))
    plain = it.compute_measures(
        pack(ragged()), (StepPlan((tuple(range(24)),)),), frozenset({Logp("policy"), Logp("reference")})
    )
    torch.testing.assert_close(batch.logp_old, plain.logp_old, rtol=0, atol=1e-13)
    torch.testing.assert_close(batch[Logp("reference")], batch.logp_old, rtol=0, atol=1e-13)


@pytest.mark.parametrize("name", ("reference", "old", "entropy"))
def test_a_side_model_may_have_any_name(name):
    other, batch = model(seed=1), pack(ragged())
    it = Learner(model(), optimizer=AdamW(), steps=1, side_models=((name, InitialPolicy()),))
    it.models[name] = other
    read = it.compute_measures(batch, PLAN, frozenset({Logp("policy"), Logp(name)}))
    alone = Learner(other, optimizer=AdamW(), steps=1).compute_measures(batch, PLAN, frozenset({Logp("policy")}))
    own = Learner(model(), optimizer=AdamW(), steps=1).compute_measures(batch, PLAN, frozenset({Logp("policy")}))
    assert torch.equal(read.logp_old, own.logp_old) and torch.equal(read[Logp(name)], alone.logp_old)


@pytest.mark.t(24)
def test_a_frozen_reference_stays_and_costs_nothing_unless_needed():
    it = Learner(
        model(), optimizer=AdamW(lr=0.1), steps=1, side_models=(("reference", InitialPolicy()),), temperature=0.7
    )
    before = {name: x.clone() for name, x in it.models["reference"].state_dict().items()}
    batch = it.compute_measures(credited(), PLAN, frozenset())
    assert not batch.measures and batch.logp_old is not None  # its own column stands, nothing was forwarded
    it.step(batch, PLAN[0], OBJECTIVES["tokens"])
    assert all(torch.equal(x, before[name]) for name, x in it.models["reference"].state_dict().items())


@pytest.mark.t(51)
def test_every_parameter_moves():
    it = learner()
    before = [p.detach().clone() for p in it.model.parameters()]
    it.step(credited(), PLAN[0], OBJECTIVES["sequences"])
    assert all(not torch.equal(a, b) for a, b in zip(before, it.model.parameters()))


def test_every_microbatch_runs_its_backward_also_with_a_zero_gradient():
    """Under FSDP, ranks that skip backward by their own gradients would deadlock."""
    flat, backs = credited().having(advantage=torch.zeros_like(credited().advantage)), []
    it = learner()
    it.step(credited(), PLAN[0], OBJECTIVES["tokens"])
    before = [p.detach().clone() for p in it.model.parameters()]
    it.model.get_submodule("model.norm").register_full_backward_hook(lambda *_: backs.append(1))
    taken = it.step(flat, PLAN[0], OBJECTIVES["tokens"])
    assert len(backs) == len(PLAN[0].microbatches) and not taken.skip_reason and taken.grad_norm == 0
    # A step of zero is a step: momentum moves the weights.
    assert all(not torch.equal(a, b) for a, b in zip(before, it.model.parameters()))
    half = credited()
    half = half.having(advantage=torch.where(half.sequences.index < 6, 0.0, half.advantage))
    it.step(half, PLAN[0], OBJECTIVES["tokens"])
    assert len(backs) == 2 * len(PLAN[0].microbatches)


@pytest.mark.parametrize("column", ("advantage", "logp_old"))
def test_a_gradient_that_is_not_finite_changes_nothing(column):
    it, batch = learner(), credited()
    poisoned = getattr(batch, column).clone()
    poisoned[3] = torch.nan
    before, _ = it.state()
    before = {name: x.clone() for name, x in before.items()}
    taken = it.step(batch.having(**{column: poisoned}), PLAN[0], OBJECTIVES["tokens"])
    assert taken.skip_reason == "loss or gradient is not finite" and it.steps_taken == 0
    after, _ = it.state()
    assert after.keys() == before.keys() and all(torch.equal(after[n], before[n]) for n in before)
    assert it.step(batch, PLAN[0], OBJECTIVES["tokens"]).skip_reason == ""


def test_clipping_bounds_the_step_and_both_norms_are_reported():
    it = learner()
    it.optimizer.settings = AdamW(lr=1e-2, max_grad_norm=1e-3)
    taken = it.step(credited(), PLAN[0], OBJECTIVES["tokens"])
    assert taken.grad_norm > 1e-3 and taken.grad_norm_clipped == 1e-3


def test_restored_state_continues_with_equal_bits():
    def steps(it, n):
        for _ in range(n):
            it.step(credited(dtype=torch.float32), PLAN[0], OBJECTIVES["tokens"])

    whole, first = learner(torch.float32), learner(torch.float32)
    steps(whole, 4)
    steps(first, 2)
    tensors, state = first.state()
    second = learner(torch.float32)
    second.restore({name: x.clone() for name, x in tensors.items()}, state)
    steps(second, 2)
    a, b = whole.state()[0], second.state()[0]
    assert a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
    assert whole.steps_taken == second.steps_taken == 4


def test_states_are_written_after_the_steps_and_read_in_the_next_batch():
    class Count:
        def init(self):
            return 0

        def __call__(self, state, batch, stats):
            return state + len(batch)

    it = Learner(model(), optimizer=AdamW(), steps=1, states=(("seen", Count()),))
    batch = it.compute_measures(pack(ragged()), PLAN, frozenset())
    assert batch.method_states["seen"] == 0
    it.remember(batch, {})
    assert it.compute_measures(pack(ragged()), PLAN, frozenset()).method_states["seen"] == 24


def test_written_tokens_are_learned():
    """The supervised phase: demonstrations as samples, their log-prob as the surrogate."""
    from groupwise.objective import Objective, policy_gradient, token_mean

    it = Learner(model(torch.float32), optimizer=AdamW(lr=1e-2), steps=60)
    batch = pack(rollouts([[9]], written=True))
    batch = batch.having(advantage=torch.ones(batch.tokens, dtype=torch.float64))
    step = StepPlan(((0,),))
    losses = [it.step(batch, step, Objective(surrogate=policy_gradient, aggregate=token_mean)).loss for _ in range(60)]
    assert losses[0] > 2.5 and losses[-1] < 0.1


@pytest.mark.parametrize(("prompts", "minibatches"), [(6, 4), (8, 3), (3, 8), (1, 5), (16, 8)])
def test_samples_of_any_number_of_prompts_are_cut_into_the_minibatches(prompts, minibatches):
    """The steps of a recipe whose prompts are no multiple of its minibatches, which deals answers into them."""
    batch = pack(rollouts([[3] * 4] * prompts))
    recipe = Recipe(method=Method(minibatches=minibatches, shuffle="samples"), prompts=prompts)
    sizes = [len(step.samples) for step in plan(recipe, recipe.method, batch, 0, 0)]
    assert len(sizes) <= minibatches and max(sizes) == -(-4 * prompts // minibatches)
    assert len(set(sizes[:-1])) <= 1 and sum(sizes) == 4 * prompts


class TestCut:
    def batch(self):
        return pack(rollouts([[3, 4, 5]] * 8))

    def test_steps_have_a_fixed_size_and_hold_every_sample_once(self):
        batch = self.batch()
        steps = make_plan(
            batch,
            size=2,
            shuffle="prompts",
            permutation=lambda n: list(range(n))[::-1],
            microbatch_tokens=20,
            unsplit_unit="token",
        )
        assert [len(s.samples) for s in steps] == [6, 6, 6, 6]
        assert sorted(i for s in steps for i in s.samples) == list(range(24))
        assert steps[0].samples == tuple(range(18, 24))

    def test_a_short_iteration_has_fewer_steps_the_last_smaller(self):
        batch = self.batch().take(range(15))
        steps = make_plan(
            batch, size=2, shuffle="prompts", permutation=range, microbatch_tokens=999, unsplit_unit="token"
        )
        assert [len(s.samples) for s in steps] == [6, 6, 3]

    def test_samples_are_dealt_singly_when_asked(self):
        steps = make_plan(
            self.batch(), size=2, shuffle="samples", permutation=lambda n: list(range(n))[::-1], microbatch_tokens=999
        )
        assert steps[0].samples == tuple(range(18, 24)) and len(steps) == 4

    @pytest.mark.parametrize("size", (1, 2))
    def test_samples_of_unequal_prompts_make_no_more_steps(self, size):
        """With one of 64 answers excluded, there is still at most one step per `size` of the 16 prompts."""
        batch = pack(rollouts([[3] * 4] * 15 + [[3] * 3]))
        steps = make_plan(batch, size=size, shuffle="samples", permutation=range, microbatch_tokens=999)
        assert len(steps) <= 16 // size and sorted(i for s in steps for i in s.samples) == list(range(63))

    def test_all_but_the_first_step_are_read_in_as_few_pieces_as_fit(self):
        batch = self.batch()
        steps = make_plan(
            batch, size=2, shuffle="prompts", permutation=lambda n: list(range(n))[::-1], microbatch_tokens=20
        )
        first, rest = measure_plan(steps, batch, microbatch_tokens=999)
        assert first == steps[0] and len(first.microbatches) > 1
        assert rest.microbatches == (tuple(range(18)),)
        assert len(measure_plan(steps, batch, microbatch_tokens=50)[1].microbatches) == 3
        assert measure_plan(steps[:1], batch, microbatch_tokens=999) == steps[:1]
        assert measure_plan((), batch, microbatch_tokens=999) == ()

    def test_groups_that_stand_among_each_other_stay_whole_too(self):
        (rollout,) = rollouts([[3] * 6])
        samples = tuple(replace(s, group=i % 2) for i, s in enumerate(rollout.samples))
        batch = pack([replace(rollout, samples=samples)])
        (step,) = make_plan(
            batch, size=1, shuffle="prompts", permutation=range, microbatch_tokens=10, unsplit_unit="group"
        )
        assert step.microbatches == ((0, 2, 4), (1, 3, 5))

    def test_groups_stay_whole_where_the_objective_couples_them(self):
        batch = self.batch()
        steps = make_plan(
            batch, size=4, shuffle="prompts", permutation=range, microbatch_tokens=10, unsplit_unit="group"
        )
        groups = batch.groups.index.tolist()
        assert all({groups[i] for i in p}.isdisjoint({groups[i] for q in s.microbatches if q != p for i in q})
                   for s in steps for p in s.microbatches)  # fmt: skip
        with pytest.raises(ValueError, match="set shuffle to prompts"):
            make_plan(batch, size=4, shuffle="samples", permutation=range, microbatch_tokens=10, unsplit_unit="group")

    def test_pieces_are_bounded_in_tokens_with_equal_contexts_counted_once(self):
        batch = self.batch()
        steps = make_plan(
            batch, size=8, shuffle="prompts", permutation=range, microbatch_tokens=24, unsplit_unit="token"
        )
        for microbatch in steps[0].microbatches:
            contexts = {batch.samples[i].context for i in microbatch}
            tokens = sum(len(batch.samples[i].tokens) for i in microbatch) + sum(map(len, contexts))
            assert tokens <= 24
        assert len(steps[0].microbatches) > 1

    def test_contexts_with_different_content_are_counted_separately(self):
        """Equal ids with another content hash are another context, for the bound on a microbatch's tokens too."""
        batch = self.batch()
        samples = tuple(replace(s, content_hash=str(i)) for i, s in enumerate(batch.samples))
        other = batch.having(samples=samples)
        bound = {"size": 8, "shuffle": "prompts", "permutation": range, "microbatch_tokens": 24}
        plans = [make_plan(b, **bound)[0].microbatches for b in (batch, other)]
        assert max(map(len, plans[0])) > max(map(len, plans[1]))
        for microbatch in plans[1]:
            assert sum(len(samples[i].context) + len(samples[i].tokens) for i in microbatch) <= 24

    def test_contexts_with_different_content_are_forwarded_separately(self):
        batch = self.batch()
        samples = tuple(replace(s, content_hash=str(i % 2)) for i, s in enumerate(batch.samples))
        sizes = []

        def through(decoder, b, layout):
            sizes.append(len(layout.tokens))
            return decoder(layout.tokens, layout)

        for b in (batch, batch.having(samples=samples)):
            forward(model(torch.float64), b, temperature=1.0, through=through)
        contexts = {s.context for s in samples}
        assert sizes[1] >= sizes[0] + sum(map(len, contexts))
