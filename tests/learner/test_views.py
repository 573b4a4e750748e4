"""Views and marks: measures under other contexts, samples trained under another context, and numbers per token."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from groupwise.data import (
    ENVIRONMENT,
    SAMPLED,
    WRITTEN,
    Batch,
    Divergence,
    Entropy,
    Logp,
    Rollout,
    Sample,
    TokenMark,
    pack,
)  # fmt: skip
from groupwise.learner import EMA, AdamW, FromDirectory, Learner, StepPlan
from groupwise.learner.divergence import between
from groupwise.models import Decoder, PrefixPacking
from groupwise.objective import describe_gap
from tests.learner.small import backward_pass, model, ragged
from tests.learner.test_gradients import OBJECTIVES, credited

PLAN = (StepPlan((tuple(range(7)), tuple(range(7, 16)), tuple(range(16, 24)))),)
HINT = (3, 1, 4, 1, 5, 9)


def hinted() -> list[Rollout]:
    """The ragged rollouts; every second sample has the view `hint`, a longer context."""
    return [
        replace(r, samples=tuple(
            replace(s, prompt_views={"hint": (*HINT, *s.context)} if i % 2 else {}) for i, s in enumerate(r.samples)
        ))
        for r in ragged()
    ]  # fmt: skip


def learner() -> Learner:
    return Learner(
        model(), optimizer=AdamW(lr=1e-2), steps=4, temperature=0.7,
        side_models=(("teacher", FromDirectory("elsewhere")), ("average", EMA())),
        from_directories={"teacher": model(seed=3)},
    )  # fmt: skip


def dense(decoder: Decoder, batch: Batch, view: str) -> Tensor:
    """Log-probs [n, vocabulary] of each token's distribution under a view; NaN for samples without it."""
    rows = []
    for sample in batch.samples:
        context = sample.prompt_views.get(view, ()) if view else sample.context
        if not context:
            rows.append(torch.full((len(sample.tokens), 17), math.nan, dtype=torch.float64))
        elif sample.tokens:
            layout = PrefixPacking.of([context], [sample.tokens])
            rows.append(
                (decoder.head(decoder(layout.tokens, layout))[layout.predicting_indices] / 0.7).log_softmax(-1).detach()
            )
    return torch.cat(rows)


def test_measures_under_a_view_equal_dense_forwards_under_that_context() -> None:
    measures = {
        Logp("teacher", "hint"), Logp("policy", "hint"), Entropy("teacher", "hint"), Entropy("teacher"),
        Divergence("teacher", 0.0, "hint"), Divergence("policy", 0.3, "hint"), Logp("teacher"), Logp("policy"),
    }  # fmt: skip
    batch = learner().compute_measures(pack(hinted()), PLAN, frozenset(measures))
    plain = learner().compute_measures(pack(ragged()), PLAN, frozenset({Logp("teacher"), Logp("policy")}))
    assert torch.equal(batch.logp_old, plain.logp_old) and torch.equal(batch[Logp("teacher")], plain[Logp("teacher")])
    target = torch.tensor([t for s in batch.samples for t in s.tokens])
    models = {"teacher": model(seed=3), "policy": model()}
    p = dense(models["policy"], batch, "")
    for measure in measures - {Logp("policy")}:
        assert isinstance(measure, Logp | Entropy | Divergence)
        q = dense(models[measure.model], batch, measure.view)
        if isinstance(measure, Logp):
            expected = q.gather(1, target[:, None])[:, 0]
        elif isinstance(measure, Entropy):
            expected = -(q.exp() * q).sum(-1)
        else:
            expected = between(p, q, measure.alpha)
        assert bool(expected.isnan().any()) == bool(measure.view) and not expected.isnan().all()
        torch.testing.assert_close(batch[measure], expected, rtol=1e-10, atol=1e-12, equal_nan=True)


def test_a_batch_without_the_view_has_nan_only() -> None:
    batch = learner().compute_measures(pack(ragged()), PLAN, frozenset({Logp("teacher", "hint")}))
    assert batch[Logp("teacher", "hint")].isnan().all()
    part, which = pack(hinted()).under("hint")
    assert len(part) == 12 and int(which.sum()) == part.tokens
    assert all(s.context[: len(HINT)] == HINT for s in part.samples)


def test_a_view_has_the_pictures_of_its_sample() -> None:
    rollouts = [replace(r, samples=tuple(replace(s, content_hash="p") for s in r.samples)) for r in hinted()]
    assert {s.content_hash for s in pack(rollouts).under("hint")[0].samples} == {"p"}


