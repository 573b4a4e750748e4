"""Co-GRPO: its worked numbers, its laws, and the whole path against a NumPy transcription over commits and steps."""

import asyncio
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from groupwise.advantages import Standardised
from groupwise.data import (
    Batch,
    Draw,
    Logp,
    Outcome,
    Prompt,
    Rollout,
    Sample,
    Sampling,
    Verdict,
    needs,
    pack,
    rollout_of,
)
from groupwise.engines.steps.unmasking import UnmaskingEngine
from groupwise.learner import AdamW, Learner
from groupwise.learner.microbatches import StepPlan
from groupwise.methods import AnswerAndScheduleStrategy, Method, ScheduleInput, co_grpo
from groupwise.models import (
    CellCommit,
    MaskedPolicy,
    MaskedShape,
    UnmaskingSchedulePolicy,
    UnmaskingSettings,
    decode_masked,
)
from groupwise.objective import Clip, Objective, token_mean
from groupwise.rollout import Independent
from groupwise.training.loop import compute_advantages
from tests.golden.flow_groups import f64, near
from tests.rollout.fakes import sampler_of

CELLS, SYMBOLS, WORDS, STEPS = 5, 3, 2, 3
SHAPE = MaskedShape(
    vocabulary_size=64 + 1 + 2 * SYMBOLS + WORDS, layers=1, cells=CELLS, symbols=SYMBOLS, prompt_vocabulary=WORDS,
    prompt_length=1, width=8, heads=1,
)  # fmt: skip
FIRST = SHAPE.first_word
WORD = 1
SPREAD, SPEED, FLOOR = 0.3, 20.0, 0.05
RANDOM = np.random.default_rng(7)
START = np.float32([[0.0, math.log(2)], [0.0, -math.log(2)], [0.0, 0.0]]).astype(float)
"""The knobs at the start: temperature 1, and 2/3, 1/3 and (unused) 1/2 of the cells masked. The model has float32."""


class Table:
    """Numbers of a model without hidden layers: logits `b[cell] + sum over others of w[cell, other, symbol] + c`."""

    def __init__(self, scale: float = 1.0, base: "Table | None" = None) -> None:
        sizes = {"w": (CELLS, CELLS, SYMBOLS + 1, SYMBOLS), "c": (WORDS, CELLS, SYMBOLS)}
        sizes |= {"mean": (STEPS, 2), "log_std": (STEPS, 2)}
        for name, size in sizes.items():
            step = scale * RANDOM.normal(size=size) * (0.02 if name in ("mean", "log_std") else 1)
            setattr(self, name, step if base is None else getattr(base, name) + step)

    def logits(self, canvas: np.ndarray, cell: int) -> np.ndarray:
        return sum(self.w[cell, j, canvas[j]] for j in range(CELLS)) + self.c[WORD, cell]  # type: ignore[attr-defined]


class Network(nn.Module):
    """The same logits in torch."""

    def __init__(self, table: Table) -> None:
        super().__init__()
        self.w, self.c = nn.Parameter(f64(table.w)), nn.Parameter(f64(table.c))  # type: ignore[attr-defined]

    def forward(self, canvas: Tensor, words: Tensor) -> Tensor:
        rows = [
            self.w[:, torch.arange(CELLS), row].sum(1) + self.c[int(word) - FIRST]
            for row, (word,) in zip(canvas, words)
        ]
        return torch.stack(rows) if rows else torch.zeros(0, CELLS, SYMBOLS).double() * self.w.sum()


def policy_of(table: Table, unmask: UnmaskingSettings | None = None) -> MaskedPolicy:
    policy = MaskedPolicy(
        SHAPE, unmask or UnmaskingSettings(steps=STEPS, knob_std=SPREAD, schedule_lr_factor=SPEED, min_knob_std=FLOOR)
    ).double()
    policy.predictor = Network(table)  # type: ignore[assignment]
    policy.schedule.mean_change.data = f64(table.mean)  # type: ignore[attr-defined]
    policy.schedule.log_std_change.data = f64(table.log_std)  # type: ignore[attr-defined]
    return policy


