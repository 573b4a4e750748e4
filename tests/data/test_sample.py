"""What a person may write of a law, and what cannot be."""

import math
from typing import Any

import pytest

from groupwise.data import Sampling


@pytest.mark.parametrize(
    "odd",
    [{"stop": ("#", "")}, {"temperature": -0.1}, {"temperature": math.nan}, {"max_tokens": 0}, {"top_p": 0.0},
     {"top_p": 1.1}, {"top_k": -1}, {"min_p": 1.0}],
)  # fmt: skip
def test_laws_that_no_answer_can_be_drawn_from(odd: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        Sampling(**odd)
    assert Sampling(stop=("#",)).stop == ("#",)
