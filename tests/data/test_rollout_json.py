"""Rollouts as JSON: every field of a sample comes back."""

import json
import math
from dataclasses import fields

from groupwise.data import Draw, Finish, Outcome, Prompt, Rollout, Sample, Verdict
from groupwise.data.rollout_json import rollout_from_json, rollout_to_json

SAMPLE = Sample(
    context=(5, 6), stream=(0, 2, 1), limit=9, tokens=(7, 8), origin=(3, -1), logp=(-0.1, math.nan),
    routes=(b"\x00\xff", b""), path=(b"a", b""), likeliest=(((7, -0.1), (8, -2.5)),), finish=Finish.length, text="é\n",
    ends=(1, 2), group=1, role="critique", parent=0, content="ab", views={"hint": (1, 2)},
    marks={"line": (math.nan, 0.5)}, counts={"calls": 2},
    verdict=Verdict(Outcome.scored, 0.25, {"style": 0.5}, "why", "cause", "7", {"line": [(1, 0.5)]}),
)  # fmt: skip


def test_every_field_of_a_sample_comes_back() -> None:
    rollout = Rollout(Draw(4, Prompt("p", (5, 6)), 2), (SAMPLE, Sample(context=(1,), stream=(1,))), (True, False))
    again = rollout_from_json(json.loads(json.dumps(rollout_to_json(rollout))))
    assert (again.draw.id, again.selected) == (4, (True, False))
    for before, after in zip(rollout.samples, again.samples, strict=True):
        for f in fields(Sample):
            # NaN is not equal to itself, so texts are compared.
            assert repr(getattr(after, f.name)) == repr(getattr(before, f.name)), f.name