async def by_text(prompt: Prompt, sample: Sample) -> Verdict:
    """A score from the finished canvas."""
    return Verdict(Outcome.scored, sum(sample.tokens[-CELLS:]) % 7 / 7)


def sampled(policy: MaskedPolicy, strategy: AnswerAndScheduleStrategy | Independent, n: int = 6) -> Rollout:
    draw = Draw(3, Prompt("p", (FIRST + WORD,)), n)
    sampling = Sampling(max_tokens=SHAPE.longest(STEPS))
    engine = UnmaskingEngine(policy, seed=0)
    return asyncio.run(strategy(draw, sampler_of(engine, draw, verifier=by_text, sampling=sampling)))


def loss_of(method: Method, batch: Batch, new: MaskedPolicy, old: MaskedPolicy, reference: MaskedPolicy) -> Tensor:
    """The loss of a step that was sampled by `old`, as the learner computes it."""
    models = {"reference": reference}
    wanted = [Logp("policy"), *needs(method.objective)]
    before = {m: x.detach() for m, x in old.measure(batch, wanted, models).items()}
    batch = batch.having(logp_old=before.pop(Logp("policy")), measures=before)
    batch = compute_advantages(batch, method)
    batch = method.objective.prepare(batch)
    return method.objective(batch.having(logp=new.measure(batch, [Logp("policy")], models)[Logp("policy")]))


def test_worked_numbers() -> None:
    """The specification's example: one advantage, its term in the loss of tokens and in that of the schedule."""
    batch = pack([rollout_of([1.0, 0.6, 0.6, 0.2])])
    (standardised,) = co_grpo().advantage
    assert standardised == Standardised(ddof=0, eps=1e-4)
    a = standardised(batch.verdict_score, batch)
    near(a, [1.413714, 0, 0, -1.413714])

    def term(new: Any, old: Any) -> Tensor:
        one = pack([rollout_of([1.0], lengths=[len(new)])]).having(advantage=a[:1].expand(len(new)))
        objective = Objective(surrogate=Clip(), aggregate=token_mean)
        return objective(objective.prepare(one).having(logp=new, logp_old=old))

    new, old = f64([0.5, 0.4, 0.9]).log(), f64([0.45, 0.42, 0.85]).log()
    near((new - old).exp(), [1.111111, 0.952381, 1.058824])
    near(term(new, old), -1.471353)

    def density(mean: float) -> Tensor:
        schedule = UnmaskingSchedulePolicy(UnmaskingSettings(steps=1, knob_std=0.1, schedule_lr_factor=1.0)).double()
        schedule.mean_change.data[0, 0] = mean
        return schedule.log_density(torch.tensor([0]), f64([[0.9, 0.0]]))

    near((density(0.82) - density(0.8)).exp(), 1.197217)
    near(term(density(0.82), density(0.8)), -1.692523)


def paper(
    rollout: Rollout, new: Table, old: Table, ref: Table, clip: float = 0.2, beta: float = 0.01
) -> tuple[Any, Any]:
    """L_V and L_A, in loops over trajectories, commits and steps."""
    n = len([s for s in rollout.samples if s.role == "answer"])
    scores = np.array([s.verdict.value for s in rollout.samples[:n] if s.verdict])
    a = (scores - scores.mean()) / (scores.std() + 1e-4)

    def token(table: Table, action: CellCommit, symbol: int) -> Any:
        z = table.logits(action.canvas_before, action.cell) / action.draw_temperature
        return z[symbol] - np.log(np.exp(z).sum())

    def knobs(table: Table, step: int, values: np.ndarray) -> Any:
        total = 0.0
        for k in range(2):
            mean = START[step, k] + SPEED * table.mean[step, k]  # type: ignore[attr-defined]
            std = SPREAD * np.exp(SPEED * table.log_std[step, k])  # type: ignore[attr-defined]
            std = std if std.real > FLOOR else FLOOR
            total = total - (values[k] - mean) ** 2 / (2 * std**2) - np.log(std) - 0.5 * math.log(2 * math.pi)
        return total

    def gain(rho: Any, advantage: float) -> Any:
        near_ = min(max(rho, 1 - clip, key=np.real), 1 + clip, key=np.real)
        return min(rho * advantage, near_ * advantage, key=np.real)

    streams = [[], []]  # type: list[list[Any]]
    for sample, advantage in zip(rollout.samples, [*a, *a]):
        terms: list[Any] = []
        for token_id, action in zip(sample.tokens, map(decode_masked, sample.actions)):
            if isinstance(action, CellCommit):
                symbol = token_id - SHAPE.first_commit
                l, l_old, l_ref = (token(t, action, symbol) for t in (new, old, ref))
                kl = np.exp(l_ref - l) - 1 - (l_ref - l)
                terms.append(-gain(np.exp(l - l_old), advantage) + beta * kl)
            else:
                l, l_old = (knobs(t, action.unmasking_step, action.knob_values.astype(float)) for t in (new, old))
                terms.append(-gain(np.exp(l - l_old), advantage))
        streams[sample.role == "schedule"].append(sum(terms) / len(terms))
    return sum(streams[0]) / n, sum(streams[1]) / n


