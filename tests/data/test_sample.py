"""`Verdict.value`, and the validation of `Sampling`."""

import math
from typing import Any

import pytest

from groupwise.data import Outcome, Sampling, Verdict


@pytest.mark.parametrize(
    "fields",
    [{"stop": ("#", "")}, {"temperature": -0.1}, {"temperature": math.nan}, {"max_tokens": 0}, {"top_p": 0.0},
     {"top_p": 1.1}, {"top_k": -1}, {"min_p": 1.0}],
)  # fmt: skip
def test_invalid_sampling_parameters_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        Sampling(**fields)
    assert Sampling(stop=("#",)).stop == ("#",)


@pytest.mark.parametrize(
    ("verdict", "value"),
    [
        (Verdict(Outcome.correct), 1.0),
        (Verdict(Outcome.malformed), 0.0),
        (Verdict(Outcome.wrong, 0.4), 0.4),
        (Verdict(Outcome.unverifiable, 0.7), 0.0),  # its score is ignored
    ],
)
def test_value_of_a_verdict(verdict: Verdict, value: float) -> None:
    assert verdict.value == value
