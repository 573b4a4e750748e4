"""Writes `report.html`: one run or several overlaid runs, in one file that opens from disk without a network."""

import hashlib
import html
import re
import shlex
import sys
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any

from groupwise.core import BadData, Storage, Usage, counted, visible
from groupwise.data import EVAL_LOSS, LOSS, REWARD
from groupwise.report.charts import charts_data
from groupwise.report.method_component_names import chain_parts
from groupwise.report.read_run import MetricCurve, ReportRun, as_float, flat, lines, read, thin
from groupwise.report.run_warnings import RULES, RunWarning, find_warnings, headline
from groupwise.report.sample_pictures import before_and_after
from groupwise.report.sample_selection import as_json, choose, files, packed, prompt_map, scan, steps
from groupwise.report.stored_comparisons import read_comparisons
from groupwise.runs.atomic_writes import DRAFT, check_writable, write_file
from groupwise.runs.best_checkpoint import METRICS, best_iteration, describe_best, held_out_values
from groupwise.runs.find_run import newest_run, no_run
from groupwise.runs.phase_directories import runs_in
from groupwise.runs.run_info import extensions
from groupwise.runs.run_layout import PICTURES, RunLayout

PAGE = Path(__file__).parent
STYLES = ("uplot/uPlot.min.css", "page.css")
SCRIPTS = (
    "uplot/uPlot.iife.min.js",
    "text.js",
    "curves.js",
    "chain.js",
    "compared.js",
    "pictures.js",
    "episodes.js",
    "rollouts.js",
    "prompts.js",
    "page.js",
)
LIVE = "live.js"  # the script of `watch`, which asks for new iterations
GROUPS = 64  # most groups on the page
BYTES = 2_900_000  # size limit of the page
POINTS = 2000  # most points of a curve; longer curves are thinned by bucket
FEWEST = 64  # a page that is too large has fewer points for each curve, but not fewer than these
FOR_ROLLOUTS = 400_000  # bytes that curves leave to the rollouts
FOR_PAIRS = 300_000  # most bytes of the prompts before and after training
# Controls; soft hyphen and zero widths; direction marks; separators; interlinear marks; lone surrogates; tags.
HIDDEN = (
    "[\x00-\x1f\x7f-\x9f\xad\u180e\u200b-\u200f\u2060-\u206f\ufeff\u061c\u2028-\u202e"
    "\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)


def report(runs: Sequence[str], out: str | None = None, *, quiet: bool = False) -> int:
    """The command `groupwise report`: write one page about one or several runs, whose curves are overlaid.

    With `quiet`, the path of the page is not printed.
    """
    layouts = [existing_run(r) for r in runs]
    page = Path(out) if out else layouts[0].report
    try:
        check_writable(page, "FILE.html")
        paths = [path for layout in layouts for path in runs_in(layout.run_directory)]
        written = write_report(paths, page)
        if not quiet:
            print(visible(str(written)))
        for path in paths:
            for gap in gaps(read(path)):
                print(visible(f"warning: {path}: {gap}"), file=sys.stderr)
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise
        evidence, fix = f"{error.strerror} ({error.filename})", "name a file that can be written: --out report.html"
        raise Storage("the report could not be written", evidence=evidence, fix=fix) from error
    return 0


def gaps(run: ReportRun) -> list[str]:
    """Warnings about missing data on a run's page: unreadable files or lines, or no metrics at all."""
    return [*run.unreadable_data_notes, *([] if run.metrics else [f"no metrics in {run.layout.metrics.name}"])]


def existing_run(run: str) -> RunLayout:
    """The files of a run, whose name may lack the time (`newest_run`).

    `BadData` if `run` is no run, or if it ended before it wrote its recipe.
    """
    directory = Path(newest_run(run))
    layout = RunLayout(directory)
    if layout.is_run:
        return layout
    before = (layout.lock, layout.info)  # written before the recipe
    if directory.is_dir() and all(p in before or p.name.startswith(DRAFT) for p in directory.iterdir()):
        raise BadData(
            f"the run in {run} is empty: it ended before it wrote anything",
            evidence=f"it has no {layout.recipe.name} and no results",
            fix="remove the directory and start the run again",
        )
    if not directory.exists():
        raise no_run(run)
    fix = "name a directory under runs/; train prints it"
    raise BadData(f"{run} is not a run", evidence=f"it has no {layout.recipe.name}", fix=fix)


Tables = Mapping[str, Sequence[Sequence[str]]]
"""Tables of text by their captions. The first row of each is its header."""
NO_TABLES: Tables = MappingProxyType({})


def write_report(runs: Sequence[Path], out: Path | None = None, tables: Tables = NO_TABLES) -> Path:
    """Write the page of one run or several overlaid runs to `out`. Default: `report.html` in the first run.

    Can be called during a run. An older page is replaced in one rename. `tables` are shown above the curves.
    """
    if not runs or not all(Path(path).is_dir() for path in runs):
        missing = [str(path) for path in runs if not Path(path).is_dir()]
        raise Usage(
            "a report needs existing run directories",
            evidence=", ".join(missing) or "none given",
            fix="name a directory of runs/",
        )
    read_runs = [read(Path(path)) for path in runs]
    out = Path(out) if out is not None else read_runs[0].layout.report
    write_file(out, page(read_runs, tables=tables).encode())
    return out


def page(runs: Sequence[ReportRun], *, version: str | None = None, tables: Tables = NO_TABLES) -> str:
    """The HTML document. Its security policy allows only its scripts and styles, by hash, and a live page's server.

    Pictures of samples are part of the document, and only then does the policy allow images, from it alone.
    With `version`, the live page of `watch`: the version of its data, and a script that asks the same server for newer
    ones.
    """
    names = unique([run.name for run in runs])
    checks = [find_warnings(run) for run in runs]
    live = version is not None
    scripts, styles = (
        [(PAGE / name).read_text(encoding="utf-8") for name in each]
        for each in ((*SCRIPTS, LIVE) if live else SCRIPTS, STYLES)
    )
    title, footer = " and ".join(names), "Served to this machine only." if live else "One file, no network."
    parts = {
        "policy": policy(scripts, styles, connect=live, images=live or any(map(has_pictures, runs))),
        "title": escaped(title),
        "footer": footer,
        "names": "".join(f"<span class=name>{escaped(name)}</span>" for name in names),
        "headlines": "".join(
            f"<p class=headline>{escaped(headline(run, len(warnings)))}</p>" for run, (warnings, _) in zip(runs, checks)
        ),
        "warnings": "".join(
            warning_line(w, name if len(runs) > 1 else "")
            for name, (warnings, _) in zip(names, checks)
            for w in warnings
        ),
        "tables": "".join(html_table(caption, rows) for caption, rows in tables.items()),
        "summary": "".join(summary(name, run) for name, run in zip(names, runs)),
        "styles": "".join(f"<style>{text}</style>" for text in styles),
        "scripts": "".join(f"<script>{text}</script>" for text in scripts),
    }
    template = (PAGE / "page.html").read_text(encoding="utf-8")
    of_page = {"version": version} if live else {}
    others = sum(len(text.encode()) for text in (template, *parts.values(), as_json(of_page)))
    parts["data"] = as_json(page_data(runs, BYTES - others) | of_page)
    # One pass, so that placeholders inside inserted text are not replaced.
    return re.sub(r"\{\{(\w+)\}\}", lambda placeholder: parts[placeholder[1]], template)


def page_data(runs: Sequence[ReportRun], limit: int = BYTES) -> dict[str, Any]:
    """The data that the page's scripts draw, in at most `limit` bytes: curves, warnings, prompts, and rollouts.

    If the curves do not leave 400,000 bytes to the rollouts, all of them are thinned further.
    """
    of_samples, choices = [], []
    for run in runs:
        groups, tally, texts = scan(run.layout)
        compared, notes = read_comparisons(run.layout)
        counts = {
            "of": sum(map(len, groups.values())),
            "iterations": len(groups),
            "parts": chain_parts(run.recipe_fields),
        }
        summaries = {"compared": {i: comparison.iteration_summary for i, comparison in compared.items() if i in groups}}
        rollouts = {"groups": [], "notes": notes} | counts | summaries
        pairs = before_and_after(
            files(run.layout), budget=FOR_PAIRS // len(runs), size=lambda entry: len(as_json(entry))
        )
        graded = {} if EVAL_LOSS in run.metrics and REWARD not in run.metrics else tally  # stored answers solve nothing
        of_samples.append({"map": prompt_map(graded, texts, runs=len(runs)), "pairs": pairs, "rollouts": rollouts})
        choices.append((groups, compared))
    points = POINTS
    while len(as_json(data := without_rollouts(runs, of_samples, points))) > limit - FOR_ROLLOUTS and points > FEWEST:
        points //= 2
    free = max(limit - len(as_json(data)), 0) // len(runs)
    for run, entry, (groups, compared) in zip(runs, data["runs"], choices):
        chosen, _ = choose(run.layout, groups, most=GROUPS // len(runs), budget=free, compared=compared)
        entry["rollouts"]["groups"] = chosen
    return data


def without_rollouts(runs: Sequence[ReportRun], of_samples: Sequence[dict[str, Any]], points: int) -> dict[str, Any]:
    """The page's data with at most `points` points for each curve, and without the rollouts."""
    xs: list[Any] = []
    described = []
    for name, run, of_run in zip(unique([run.name for run in runs]), runs, of_samples):
        warnings, unchecked = find_warnings(run)
        facts = {"name": name, "headline": headline(run, len(warnings)), "unchecked": unchecked}
        described.append(facts | {"warnings": [asdict(w) for w in warnings]} | describe(run, xs, points) | of_run)
    return {
        "runs": described,
        "xs": xs,
        "rules": {name: rule.description for name, rule in RULES.items()},
        "diff": differences(runs),
        **charts_data({name for run in runs for name in (*run.metrics, *run.timings)}),
    }


def describe(run: ReportRun, xs: list[Any], points: int) -> dict[str, Any]:
    """A run's data for the page, without its rollouts. Curves with equal iterations share one entry of `xs`."""

    def curves(table: dict[str, MetricCurve]) -> list[list[Any]]:
        rows = []
        for name, full in sorted(table.items()):
            curve = thin(full, points)
            at = steps(curve.iterations)
            if at not in xs:
                xs.append(at)
            rows.append(
                [
                    name,
                    xs.index(at),
                    packed(curve.metric_values),
                    len(full.iterations),
                    int((full.metric_values != full.metric_values).sum()),
                ]
            )
        return rows

    method = run.run_info.get("method")
    command = run.run_info.get("command", "")
    about = {
        k: v for k, v in run.run_info.items() if k not in ("format", "name", "command", "method", "recipe", "files")
    }
    facts = flat(about | warm_start_summary(run))
    return {
        "metrics": curves(dict(run.metrics)),
        "timings": curves(dict(run.timings)),
        "method": method if isinstance(method, dict) else {"name": method} if method else {},
        "command": shlex.join(map(str, command)) if isinstance(command, list) else str(command),
        "about": {k: str(v) for k, v in facts.items() if k and v not in ("", None, {}, [])},
        "recipe": run.recipe_text,
        "flags": sorted(run.ever_true_flags),
        "notes": [*seams(run), *selection(run), *run.unreadable_data_notes],
        "last": run.last,
    }


def seams(run: ReportRun) -> list[str]:
    """Lines about the extensions of a run to more iterations, if any."""
    return [
        f"Extended at iteration {at}, from {before} to {counted(after, 'iteration')}: the learning rate and the "
        f"schedules see {after} from there on. It is not a run of {after}."
        for at, before, after in extensions(run.run_info.get("changes"))
    ]


def selection(run: ReportRun) -> list[str]:
    """A note on a run's best evaluation, if there are several: the largest of several values is optimistic."""
    metric = str(run.recipe_fields.get("evaluate.best_metric") or "")
    curves = {name: run.metrics[name].finite for name in METRICS if name in run.metrics}
    rows: dict[int, dict[str, Any]] = {}
    for name, curve in curves.items():
        for at, value in zip(curve.iterations.tolist(), curve.metric_values.tolist()):
            rows.setdefault(at, {"iteration": at})[name] = value
    values = held_out_values(list(rows.values()), metric)
    best = best_iteration(values, values)
    if best is None or len(values) < 2:
        return []
    return [f"The best evaluation: {describe_best(values, best, metric)}. It is selected by its value: optimistic."]


def warm_start_summary(run: ReportRun) -> dict[str, str]:
    """A summary of the warm start: its steps, and its loss at each tenth of them; empty without a warm start."""
    losses = [as_float(row[LOSS]) for row in lines(RunLayout(run.layout.warm_start).metrics) if LOSS in row]
    if not losses:
        return {}
    tenths = dict.fromkeys(len(losses) * i // 10 for i in range(10)) | {len(losses) - 1: None}
    return {"warm start": f"{counted(len(losses), 'step')}, loss " + " ".join(f"{losses[i]:.3f}" for i in tenths)}


def differences(runs: Sequence[ReportRun]) -> list[list[Any]]:
    """Recipe fields that differ between the runs: [dotted key, values by run]."""
    keys = dict.fromkeys(key for run in runs for key in run.recipe_fields)
    rows = [[key, [repr(run.recipe_fields[key]) if key in run.recipe_fields else None for run in runs]] for key in keys]
    return [row for row in rows if any(value != row[1][0] for value in row[1])]


def has_pictures(run: ReportRun) -> bool:
    """Whether a run has pictures of samples."""
    return any(run.layout.samples.glob(f"*{PICTURES}"))


def policy(scripts: Iterable[str], styles: Iterable[str], *, connect: bool = False, images: bool = False) -> str:
    """The page's content security policy: only these scripts and styles; `connect` allows its own server.

    `images` allows pictures that are part of the document.
    """

    def hashes(texts: Iterable[str]) -> str:
        return " ".join(f"'sha256-{b64encode(hashlib.sha256(t.encode()).digest()).decode()}'" for t in texts)

    return (
        f"default-src 'none'; script-src {hashes(scripts)}; style-src {hashes(styles)}; "
        + "connect-src 'self'; " * connect
        + "img-src data:; " * images
        + "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )


def unique(names: Sequence[str]) -> list[str]:
    """Make names unique: append a number to each repetition.

    >>> unique(["a", "b", "a"])
    ['a', 'b', 'a (2)']
    """
    return [name if name not in names[:i] else f"{name} ({names[: i + 1].count(name)})" for i, name in enumerate(names)]


def escaped(text: str) -> str:
    """Text as HTML: escapes markup and makes characters that hide or reorder text visible.

    >>> escaped("<b>\\x1b[1m\\u202e")
    '&lt;b&gt;⟨U+001B⟩[1m⟨U+202E⟩'
    """
    return html.escape(re.sub(HIDDEN, lambda c: f"⟨U+{ord(c[0]):04X}⟩", text))


def warning_line(warning: RunWarning, name: str) -> str:
    """A warning as a list item. Its link opens the iteration."""
    run = f"<b>{escaped(name)}</b> " if name else ""
    link = f'<a href="#curves" data-iteration="{warning.iteration}">iteration {warning.iteration}</a>'
    return f"<li>{run}{escaped(warning.text)} {link}</li>"


def summary(name: str, run: ReportRun) -> str:
    """The table of metrics that a reader without scripts sees."""
    rows = [["metric", "first", "last", "lowest", "highest"]]
    for metric, curve in sorted({**run.metrics, **run.timings}.items()):
        values = curve.finite.metric_values
        if len(values):
            cells = (values[0], values[-1], values.min(), values.max())
            rows.append([metric, *(f"{x:.6g}" for x in cells)])
    return html_table(name, rows)


def html_table(caption: str, rows: Sequence[Sequence[str]]) -> str:
    """Rows of text as an HTML table; the first row is its header, the first cell of a row its heading.

    >>> html_table("a", [["x", "y"], ["<b>", "1"]]).partition("<tbody>")[2]
    '<tr><th scope=row>&lt;b&gt;</th><td>1</td></tr></tbody></table></div>'
    """
    head = "".join(f"<th scope=col>{escaped(word)}</th>" for word in rows[0])
    body = "".join(
        f"<tr><th scope=row>{escaped(first)}</th>{''.join(f'<td>{escaped(cell)}</td>' for cell in cells)}</tr>"
        for first, *cells in rows[1:]
    )
    table = f"<caption>{escaped(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    return f"<div class=scroll><table>{table}</table></div>"