def derivative(
    rollout: Rollout, new: Table, old: Table, ref: Table, name: str, stream: int | None = None
) -> np.ndarray:
    """By complex steps: of one stream's loss, or of their sum."""
    values = getattr(new, name)
    gradient = np.zeros(values.shape)
    for i in np.ndindex(values.shape):
        moved = Table(0.0, new)
        shifted = values.astype(complex)
        shifted[i] += 1e-20j
        setattr(moved, name, shifted)
        losses = paper(rollout, moved, old, ref)
        gradient[i] = (sum(losses) if stream is None else losses[stream]).imag / 1e-20
    return gradient


@pytest.mark.parametrize("moved", [0.0, 0.3])
def test_whole_path(moved: float) -> None:
    """Loss, and its gradient by all weights: at the policy that sampled, and away from it."""
    old = Table()
    new, ref = Table(moved, old), Table(0.2, old)
    rollout = sampled(policy_of(old), AnswerAndScheduleStrategy())
    policies = [policy_of(t) for t in (new, old, ref)]
    method = co_grpo(steps=STEPS)
    loss = loss_of(method, pack([rollout], roles=method.trained_roles), *policies)
    loss.backward()
    near(loss, sum(paper(rollout, new, old, ref)).real, 1e-9)
    trained = {"w": policies[0].predictor.w, "mean": policies[0].schedule.mean_change}
    trained["log_std"] = policies[0].schedule.log_std_change
    for name, parameter in trained.items():
        expected = derivative(rollout, new, old, ref, name)
        assert np.abs(expected).max() > 1e-3
        near(parameter.grad, expected, 1e-8)


def test_no_gradient_between_tokens_and_schedule() -> None:
    """The loss of each stream has the gradient of its own weights, and of no others: to the bit."""
    old = Table()
    rollout = sampled(policy_of(old), AnswerAndScheduleStrategy())
    whole = policy_of(Table(0.1, old))
    method = co_grpo(steps=STEPS)
    loss_of(method, pack([rollout], roles=method.trained_roles), whole, policy_of(old), policy_of(old)).backward()
    for role, ours, others in (("answer", "predictor", "schedule"), ("schedule", "schedule", "predictor")):
        policy = policy_of(Table(0.0, old))
        policy.load_state_dict(whole.state_dict())
        loss_of(method, pack([rollout], roles=(role,)), policy, policy_of(old), policy_of(old)).backward()
        assert all(p.grad is None for p in getattr(policy, others).parameters())
        for one, both in zip(getattr(policy, ours).parameters(), getattr(whole, ours).parameters(), strict=True):
            assert one.grad is not None and both.grad is not None and one.grad.abs().max() > 0
            torch.testing.assert_close(one.grad, both.grad, rtol=1e-12, atol=1e-15)


def test_a_fixed_schedule_is_grpo_on_tokens() -> None:
    """Without spread there are no knobs, and the loss is that of tokens alone; Independent gives the same samples."""
    fixed = UnmaskingSettings(steps=STEPS, knob_std=0.0)
    old, new = Table(), Table(0.2)
    rollout, plain = (sampled(policy_of(old, fixed), s) for s in (AnswerAndScheduleStrategy(), Independent()))
    assert [s.actions for s in rollout.samples] == [s.actions for s in plain.samples]
    method = replace(co_grpo(steps=STEPS), unmask=fixed)
    policies = [policy_of(t, fixed) for t in (new, old, old)]
    loss = loss_of(method, pack([rollout], roles=method.trained_roles), *policies)
    near(loss.detach(), np.real(paper(plain, new, old, old)[0]), 1e-9)


