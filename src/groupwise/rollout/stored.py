"""Samples as JSON, for curricula that store them in their state."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from groupwise.data import Finish, Outcome, Sample, Verdict

TUPLES = ("context", "tokens", "origin", "ends")
PLAIN = ("limit", "text", "group", "content")


def stored(sample: Sample) -> dict[str, Any]:
    """Encode a sample's prompt, tokens, log-probs, text and verdict (outcome, score, parts) as JSON. NaN is None."""
    verdict = sample.verdict
    assert verdict is not None, "a stored sample has a verdict"
    return {
        **{name: list(getattr(sample, name)) for name in TUPLES},
        **{name: getattr(sample, name) for name in PLAIN},
        "views": {name: list(ids) for name, ids in sample.views.items()},
        "logp": [None if x != x else x for x in sample.logp],
        "finish": None if sample.finish is None else sample.finish.name,
        "outcome": verdict.outcome.name,
        "score": verdict.score,
        "parts": dict(verdict.parts),
    }


def restored(data: Mapping[str, Any], sample: Sample) -> Sample:
    """Decode a sample that `stored` encoded. Fields that it left out, such as the random stream, are those of `sample`.

    >>> old = Sample(context=(5,), stream=(0,), tokens=(6,), origin=(3,), logp=(-0.1,), verdict=Verdict(Outcome.wrong))
    >>> restored(stored(old), Sample(context=(5,), stream=(0,))) == old
    True
    """
    return replace(
        sample,
        **{name: tuple(data[name]) for name in TUPLES},
        **{name: data[name] for name in PLAIN},
        views={name: tuple(ids) for name, ids in data.get("views", {}).items()},
        logp=tuple(float("nan") if x is None else x for x in data["logp"]),
        finish=None if data["finish"] is None else Finish[data["finish"]],
        verdict=Verdict(Outcome[data["outcome"]], data["score"], dict(data["parts"])),
    )
