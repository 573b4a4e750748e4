"""A comparison as JSON data: `whatif --json` prints it, and `whatif --report` stores it in the run for its report."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from groupwise.runs.atomic_writes import REPEAT, storage_errors, write_file
from groupwise.runs.json_lines import json_line
from groupwise.runs.run_layout import RunLayout
from groupwise.whatif.compare_methods import FIGURES, MethodComparison, group_cosines, groups_of, sample_numbers
from groupwise.whatif.stored_iteration import StoredIteration


def comparison_json(stored: StoredIteration, comparison: MethodComparison) -> dict[str, Any]:
    """The figures of each method over the whole iteration, their cosines, and what is left out."""
    names = [each.method_name for each in comparison.recomputed_methods]
    return {
        "run": str(stored.run_directory),
        "iteration": stored.iteration,
        "method": stored.method_name,
        "methods": {
            each.method_name: {
                **{title: figure(each) for title, figure in FIGURES.items()},
                "cosines": dict(zip(names, cosines)),
                "notes": list(each.omission_notes),
            }
            for each, cosines in zip(comparison.recomputed_methods, comparison.gradient_cosines)
        },
        "left_out": dict(comparison.omitted_methods),
    }


def group_json(stored: StoredIteration, comparison: MethodComparison) -> list[dict[str, Any]]:
    """Each group: its samples with the numbers of each method, and the cosines with the first method's gradient."""
    names = [each.method_name for each in comparison.recomputed_methods]
    numbers = {each.method_name: sample_numbers(stored, each) for each in comparison.recomputed_methods}
    return [
        {
            "samples": [
                {
                    "sample": line + 1,
                    "outcome": stored.sample_records[line]["outcome"],
                    "methods": {name: asdict(of[line]) if line in of else None for name, of in numbers.items()},
                }
                for line in members
            ],
            "cosines": dict(zip(names, group_cosines(stored, comparison, members))),
        }
        for members in groups_of(stored)
    ]


def write_comparison(stored: StoredIteration, comparison: MethodComparison, groups: Sequence[dict[str, Any]]) -> None:
    """Store a comparison in the run's folder whatif/. It replaces an earlier one of the same iteration."""
    path = RunLayout(stored.run_directory).comparison(stored.iteration)
    data = json_line(comparison_json(stored, comparison) | {"groups": groups})
    with storage_errors("the comparison", path.parent, len(data), then=REPEAT):
        path.parent.mkdir(exist_ok=True)
        write_file(path, data)