def test_the_score_of_the_schedule_has_mean_zero() -> None:
    """A constant reward pushes the schedule nowhere on average: E[d log pi] = 0, within five standard errors."""
    schedule = UnmaskingSchedulePolicy(UnmaskingSettings(steps=2, knob_std=0.4, schedule_lr_factor=1.0)).double()
    n = 4000
    generator = torch.Generator().manual_seed(0)
    step = torch.zeros(n, dtype=torch.long)
    values = schedule.mean[step] + schedule.std[step] * torch.randn(n, 2, generator=generator, dtype=torch.float64)
    for parameter, std in ((schedule.mean_change, 1 / 0.4), (schedule.log_std_change, math.sqrt(2))):
        (gradient,) = torch.autograd.grad(schedule.log_density(step, values.detach()).mean(), parameter)
        assert gradient[0].abs().max() < 5 * std / math.sqrt(n) and gradient[1].abs().max() == 0
        biased = values.detach() + 0.1
        (moved,) = torch.autograd.grad(schedule.log_density(step, biased).mean(), parameter)
        assert moved[0].abs().max() > 5 * std / math.sqrt(n) or parameter is schedule.log_std_change


def test_the_sign_of_the_advantage_pushes_both_streams() -> None:
    """After one step, commits and knobs of trajectories with A > 0 are likelier, those with A < 0 less likely."""
    old = Table()
    policy = policy_of(old)
    rollout = sampled(policy, AnswerAndScheduleStrategy())
    method = co_grpo(steps=STEPS, kl=0.0)
    batch = pack([rollout], roles=method.trained_roles)
    before = policy.measure(batch, [Logp("policy")], {})[Logp("policy")].detach()
    ready = method.objective.prepare(compute_advantages(batch.having(logp_old=before), method))
    method.objective(ready.having(logp=policy.measure(batch, [Logp("policy")], {})[Logp("policy")])).backward()
    for parts in (policy.predictor, policy.schedule):
        for parameter in parts.parameters():
            assert parameter.grad is not None
            parameter.data -= 1e-6 * parameter.grad
    change = policy.measure(batch, [Logp("policy")], {})[Logp("policy")].detach() - before
    for role in method.trained_roles:
        which = torch.tensor([s.role == role for s in batch.samples])[batch.sequences.index]
        assert float((change * ready.advantage * ready.loss_share)[which].sum()) > 0


@pytest.mark.parametrize("size", [1, 5, 12])
def test_the_alternating_form_leaves_one_of_both_as_it_is(size: int) -> None:
    """Schedule, tokens, schedule: the other's weights stay to the bit in each turn.

    Also with weight decay, moments of earlier turns, and microbatches of `size` samples, some emptied by the mask.
    """
    policy, form = policy_of(Table()), co_grpo(steps=STEPS, form="alternating")
    learner = Learner(policy, optimizer=AdamW(lr=1e-3, weight_decay=0.1), steps=6, side_models=form.models)
    for iteration, trained in enumerate(("schedule", "predictor", "schedule")):
        method = form.at(ScheduleInput(iteration, total_iterations=4))
        batch = pack([sampled(policy, method.strategy)], roles=method.trained_roles)  # type: ignore[arg-type]
        microbatches = tuple(tuple(range(i, min(i + size, len(batch)))) for i in range(0, len(batch), size))
        plan = [StepPlan(microbatches)]
        batch = learner.compute_measures(batch, plan, method.needs_before_steps | {Logp("policy")})
        batch = compute_advantages(batch, method)
        before = {name: x.clone() for name, x in policy.state_dict().items()}
        for _ in range(2):
            assert not learner.step(batch, plan[0], method.objective).skip_reason
        moved = {name.partition(".")[0] for name, x in policy.state_dict().items() if not torch.equal(x, before[name])}
        assert moved == {trained}, iteration
