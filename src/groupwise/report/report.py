"""`report.html`: a run, or several laid over each other, in one file that opens from disk and needs no network."""

import hashlib
import html
import re
import shlex
from base64 import b64encode
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from groupwise.data import BadData, Storage, Usage, visible
from groupwise.report.read import Curve, Run, flat, lines, number, read, thin
from groupwise.report.rollouts import as_json, choose, packed, prompt_map, scan, steps
from groupwise.report.warnings import RULES, Sign, signs, verdict
from groupwise.runs.disk import ABOUT, DRAFT, RECIPE, write_file

PAGE = Path(__file__).parent
STYLES = ("uplot/uPlot.min.css", "page.css")
SCRIPTS = ("uplot/uPlot.iife.min.js", "text.js", "curves.js", "rollouts.js", "prompts.js", "page.js")
GROUPS = 64  # groups of rollouts on the page, at most
BYTES = 2_900_000  # of the whole page
POINTS = 2000  # of a curve; longer ones are thinned by bucket
# Controls; soft hyphen and zero widths; what sets direction; separators; interlinear marks; half a pair; tags.
HIDING = (
    "[\x00-\x1f\x7f-\x9f\xad\u180e\u200b-\u200f\u2060-\u206f\ufeff\u061c\u2028-\u202e"
    "\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)


def report(runs: Sequence[str], out: str | None = None) -> int:
    """The report of one run, or of several laid over each other."""
    found = [existing_run(r) for r in runs]
    try:
        print(visible(str(write_report(found, Path(out) if out else None))))
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise
        seen, fix = f"{error.strerror} ({error.filename})", "name a file that can be written: --out report.html"
        raise Storage("the report could not be written", evidence=seen, fix=fix) from error
    return 0


def existing_run(run: str) -> Path:
    """The directory of a run. `BadData` for another, and for a run that was ended before its recipe was written."""
    directory = Path(run)
    if (directory / RECIPE).is_file():
        return directory
    if directory.is_dir() and all(p.name in ("lock", ABOUT) or p.name.startswith(DRAFT) for p in directory.iterdir()):
        raise BadData(
            f"the run in {run} is empty: it was ended before its first number",
            evidence=f"it holds no {RECIPE}, and nothing that was computed",
            fix="remove the directory and start the run again",
        )
    raise BadData(
        f"{run} is not a run",
        evidence=f"it holds no {RECIPE}",
        fix="name a directory under runs/, as train printed it",
    )


def write_report(runs: Sequence[Path], out: Path | None = None) -> Path:
    """Write the page of one run, or of several laid over each other, to `out` (`report.html` in the first run).

    Reads only what is there, so it may be called while a run is being written; replaces an older page in one rename.
    """
    if not runs or not all(Path(path).is_dir() for path in runs):
        missing = [str(path) for path in runs if not Path(path).is_dir()]
        raise Usage(
            "a report needs run directories",
            evidence=", ".join(missing) or "none given",
            fix="name a directory of runs/",
        )
    out = Path(out) if out is not None else Path(runs[0]) / "report.html"
    write_file(out, page([read(Path(path)) for path in runs]).encode())
    return out


def page(runs: Sequence[Run]) -> str:
    """The whole document. Every script and style is allowed by its hash, everything else is forbidden."""
    names = unique([run.name for run in runs])
    found = [signs(run) for run in runs]
    verdicts = [verdict(run, len(warnings)) for run, (warnings, _) in zip(runs, found)]
    xs: list[Any] = []
    described = [
        {"name": name, "verdict": line, "signs": [asdict(s) for s in warnings], "unchecked": unchecked}
        | describe(run, xs)
        for name, run, line, (warnings, unchecked) in zip(names, runs, verdicts, found)
    ]
    styles, scripts = ([(PAGE / name).read_text(encoding="utf-8") for name in each] for each in (STYLES, SCRIPTS))
    title = " and ".join(names)
    parts = {
        "policy": policy(scripts, styles),
        "title": shown(title),
        "names": "".join(f"<span class=name>{shown(name)}</span>" for name in names),
        "verdicts": "".join(f"<p class=verdict>{shown(line)}</p>" for line in verdicts),
        "warnings": "".join(warning(s, name if len(runs) > 1 else "") for name, (w, _) in zip(names, found) for s in w),
        "summary": "".join(summary(name, run) for name, run in zip(names, runs)),
        "styles": "".join(f"<style>{text}</style>" for text in styles),
        "scripts": "".join(f"<script>{text}</script>" for text in scripts),
    }
    data = {"runs": described, "xs": xs, "rules": {k: r.says for k, r in RULES.items()}, "diff": differences(runs)}
    room = BYTES - sum(map(len, parts.values())) - len(as_json(data))
    for run, its in zip(runs, described):
        groups, tally, texts = scan(run.path)
        its["map"] = prompt_map(tally, texts)
        room -= len(as_json(its["map"]))
        chosen, _ = choose(run.path, groups, most=GROUPS // len(runs), budget=max(room, 400_000) // len(runs))
        its["rollouts"] = {"groups": chosen, "of": sum(map(len, groups.values())), "iterations": len(groups)}
    parts["data"] = as_json(data)
    template = (PAGE / "page.html").read_text(encoding="utf-8")
    # One pass: what is filled in is not searched for holes again.
    return re.sub(r"\{\{(\w+)\}\}", lambda hole: parts[hole[1]], template)


def describe(run: Run, xs: list[Any]) -> dict[str, Any]:
    """What the page draws of a run but its rollouts; iterations that curves share stand once, in `xs`."""

    def curves(table: dict[str, Curve]) -> list[list[Any]]:
        rows = []
        for name, whole in sorted(table.items()):
            curve = thin(whole, POINTS)
            at = steps(curve.at)
            if at not in xs:
                xs.append(at)
            rows.append(
                [name, xs.index(at), packed(curve.value), len(whole.at), int((whole.value != whole.value).sum())]
            )
        return rows

    method = run.about.get("method")
    command = run.about.get("command", "")
    left = {k: v for k, v in run.about.items() if k not in ("name", "command", "method", "recipe", "files")}
    return {
        "metrics": curves(dict(run.metrics)),
        "timings": curves(dict(run.timings)),
        "method": method if isinstance(method, dict) else {"name": method} if method else {},
        "command": shlex.join(map(str, command)) if isinstance(command, list) else str(command),
        "about": {k: str(v) for k, v in flat(left | taught(run)).items() if k and v not in ("", None, {}, [])},
        "recipe": run.recipe,
        "flags": sorted(run.flags),
        "notes": list(run.notes),
        "last": run.last,
    }


def taught(run: Run) -> dict[str, str]:
    """How far the supervised phase came, if the run has one: its loss at each tenth of it."""
    losses = [number(row.get("loss")) for row in lines(run.path / "warm_start" / "metrics.jsonl")]
    if not losses:
        return {}
    tenths = dict.fromkeys(len(losses) * i // 10 for i in range(10)) | {len(losses) - 1: None}
    return {"warm start": f"{len(losses)} steps, loss " + " ".join(f"{losses[i]:.3f}" for i in tenths)}


def differences(runs: Sequence[Run]) -> list[list[Any]]:
    """Recipe fields that are not the same in all runs: [dotted key, value in each]."""
    keys = dict.fromkeys(key for run in runs for key in run.fields)
    rows = [[key, [repr(run.fields[key]) if key in run.fields else None for run in runs]] for key in keys]
    return [row for row in rows if any(value != row[1][0] for value in row[1])]


def policy(scripts: Iterable[str], styles: Iterable[str]) -> str:
    """The content security policy: nothing but these scripts and styles."""

    def hashes(texts: Iterable[str]) -> str:
        return " ".join(f"'sha256-{b64encode(hashlib.sha256(t.encode()).digest()).decode()}'" for t in texts)

    return (
        f"default-src 'none'; script-src {hashes(scripts)}; style-src {hashes(styles)}; "
        "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )


def unique(names: Sequence[str]) -> list[str]:
    """Names told apart by a number where they are equal.

    >>> unique(["a", "b", "a"])
    ['a', 'b', 'a (2)']
    """
    return [name if name not in names[:i] else f"{name} ({names[: i + 1].count(name)})" for i, name in enumerate(names)]


def shown(text: str) -> str:
    """Text as HTML: markup escaped, and characters that hide or reorder text made visible.

    >>> shown("<b>\\x1b[1m\\u202e")
    '&lt;b&gt;⟨U+001B⟩[1m⟨U+202E⟩'
    """
    return html.escape(re.sub(HIDING, lambda c: f"⟨U+{ord(c[0]):04X}⟩", text))


def warning(sign: Sign, name: str) -> str:
    """A line of the warnings strip; the script makes it jump."""
    who = f"<b>{shown(name)}</b> " if name else ""
    link = f'<a href="#curves" data-iteration="{sign.iteration}">iteration {sign.iteration}</a>'
    return f"<li>{who}{shown(sign.text)} {link}</li>"


def summary(name: str, run: Run) -> str:
    """The table that is left where scripts are off."""
    rows = []
    for metric, curve in sorted({**run.metrics, **run.timings}.items()):
        good = curve.finite.value
        if len(good):
            cells = (good[0], good[-1], good.min(), good.max())
            rows.append(
                f"<tr><th scope=row>{shown(metric)}</th>" + "".join(f"<td>{x:.6g}</td>" for x in cells) + "</tr>"
            )
    head = "".join(f"<th scope=col>{word}</th>" for word in ("metric", "first", "last", "lowest", "highest"))
    body = f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody>"
    return f"<div class=scroll><table><caption>{shown(name)}</caption>{body}</table></div>"
