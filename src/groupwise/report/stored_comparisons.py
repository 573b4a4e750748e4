"""Reads the comparisons of methods that `whatif --report` stored in a run, for the page."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from groupwise.report.read_run import UNREADABLE
from groupwise.runs.run_layout import RunLayout, iteration_files

NUMBERS = ("reward", "advantage", "weight", "clipped_fraction", "gradient_sum")
"""A method's numbers for a sample, in the order in which the page has them."""


@dataclass(frozen=True, slots=True)
class StoredComparison:
    """A comparison of methods on one iteration, as the page needs it.

    `iteration_summary` is about the whole iteration. `numbers_by_sample` has each method's `NUMBERS` by the sample's
    line in the file, from 1, and None for a method that does not select it. `group_cosines_by_sample` has the cosines
    of the sample's group, by the same line.
    """

    iteration_summary: Mapping[str, Any]
    numbers_by_sample: Mapping[int, list[list[float | None] | None]] = field(default_factory=dict)
    group_cosines_by_sample: Mapping[int, list[float | None]] = field(default_factory=dict)


def read_comparisons(layout: RunLayout) -> tuple[dict[int, StoredComparison], list[str]]:
    """The stored comparisons of a run by iteration, and a note for each file that could not be read."""
    found, notes = {}, []
    for iteration, path in iteration_files(layout.whatif, (".json",)):
        try:
            found[iteration] = comparison_of(
                json.loads(path.read_text(encoding="utf-8"), parse_constant=lambda _: None)
            )
        except (*UNREADABLE, KeyError, TypeError, ValueError, AttributeError) as error:
            notes.append(f"{path.parent.name}/{path.name} could not be read: {type(error).__name__}: {error}")
    return found, notes


def comparison_of(data: Mapping[str, Any]) -> StoredComparison:
    """The comparison in the JSON data of a file."""
    methods: Mapping[str, Mapping[str, Any]] = data["methods"]
    [first, *_] = methods.values()
    figures = [name for name in first if name not in ("cosines", "notes")]
    summary = {
        "methods": list(methods),
        "figures": [[name, [rounded(of[name]) for of in methods.values()]] for name in figures],
        "cosines": [[rounded(of["cosines"][name]) for name in methods] for of in methods.values()],
        "notes": [f"{name}: {note}" for name, of in methods.items() for note in of["notes"]]
        + [f"{name} is left out: {reason}" for name, reason in data["left_out"].items()],
    }
    of_sample, cosines = {}, {}
    for group in data["groups"]:
        of_group = [rounded(group["cosines"][name]) for name in methods]
        for sample in group["samples"]:
            of = [sample["methods"][name] for name in methods]
            of_sample[sample["sample"]] = [None if x is None else [rounded(x[key]) for key in NUMBERS] for x in of]
            cosines[sample["sample"]] = of_group
    return StoredComparison(summary, of_sample, cosines)


def rounded(x: float | None) -> float | None:
    """The number with six significant digits; None stays None.

    >>> rounded(0.123456789), rounded(None)
    (0.123457, None)
    """
    return None if x is None else float(f"{x:.6g}")
