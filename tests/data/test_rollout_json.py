"""Dataclasses as JSON: every field of a rollout comes back, and other data are refused."""

import json
import math
from typing import Any

import pytest

from groupwise.data import Draw, Finish, Outcome, Prompt, Rollout, Sample, Verdict
from groupwise.data.rollout_json import from_json, to_json

SAMPLE = Sample(
    context=(5, 6), stream=(0, 2, 1), limit=9, tokens=(7, 8), origin=(3, -1), logp=(-0.1, math.nan),
    routes=(b"\x00\xff", b""), actions=(b"a", b""), top_logprobs=(((7, -0.1), (8, -2.5)),), finish=Finish.length,
    text="é\n", token_ends=(1, 2), group=1, role="critique", parent=0, content_hash="ab", prompt_views={"hint": (1, 2)},
    token_marks={"line": (math.nan, 0.5)}, counts={"calls": 2},
    verdict=Verdict(Outcome.scored, 0.25, {"style": 0.5}, "why", "cause", "7", {"line": ((1, 0.5),)}),
)  # fmt: skip


def test_every_field_of_a_rollout_comes_back() -> None:
    draw = Draw(4, Prompt("p", (5, 6), "2+2=", {"answer": 4, "level": [1]}), 2, {"hints": 2})
    rollout = Rollout(draw, (SAMPLE, Sample(context=(1,), stream=(1,))), (True, False), "cause")
    again = from_json(Rollout, json.loads(json.dumps(to_json(rollout), allow_nan=False)))
    assert again.draw == draw
    assert repr(again) == repr(rollout)  # NaN is not equal to itself, so texts are compared


@pytest.mark.parametrize(
    "change",
    [
        {"other": 1}, {"tokens": 5}, {"finish": "never"}, {"prompt_views": [1]}, {"actions": [5]}, {"verdict": {}},
        {"top_logprobs": [[[7]]]},
    ],
    ids=str,
)  # fmt: skip
def test_other_data_raise(change: dict[str, Any]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        from_json(Sample, to_json(SAMPLE) | change)
    assert repr(from_json(Sample, {"context": [5], "stream": [0]})) == repr(Sample(context=(5,), stream=(0,)))
