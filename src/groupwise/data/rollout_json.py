"""Rollouts as plain JSON, for a learner in another process and for checkpoints."""

import math
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from typing import Any

from groupwise.data.generation import Finish
from groupwise.data.sample import Draw, Prompt, Rollout, Sample
from groupwise.data.verdicts import Outcome, Verdict

TUPLES = ("context", "stream", "tokens", "origin", "ends")
BYTES = ("routes", "path")
"""Fields of a sample by their form: tuples of integers, and tuples of bytes."""


def rollout_to_json(rollout: Rollout) -> dict[str, Any]:
    """A rollout as JSON. Of the draw only the number remains: formulas read samples. See `draw_to_json` for the rest.

    >>> sample = Sample(context=(5,), stream=(0,), tokens=(7,), origin=(0,), logp=(-0.5,), finish=Finish.stop)
    >>> rollout = Rollout(Draw(3, Prompt("p", (5,)), 1), (sample.with_verdict(Verdict(Outcome.correct)),))
    >>> rollout_from_json(rollout_to_json(rollout)).samples == rollout.samples
    True
    """
    return {
        "draw": rollout.draw.id,
        "samples": [_sample_to_json(sample) for sample in rollout.samples],
        "selected": rollout.selected,
        "cause": rollout.cause,
    }


def rollout_from_json(data: Mapping[str, Any]) -> Rollout:
    """The rollout that `rollout_to_json` gave, also after `json.dumps` and `json.loads`."""
    samples = tuple(map(_sample_from_json, data["samples"]))
    selected = None if data["selected"] is None else tuple(data["selected"])
    return Rollout(Draw(data["draw"], Prompt("", ()), len(samples)), samples, selected, data["cause"])


def draw_to_json(draw: Draw) -> dict[str, Any]:
    """A draw as JSON, with its prompt and the prompt's row, whose values must be JSON values."""
    prompt = {f.name: getattr(draw.prompt, f.name) for f in fields(Prompt)}
    return {"id": draw.id, "prompt": {**prompt, "row": dict(draw.prompt.row)}, "n": draw.n, "memo": dict(draw.metadata)}


def draw_from_json(data: Mapping[str, Any]) -> Draw:
    """The draw that `draw_to_json` gave, also after `json.dumps` and `json.loads`.

    >>> draw = Draw(3, Prompt("p", (5,), row={"answer": 4}), 8, {"level": 1})
    >>> draw_from_json(draw_to_json(draw)) == draw
    True
    """
    prompt = Prompt(**{**data["prompt"], "context": tuple(data["prompt"]["context"])})
    return Draw(data["id"], prompt, data["n"], data["memo"])


def drawn_rollout_to_json(rollout: Rollout) -> dict[str, Any]:
    """A rollout with its whole draw as JSON."""
    return {**rollout_to_json(rollout), "draw": draw_to_json(rollout.draw)}


def drawn_rollout_from_json(data: Mapping[str, Any]) -> Rollout:
    """The rollout that `drawn_rollout_to_json` gave, also after `json.dumps` and `json.loads`."""
    draw = draw_from_json(data["draw"])
    return replace(rollout_from_json({**data, "draw": draw.id}), draw=draw)


def _numbers_to_json(numbers: Sequence[float]) -> list[float | None]:
    """Numbers with null for NaN, which JSON lacks."""
    return [None if math.isnan(x) else x for x in numbers]


def _numbers_from_json(numbers: Sequence[float | None]) -> tuple[float, ...]:
    return tuple(math.nan if x is None else x for x in numbers)


def _sample_to_json(sample: Sample) -> dict[str, Any]:
    values = {f.name: getattr(sample, f.name) for f in fields(Sample)}
    verdict = None if sample.verdict is None else asdict(sample.verdict)
    values |= {name: [b64encode(x).decode() for x in values[name]] for name in BYTES}
    values |= {"logp": _numbers_to_json(sample.logp), "verdict": verdict}
    return {**values, "marks": {name: _numbers_to_json(x) for name, x in sample.marks.items()}}


def _sample_from_json(data: Mapping[str, Any]) -> Sample:
    values = {**data, **{name: tuple(data[name]) for name in TUPLES}}
    values |= {name: tuple(map(b64decode, data[name])) for name in BYTES}
    values["logp"] = _numbers_from_json(data["logp"])
    values["views"] = {name: tuple(ids) for name, ids in data["views"].items()}
    values["marks"] = {name: _numbers_from_json(x) for name, x in data["marks"].items()}
    values["likeliest"] = tuple(tuple((token, logp) for token, logp in place) for place in data["likeliest"])
    values["finish"] = None if data["finish"] is None else Finish(data["finish"])
    values["verdict"] = None if data["verdict"] is None else _verdict_from_json(data["verdict"])
    return Sample(**values)


def _verdict_from_json(data: Mapping[str, Any]) -> Verdict:
    steps = {name: [(end, x) for end, x in ends] for name, ends in data["steps"].items()}
    return Verdict(**{**data, "outcome": Outcome(data["outcome"]), "steps": steps})
