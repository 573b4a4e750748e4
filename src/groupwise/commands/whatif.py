"""`groupwise whatif`: other methods on a run's stored samples. `groupwise explain`: how a token got its gradient."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from groupwise.commands.table import aligned
from groupwise.config.user_code import Permissions, load_use
from groupwise.data import Usage, visible
from groupwise.runs.jsonl import finite
from groupwise.whatif.compare import (
    FIGURES,
    OWN,
    Comparison,
    compare_methods,
    groups_of,
    named_method,
    sample_numbers,
)  # fmt: skip
from groupwise.whatif.explain import Chain, explain_token
from groupwise.whatif.stored import StoredIteration, read_iteration

ABOUT = """\
gradient: d loss / d logp, one number per stored token, at the log-probs that the run stored; its cosines compare the
directions in which two methods push the tokens, before the model maps them to weights"""
TITLES = {
    "reward": "reward of sample",
    "advantage": "advantage, mean over its tokens",
    "weight": "weight, mean over its tokens",
    "gradient": "gradient, sum over its tokens",
}
"""The numbers of a sample that `whatif` prints, in the order of their tables, with their titles."""


def whatif(
    run: str, names: str, allowed: Permissions, *, iteration: int | None, group: int | None, as_json: bool
) -> int:
    """Print the rewards, advantages and gradients that methods give an iteration's stored samples, side by side."""
    stored = read_iteration(run, iteration, load_use(allowed))
    comparison = compare_methods(stored, list(dict.fromkeys(filter(None, names.replace(" ", "").split(",")))))
    rows = group_rows(stored, comparison, group) if group else []
    if as_json:
        print(json.dumps(finite(comparison_json(stored, comparison, rows)), indent=1))
        return 0
    lines = [heading(stored), "", *(group_tables(stored, comparison, rows) if group else figures(comparison)), ""]
    print(visible("\n".join([*lines, *reasons(stored, comparison), ABOUT]), lines=True))
    return 0


def explain(
    run: str, allowed: Permissions, *, iteration: int | None, sample: int, token: int, method: str, as_json: bool
) -> int:
    """Print how a token gets its gradient: each number from its sample's outcome to `d loss / d logp`."""
    stored = read_iteration(run, iteration, load_use(allowed))
    name, value = (method, named_method(method)) if method else (OWN, stored.recipe.method)
    chain = explain_token(stored, sample, token, name, value)
    if as_json:
        print(json.dumps(finite(asdict(chain)), indent=1))
        return 0
    print(visible("\n".join(chain_lines(stored, chain)), lines=True))
    return 0


def heading(stored: StoredIteration) -> str:
    """The heading: the iteration and its number of samples."""
    trained, groups = len(stored.batch), len(groups_of(stored))
    samples = f"{len(stored.lines)} samples in {groups} groups, {trained} trained"
    return f"iteration {stored.iteration} of {stored.run}: {samples}; {OWN}: {stored.method or 'its own method'}"


def figures(comparison: Comparison) -> list[str]:
    """The table of figures of the iteration, with one column for each method."""
    names = [each.name for each in comparison.methods]
    rows: list[tuple[str, Sequence[float | None]]] = [
        (title, [figure(each) for each in comparison.methods]) for title, figure in FIGURES.items()
    ]
    rows += [(f"cosine with {name}", cosines) for name, cosines in zip(names, comparison.cosines)]
    return columns(["", *names], rows)


def columns(head: Sequence[str], rows: Sequence[tuple[str, Sequence[float | None]]]) -> list[str]:
    """Lay rows of numbers out as aligned columns under their names."""
    return aligned([head, *([title, *map(number, values)] for title, values in rows)], numbers=True)


def number(x: float | None) -> str:
    """A number with four significant digits; `-` for none.

    >>> number(0.0123456), number(32), number(None)
    ('0.01235', '32', '-')
    """
    return "-" if x is None else f"{x:.4g}"


def group_rows(stored: StoredIteration, comparison: Comparison, group: int) -> list[dict[str, Any]]:
    """The samples of a group with the numbers of each method. Groups count from 1; `Usage` beyond the last."""
    groups = groups_of(stored)
    if group > len(groups):
        what = f"iteration {stored.iteration} has no group {group}"
        raise Usage(what, fix=f"choose one from 1 to {len(groups)}: --group {len(groups)}")
    numbers = {each.name: sample_numbers(stored, each) for each in comparison.methods}
    return [
        {
            "sample": line + 1,
            "outcome": stored.lines[line]["outcome"],
            "methods": {name: asdict(of[line]) if line in of else None for name, of in numbers.items()},
        }
        for line in groups[group - 1]
    ]


def group_tables(stored: StoredIteration, comparison: Comparison, rows: Sequence[dict[str, Any]]) -> list[str]:
    """The prompt of a group, and a table for each number with a row for each sample and a column for each method."""
    line = stored.lines[rows[0]["sample"] - 1]
    names = [each.name for each in comparison.methods]
    lines = [f"draw {line['draw']}, prompt {visible(str(line['prompt_id']))}: {visible(str(line['prompt'])[:200])}"]
    for key, title in TITLES.items():
        table = [
            (f"  {row['sample']}  {row['outcome']}", [(row["methods"][name] or {}).get(key) for name in names])
            for row in rows
        ]
        lines += ["", *columns([title, *names], table)]
    return lines


def reasons(stored: StoredIteration, comparison: Comparison) -> list[str]:
    """Lines about methods that are left out, and terms that could not be computed, with the reasons."""
    lines = [f"{name} is left out: {reason}" for name, reason in comparison.left_out.items()]
    return lines + [f"{each.name}: {note}" for each in comparison.methods for note in each.notes]


def comparison_json(stored: StoredIteration, comparison: Comparison, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The comparison as JSON data; it has the key `group` only if there are `rows`."""
    names = [each.name for each in comparison.methods]
    return {
        "run": str(stored.run),
        "iteration": stored.iteration,
        "method": stored.method,
        "methods": {
            each.name: {
                **{title: figure(each) for title, figure in FIGURES.items()},
                "cosines": dict(zip(names, cosines)),
                "notes": list(each.notes),
            }
            for each, cosines in zip(comparison.methods, comparison.cosines)
        },
        "left_out": dict(comparison.left_out),
        **({"group": rows} if rows else {}),
    }


def chain_lines(stored: StoredIteration, chain: Chain) -> list[str]:
    """A token's numbers, from outcome to gradient, as aligned lines: name, number, component."""
    line = stored.lines[chain.sample - 1]
    where = f"sample {chain.sample} of iteration {stored.iteration}, draw {line['draw']}"
    head = f'token {chain.token} of {chain.of}, "{visible(chain.text)}" (id {chain.id}), of {where}'
    cells = [
        (link.name, link.value if isinstance(link.value, str) else number(link.value), link.part)
        for link in chain.links
    ]
    widths = [max(len(row[i]) for row in cells) for i in range(2)]
    rows = [f"  {name:<{widths[0]}}  {shown:<{widths[1]}}  {part}".rstrip() for name, shown, part in cells]
    return [head, *rows, *chain.notes]
