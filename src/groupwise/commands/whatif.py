"""`groupwise whatif`: other methods on a run's stored samples. `groupwise explain`: how a token got its gradient."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from groupwise.commands.terminal_tables import aligned
from groupwise.config.user_code import Permissions, load_use
from groupwise.core import BadData, Usage, counted, visible
from groupwise.report.report import report
from groupwise.runs.json_lines import finite
from groupwise.whatif.compare_methods import FIGURES, OWN, MethodComparison, compare_methods, groups_of, named_method
from groupwise.whatif.comparison_json import comparison_json, group_json, write_comparison
from groupwise.whatif.explain_gradient import GradientChain, explain_token
from groupwise.whatif.stored_iteration import StoredIteration, read_iteration

ABOUT = """\
gradient: d loss / d logp, one number per stored token, at the log-probs that the run stored; its cosines compare the
directions in which two methods push the tokens, before the model maps them to weights"""
TITLES = {
    "reward": "reward of sample",
    "advantage": "advantage, mean over its tokens",
    "weight": "weight, mean over its tokens",
    "clipped": "share of its tokens clipped",
    "gradient_sum": "gradient, sum over its tokens",
}
"""The numbers of a sample that `whatif` prints, in the order of their tables, with their titles."""


def whatif(
    run: str,
    names: str,
    allowed: Permissions,
    *,
    iteration: int | None,
    group: int | None,
    as_json: bool,
    in_report: bool,
) -> int:
    """Print the rewards, advantages and gradients that methods give an iteration's stored samples, side by side.

    With `in_report`, also store them in the run and write its report, which shows them.
    """
    stored = read_iteration(run, iteration, load_use(allowed))
    check_group(stored, group)
    comparison = compare_methods(stored, list(dict.fromkeys(filter(None, names.replace(" ", "").split(",")))))
    if not comparison.recomputed_methods:
        raise none_computed(comparison)
    groups = group_json(stored, comparison) if group or in_report else []
    chosen = groups[group - 1] if group else None
    if in_report:
        write_comparison(stored, comparison, groups)
    if as_json:
        data = comparison_json(stored, comparison) | ({"group": chosen["samples"]} if chosen else {})
        print(json.dumps(finite(data), indent=1))
    else:
        tables = group_tables(stored, comparison, chosen) if chosen else figures(comparison)
        lines = [heading(stored), "", *tables, "", *reasons(comparison), ABOUT]
        print(visible("\n".join(lines), lines=True))
    return report([str(stored.run_directory)], quiet=as_json) if in_report else 0


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
    samples = f"{counted(len(stored.sample_records), 'sample')} in {counted(groups, 'group')}, {trained} trained"
    own = stored.method_name or "its own method"
    return f"iteration {stored.iteration} of {stored.run_directory}: {samples}; {OWN}: {own}"


def figures(comparison: MethodComparison) -> list[str]:
    """The table of figures of the iteration, with one column for each method."""
    names = [each.method_name for each in comparison.recomputed_methods]
    rows: list[tuple[str, Sequence[float | None]]] = [
        (title, [figure(each) for each in comparison.recomputed_methods]) for title, figure in FIGURES.items()
    ]
    rows += [(f"cosine with {name}", cosines) for name, cosines in zip(names, comparison.gradient_cosines)]
    return columns(["", *names], rows)


def columns(head: Sequence[str], rows: Sequence[tuple[str, Sequence[float | None]]]) -> list[str]:
    """Lay rows of numbers out as aligned columns under their names."""
    return aligned([head, *([title, *map(formatted, values)] for title, values in rows)], numbers=True)


def formatted(x: float | None) -> str:
    """A number with four significant digits; `-` for none.

    >>> formatted(0.0123456), formatted(32), formatted(None)
    ('0.01235', '32', '-')
    """
    return "-" if x is None else f"{x:.4g}"


def none_computed(comparison: MethodComparison) -> BadData:
    """The error of a comparison in which every method is left out."""
    reasons = "; ".join(f"{name}: {reason}" for name, reason in comparison.omitted_methods.items())
    fix = "name others: --methods grpo,gspo; groupwise methods lists all"
    return BadData("none of these methods can be computed from the stored samples", evidence=reasons, fix=fix)


def check_group(stored: StoredIteration, group: int | None) -> None:
    """Raise `Usage` for a group beyond the last one. Groups count from 1."""
    if group and group > (last := len(groups_of(stored))):
        what = f"iteration {stored.iteration} has no group {group}"
        raise Usage(what, fix=f"choose one from 1 to {last}: --group {last}")


def group_tables(stored: StoredIteration, comparison: MethodComparison, group: Mapping[str, Any]) -> list[str]:
    """The prompt of a group, a table for each number with a row for each sample, and the cosines of its gradients."""
    rows = group["samples"]
    line = stored.sample_records[rows[0]["sample"] - 1]
    names = [each.method_name for each in comparison.recomputed_methods]
    lines = [f"draw {line['draw']}, prompt {visible(str(line['prompt_id']))}: {visible(str(line['prompt'])[:200])}"]
    for key, title in TITLES.items():
        table = [
            (f"  {row['sample']}  {row['outcome']}", [(row["methods"][name] or {}).get(key) for name in names])
            for row in rows
        ]
        lines += ["", *columns([title, *names], table)]
    return [*lines, "", *columns(["", *names], [(f"cosine with {names[0]}", list(group["cosines"].values()))])]


def reasons(comparison: MethodComparison) -> list[str]:
    """Lines about methods that are left out, and terms that could not be computed, with the reasons."""
    lines = [f"{name} is left out: {reason}" for name, reason in comparison.omitted_methods.items()]
    return lines + [
        f"{each.method_name}: {note}" for each in comparison.recomputed_methods for note in each.omission_notes
    ]


def chain_lines(stored: StoredIteration, chain: GradientChain) -> list[str]:
    """A token's numbers, from outcome to gradient, as aligned lines: name, number, component."""
    line = stored.sample_records[chain.sample_number - 1]
    where = f"sample {chain.sample_number} of iteration {stored.iteration}, draw {line['draw']}"
    text = visible(chain.token_text)
    head = f'token {chain.token_number} of {chain.sample_token_count}, "{text}" (id {chain.token_id}), of {where}'
    cells = [
        (
            link.number_name,
            link.number_value if isinstance(link.number_value, str) else formatted(link.number_value),
            link.component,
        )
        for link in chain.links
    ]
    widths = [max(len(row[i]) for row in cells) for i in range(2)]
    rows = [f"  {name:<{widths[0]}}  {shown:<{widths[1]}}  {part}".rstrip() for name, shown, part in cells]
    return [head, *rows, *chain.omission_notes]
