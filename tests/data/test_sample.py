"""What a verdict is worth, and the laws that answers can be drawn from."""

import math
from typing import Any

import pytest

from groupwise.data import Outcome, Sampling, Verdict


@pytest.mark.parametrize(
    "odd",
    [{"stop": ("#", "")}, {"temperature": -0.1}, {"temperature": math.nan}, {"max_tokens": 0}, {"top_p": 0.0},
     {"top_p": 1.1}, {"top_k": -1}, {"min_p": 1.0}],
)  # fmt: skip
def test_laws_that_no_answer_can_be_drawn_from(odd: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        Sampling(**odd)
    assert Sampling(stop=("#",)).stop == ("#",)


@pytest.mark.parametrize(
    ("verdict", "value"),
    [
        (Verdict(Outcome.correct), 1.0),
        (Verdict(Outcome.malformed), 0.0),
        (Verdict(Outcome.wrong, 0.4), 0.4),
        (Verdict(Outcome.unverifiable, 0.7), 0.0),  # whatever was said before it failed
    ],
)
def test_what_a_verdict_is_worth(verdict: Verdict, value: float) -> None:
    assert verdict.value == value
