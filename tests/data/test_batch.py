"""`take`, `keep`, `joined` and `to` apply to every column of a batch. The tests run over all fields, also new ones."""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import pytest
import torch

from groupwise.core import Usage
from groupwise.data import (
    ENVIRONMENT,
    WRITTEN,
    Batch,
    Draw,
    Logp,
    Outcome,
    Prompt,
    Rollout,
    Sample,
    Segments,
    Subscore,
    Verdict,
    pack,
    rollout_of,
)
from tests.laws.batches import step_of

UNITS = {f.name: f.metadata["per"] for f in fields(Batch)}
LATER = ("loss_share", "weight")


def whole(seed: int = 0) -> Batch:
    """A batch with every column written and not empty."""
    b = step_of([[2, 0, 3], [1, 4]], seed=seed)
    b = b.having(logp=b.logp.detach(), subscores={"style": b.verdict_score + 0.5}, method_states={"ema": torch.ones(2)})
    b = b.having(routes=tuple((bytes([i]),) for i in range(len(b))))
    return b.having(**{name: torch.rand(b.tokens, dtype=torch.float64) for name in LATER})


def rows(x: Any) -> list[Any]:
    """The entries of a column as a list. A mapping gives the entries of all its values."""
    if isinstance(x, Mapping):
        return [row for name in x for row in rows(x[name])]
    return x.tolist() if isinstance(x, torch.Tensor) else list(x)


def test_every_field_has_a_unit_and_no_column_of_the_example_is_empty() -> None:
    assert set(UNITS.values()) == {"sample", "token", "segments", "run"}
    for name, unit in UNITS.items():
        assert unit in ("segments", "run") or rows(getattr(whole(), name)), name


@pytest.mark.parametrize("name", [name for name, unit in UNITS.items() if unit in ("sample", "token")])
def test_take_keep_and_joined_apply_to_every_column(name: str) -> None:
    b, other = whole(), whole(seed=1)
    at_sample, at_token = [3, 0], [*range(5, 6), *range(2)]  # samples hold 2, 0, 3, 1 and 4 tokens
    chosen = at_sample if UNITS[name] == "sample" else at_token
    column = getattr(b, name)
    columns = column if isinstance(column, Mapping) else {"": column}
    expected = [rows(x)[i] for x in columns.values() for i in chosen]
    assert rows(getattr(b.take(at_sample), name)) == expected
    mask = [i % 2 == 0 for i in range(b.tokens)]
    masked = getattr(b.keep(torch.tensor(mask)), name)
    if UNITS[name] == "sample":
        assert rows(masked) == rows(column)
    else:
        assert rows(masked) == [rows(x)[i] for x in columns.values() for i in range(b.tokens) if mask[i]]
    both = getattr(Batch.joined([b, other]), name)
    second = getattr(other, name)
    pairs = [(column, second)] if not isinstance(column, Mapping) else [(column[key], second[key]) for key in column]
    assert rows(both) == [row for pair in pairs for x in pair for row in rows(x)]


def test_roles_have_groups_of_their_own() -> None:
    one = rollout_of([1.0, 0.0, 1.0])
    roles = Rollout(one.draw, tuple(replace(s, role=r) for s, r in zip(one.samples, ("answer", "hint", "answer"))))
    batch = pack([roles], roles=("answer", "hint"))
    assert batch.groups.index.tolist() == [0, 1, 0] and batch.rollouts.count == 1
    assert batch.of_role("hint").verdict_score.tolist() == [0.0] and len(pack([roles])) == 2
    plain = pack([one])
    assert plain.of_role("answer") is plain


def test_lag_counts_versions_since_each_token() -> None:
    """A sample that was interrupted by an update, with a token that no policy sampled, and a written target."""
    sample = Sample(context=(1,), stream=(0,), verdict=Verdict(Outcome.wrong))
    sample = sample.with_tokens((5, 6), (3, 4), (-1.0, -1.0)).insert((7,), ENVIRONMENT)
    sample = sample.with_tokens((8,), (5,), (-1.0,)).insert((9,), WRITTEN)
    batch = pack([Rollout(Draw(0, Prompt("p", (1,)), 1), (sample,))], version=5)
    assert batch.staleness.tolist() == [2, 1, 0, 0] and batch.age.tolist() == [2]


def test_to_moves_every_tensor() -> None:
    def devices(x: Any) -> set[str]:
        if isinstance(x, Mapping):
            return {device for column in x.values() for device in devices(column)}
        x = x.index if isinstance(x, Segments) else x
        return {x.device.type} if isinstance(x, torch.Tensor) else set()

    moved = whole().to("meta")
    assert all(devices(getattr(moved, name)) <= {"meta"} for name in UNITS)
    assert (
        sum(devices(getattr(moved, name)) == {"meta"} for name in UNITS) == len(UNITS) - 4
    )  # samples, keys, routes and max_tokens


def test_a_verdict_part_is_a_column_and_has_marks_the_verdicts_with_it() -> None:
    given, without = rollout_of([1.0, 0.0], subscores={"style": [0.5, 0.0]}), rollout_of([1.0])
    b = pack([given, without])
    style = Subscore("style")
    assert b[style].tolist() == [0.5, 0.0, 0.0]
    assert b.has(style).tolist() == [True, True, False]
    assert b.take([2, 0])[style].tolist() == [0.0, 0.5] and b.take([2, 0]).has(style).tolist() == [False, True]


def test_a_verdict_part_that_no_verdict_has_is_refused_unless_nothing_was_graded() -> None:
    b = pack([rollout_of([1.0, 0.0], subscores={"style": [0.5, 0.0]})])
    with pytest.raises(Usage, match="no verdict has a subscore called 'stile'") as error:
        b[Subscore("stile")]
    assert "style" in error.value.evidence
    outcomes = torch.tensor([Outcome.malformed, Outcome.unverifiable])
    assert b.having(outcome=outcomes)[Subscore("stile")].tolist() == [0.0, 0.0]


def test_the_log_prob_of_the_policy_is_the_old_one() -> None:
    b = step_of([[2, 3]])
    assert b[Logp("policy")] is b.logp_old
