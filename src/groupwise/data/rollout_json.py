"""Rollouts as plain JSON, for a learner in another process."""

from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from groupwise.data.sample import Draw, Finish, Outcome, Prompt, Rollout, Sample, Verdict

TUPLES = ("context", "stream", "tokens", "origin", "logp", "ends")
BYTES = ("routes", "path")
MAPPINGS = ("views", "marks")
"""Fields of a sample by their form: tuples of numbers, of bytes, and mappings of tuples."""


def rollout_to_json(rollout: Rollout) -> dict[str, Any]:
    """A rollout as JSON, which may contain NaN. Of the prompt only the draw's number remains: formulas read samples.

    >>> sample = Sample(context=(5,), stream=(0,), tokens=(7,), origin=(0,), logp=(-0.5,), finish=Finish.stop)
    >>> rollout = Rollout(Draw(3, Prompt("p", (5,)), 1), (sample.with_verdict(Verdict(Outcome.correct)),))
    >>> rollout_from_json(rollout_to_json(rollout)).samples == rollout.samples
    True
    """
    return {
        "draw": rollout.draw.id,
        "samples": [_sample_to_json(sample) for sample in rollout.samples],
        "selected": rollout.selected,
    }


def rollout_from_json(data: Mapping[str, Any]) -> Rollout:
    """The rollout that `rollout_to_json` gave, also after `json.dumps` and `json.loads`."""
    samples = tuple(map(_sample_from_json, data["samples"]))
    selected = None if data["selected"] is None else tuple(data["selected"])
    return Rollout(Draw(data["draw"], Prompt("", ()), len(samples)), samples, selected)


def _sample_to_json(sample: Sample) -> dict[str, Any]:
    values = {f.name: getattr(sample, f.name) for f in fields(Sample)}
    verdict = None if sample.verdict is None else asdict(sample.verdict)
    return {**values, **{name: [b64encode(x).decode() for x in values[name]] for name in BYTES}, "verdict": verdict}


def _sample_from_json(data: Mapping[str, Any]) -> Sample:
    values = {**data, **{name: tuple(data[name]) for name in TUPLES}}
    values |= {name: tuple(map(b64decode, data[name])) for name in BYTES}
    values |= {name: {key: tuple(x) for key, x in data[name].items()} for name in MAPPINGS}
    values["likeliest"] = tuple(tuple((token, logp) for token, logp in place) for place in data["likeliest"])
    values["finish"] = None if data["finish"] is None else Finish(data["finish"])
    values["verdict"] = None if data["verdict"] is None else _verdict_from_json(data["verdict"])
    return Sample(**values)


def _verdict_from_json(data: Mapping[str, Any]) -> Verdict:
    steps = {name: [(end, x) for end, x in ends] for name, ends in data["steps"].items()}
    return Verdict(**{**data, "outcome": Outcome(data["outcome"]), "steps": steps})