def test_a_sample_trained_under_a_view_has_the_gradient_of_that_context() -> None:
    """Its log-probs of the engine, its versions and its tokens stay those of the sampling."""
    moved = [replace(r, samples=tuple(s.under("hint") if s.prompt_views else s for s in r.samples)) for r in hinted()]
    direct = [
        replace(
            r,
            samples=tuple(
                replace(s, context=s.prompt_views.get("hint", s.context), prompt_views={}) for s in r.samples
            ),
        )
        for r in hinted()
    ]
    gradients = []
    for rollouts in (moved, direct):
        it, batch = learner(), pack(rollouts)
        columns = credited()
        batch = batch.having(reward=columns.reward, advantage=columns.advantage, logp_old=columns.logp_old)
        objective = OBJECTIVES["tokens"]
        backward_pass(it, objective.prepare(batch.take(PLAN[0].samples)), PLAN[0], objective)
        gradients.append(torch.cat([p.grad.flatten() for p in it.model.parameters() if p.grad is not None]))
    assert torch.equal(*gradients)
    sample = moved[0].samples[3]
    original = hinted()[0].samples[3]
    assert sample.prompt_views[SAMPLED] == original.context and sample.context == (*HINT, *original.context)
    assert (sample.tokens, sample.logp, sample.origin) == (original.tokens, original.logp, original.origin)
    assert sample.under(SAMPLED).context == original.context


def test_the_gap_between_engine_and_learner_leaves_other_contexts_out() -> None:
    samples = [s.under("hint") if s.prompt_views else s for r in hinted() for s in r.samples]
    batch = pack([replace(ragged()[0], samples=tuple(replace(s, stream=(i,)) for i, s in enumerate(samples)))])
    same = batch.same_context
    assert 0 < int(same.sum()) < batch.tokens
    logp = torch.where(same, batch.logp_engine, batch.logp_engine + 5)
    assert set(describe_gap(logp, batch).values()) == {0.0}
    assert (
        max(describe_gap(logp, replace(batch, samples=tuple(replace(s, prompt_views={}) for s in samples))).values())
        == 5.0
    )


def test_marks_are_numbers_per_trained_token_and_nan_elsewhere() -> None:
    sample = Sample(context=(1,), stream=(0,)).insert((5, 6), WRITTEN).insert((7,), ENVIRONMENT).insert((8, 9), WRITTEN)
    sample = sample.with_text("abcde", (1, 2, 3, 4, 5))
    rollout = ragged()[0]
    verdict = rollout.samples[0].verdict
    marked = replace(sample, verdict=verdict, token_marks={"step": (0.5, 1.0, 2.0, 3.0)})
    other = replace(sample, verdict=verdict, stream=(1,))
    batch = pack([replace(rollout, samples=(marked, other))])
    nan = math.nan
    torch.testing.assert_close(
        batch[TokenMark("step")], torch.tensor([0.5, 1.0, 3.0, nan, nan, nan, nan, nan], dtype=torch.float64),
        equal_nan=True,
    )  # fmt: skip
    assert batch[TokenMark("other")].isnan().all() and len(batch[TokenMark("other")]) == batch.tokens
    assert batch.take([1])[TokenMark("step")].isnan().all() and batch.take([0])[TokenMark("step")][2] == 3.0
    assert (
        marked.last_turn.token_marks == {"step": (3.0,)} == {"step": marked.token_marks["step"][3:]}
        and marked.fork(1, 0).token_marks == {}
    )


def test_a_conversations_last_turn_extends_its_views() -> None:
    sample = Sample(context=(1,), stream=(0,), prompt_views={"hint": (9, 1)})
    sample = sample.insert((5,), WRITTEN).insert((7,), ENVIRONMENT).insert((8,), WRITTEN).with_text("abc", (1, 2, 3))
    assert sample.last_turn.context == (1, 5, 7) and sample.last_turn.prompt_views == {"hint": (9, 1, 5, 7)}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"token_marks": {"step": (1.0,)}}, "the mark step \\(numbers per token\\) has 1 entries for 0 tokens"),
        ({"prompt_views": {"hint": ()}}, "lacks its name or its prompt"),
    ],
)
def test_invalid_views_and_marks_are_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Sample(context=(1,), stream=(0,), **fields)  # pyright: ignore[reportArgumentType]
