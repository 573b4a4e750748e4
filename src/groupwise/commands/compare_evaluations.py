"""`groupwise compare A B`: paired differences of two evaluations on the same problems."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from groupwise.core import BadData, Storage, Usage, or_near, visible
from groupwise.evaluation.accuracy import KS, NO_OUTCOMES, NO_VERDICT, columns
from groupwise.evaluation.evaluation_files import MAY_DIFFER, is_judged, model_label, read, tallies, task_label
from groupwise.evaluation.interval import averaged, paired, score_interval
from groupwise.runs.next_command import evaluate_command, recorded_code
from groupwise.runs.phase_directories import finished_run
from groupwise.runs.run_info import RunInfo, extensions
from groupwise.runs.run_layout import RunLayout


def compare(a: str, b: str, allow: Sequence[str] = ()) -> int:
    """Print the paired differences of two evaluations. `Usage` if settings beyond `MAY_DIFFER` and `allow` differ."""
    for left, right in pairs(Path(a), Path(b), allow):
        if left.samefile(right):
            raise Usage("A and B are the same evaluation", evidence=str(left), fix="name another run or file as B")
        print(visible("\n".join(table(left, right, allow)), lines=True))
    return 0


def pairs(a: Path, b: Path, allow: Sequence[str] = ()) -> list[tuple[Path, Path]]:
    """The pairs of evaluation files to compare: of two runs, the files with equal names; else the two files.

    If a run has several evaluations, the newest pair is compared whose protocols allow it. `Usage` without such a pair.
    """
    left, right, same = files(a), files(b), a.samefile(b)
    if a.is_dir() and b.is_dir() and not same:
        common = sorted(left.keys() & right.keys())
        if common:
            return [(left[name], right[name]) for name in common]
    if len(left) == len(right) == 1:
        return [(next(iter(left.values())), next(iter(right.values())))]
    both = [(x, y) for x in newest_first(left) for y in newest_first(right) if x != y]
    loaded = {file: read(file) for file in (*left.values(), *right.values())}
    if not same and (pair := next(((x, y) for x, y in both if comparable(loaded[x], loaded[y], allow)), None)):
        print(f"of {len(left)} and {len(right)} evaluations the newest with equal protocols; name two files for others")
        return [pair]
    named = "\n".join(f"{file}: {description(evaluation)}" for file, evaluation in loaded.items())
    one, other = both[0]
    fix = f"name two files: groupwise compare {shlex.quote(str(one))} {shlex.quote(str(other))}"
    what = "A and B are the same run" if same else "no two evaluations of A and B have equal protocols"
    raise Usage(what, evidence=named, fix=fix)


def newest_first(evaluations: Mapping[str, Path]) -> list[Path]:
    """Evaluation files by the time of their last change, the newest first; by name at a tie."""
    return sorted(evaluations.values(), key=lambda path: (-path.stat().st_mtime, path.name))


def comparable(a: Mapping[str, Any], b: Mapping[str, Any], allow: Sequence[str]) -> bool:
    """Whether two evaluations have equal numbers of results and problems, and protocols that `compare` accepts."""
    matched = list(zip(a["results"], b["results"]))
    return len(a["results"]) == len(b["results"]) and not any(
        len(x["problems"]) != len(y["problems"]) or forbidden(x["protocol"], y["protocol"], allow) for x, y in matched
    )


def description(evaluation: Mapping[str, Any]) -> str:
    """The tasks of an evaluation, with their sampling and the number of answers per problem."""
    protocols = [result["protocol"] for result in evaluation["results"]]
    return "; ".join(f"{task_label(protocol)}, {protocol['n']} answers" for protocol in protocols)


def files(path: Path) -> dict[str, Path]:
    """The evaluation files of a run, or of its last finished phase, by name; for a file, the file itself.

    Raises `BadData` if there are none.
    """
    if path.is_file():
        return {path.name: path}
    if not path.is_dir():
        fix = or_near(path, "name a run, or a file that eval wrote")
        raise BadData(f"{path} does not exist", evidence="no such file", fix=fix)
    path = finished_run(path) or path
    evaluations = sorted(RunLayout(path).evaluations.glob("*.json"))
    if not evaluations:
        fix = f"evaluate it first: {evaluate_command(path, *recorded_code(path))}"
        raise BadData(f"{path} has no evaluations", evidence=f"no file in {RunLayout(path).evaluations}", fix=fix)
    return {file.name: file for file in evaluations}


def table(a: Path, b: Path, allow: Sequence[str] = ()) -> list[str]:
    """The comparison of two evaluation files as lines of text."""
    left, right = read(a), read(b)
    if len(left["results"]) != len(right["results"]):
        kinds = "\n".join(
            f"{path}: {'; '.join(task_label(x['protocol']) for x in e['results'])}"
            for path, e in ((a, left), (b, right))
        )
        raise Usage(
            "these evaluations have different numbers of results",
            evidence=kinds,
            fix="evaluate both with the same options",
        )
    matched = list(zip(left["results"], right["results"]))
    for x, y in matched:
        check_protocols(x["protocol"], y["protocol"], allow)
        if len(x["problems"]) != len(y["problems"]):
            sizes = f"{len(x['problems'])} in A, {len(y['problems'])} in B"
            raise Usage(
                "the two evaluations are of different problems",
                evidence=sizes,
                fix="evaluate one of the models again, on the problems of the other",
            )
    models = [model_label(evaluation["results"][0]["protocol"]) for evaluation in (left, right)]
    lines = [visible(f"A: {a}  {models[0]}"), visible(f"B: {b}  {models[1]}")]
    lines += [visible(f"{name}: {line}") for name, path in (("A", a), ("B", b)) for line in seams(path)]
    for x, y in matched:
        lines += ["", *rows(x, y)]
    if "mean" in left and "mean" in right:
        averages = [average(x, y) for x, y in matched]
        lines += ["", f"{'mean of ' + str(len(matched)):<10}{difference(*pooled(averages))}"]
    return lines


def seams(evaluation: Path) -> list[str]:
    """One line for each extension of the evaluated run to more iterations, if the file is in the run's directory."""
    run = evaluation.resolve().parent.parent
    if RunLayout(run).evaluations != evaluation.resolve().parent or not RunLayout(run).is_run:
        return []
    try:
        changes = RunInfo.read(RunLayout(run)).changes
    except Storage:  # of another format, or damaged
        return []
    return [
        f"extended at iteration {at} from {k} to {n} iterations; not a run of {n}" for at, k, n in extensions(changes)
    ]


def check_protocols(a: Mapping[str, Any], b: Mapping[str, Any], allow: Sequence[str]) -> None:
    """Raise `Usage` with the settings that differ, affect the figures of an evaluation, and are not in `allow`."""
    if found := forbidden(a, b, allow):
        lines = [f"{name}: {shortened(x)} in A, {shortened(y)} in B" for name, x, y in found]
        fields = " ".join(f"--allow {name}" for name, _, _ in found)
        fix = "evaluate one of them again with the options of the other; or, to compare across this difference,\n"
        fix += f"add {fields} to the command"
        raise Usage(f"the protocols differ: {task_label(a)}", evidence="\n".join(lines), fix=fix)


def forbidden(a: Mapping[str, Any], b: Mapping[str, Any], allow: Sequence[str]) -> list[tuple[str, Any, Any]]:
    """The settings in which two evaluations differ, with both values, and which must be equal to compare them."""
    return [(name, x, y) for name, x, y in differences(a, b) if not within(name, (*MAY_DIFFER, *allow))]


def differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """The settings in which two evaluations differ, with both values; None for a setting that one does not have.

    >>> differences({"n": 1, "sampling": {"top_p": 1.0}}, {"n": 1, "sampling": {"top_p": 0.7}})
    [('sampling.top_p', 1.0, 0.7)]
    """
    flat_a, flat_b = dict(flat(a)), dict(flat(b))
    names = dict.fromkeys([*flat_a, *flat_b])
    return [(name, flat_a.get(name), flat_b.get(name)) for name in names if flat_a.get(name) != flat_b.get(name)]


def flat(record: Mapping[str, Any], under: str = "") -> Iterator[tuple[str, Any]]:
    """The nested settings of an evaluation (its protocol) as pairs of dotted name and value."""
    for name, value in record.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{under}{name}.")
        else:
            yield f"{under}{name}", value


def within(field: str, names: Sequence[str]) -> bool:
    """Whether a dotted field name is one of `names`, or lies below one of them.

    >>> within("model.sha256", ["model"]), within("sampling.top_p", ["sampling.top"])
    (True, False)
    """
    return any(field == name or field.startswith(f"{name}.") for name in names)


def shortened(value: Any) -> str:
    """The value of a setting as at most 60 characters; `nothing` for a missing one."""
    text = "nothing" if value is None else repr(value)
    return text if len(text) < 60 else f"{text[:20]}..."


def rows(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    """The comparison of two results on one task: both values of each figure, and their difference with its interval.

    `Usage` if the answers of one have only scores, and the other's only outcomes.
    """
    ks = [k for k in KS if k <= min(a["protocol"]["n"], b["protocol"]["n"])]
    left, right = problem_figures(a, ks), problem_figures(b, ks)
    common = [name for name in left if name in right]
    if not common and not (is_judged(a) and is_judged(b)):
        fix = "correct the verifier, and evaluate again; the evaluation prints the causes"
        which = " and ".join(name for name, result in (("A", a), ("B", b)) if not is_judged(result))
        raise Usage(f"{NO_VERDICT} in {which}", evidence=task_label(a["protocol"]), fix=fix)
    if not common:
        raise Usage(
            "one evaluation has scores, the other right and wrong answers: they cannot be compared",
            evidence=task_label(a["protocol"]),
            fix=NO_OUTCOMES,
        )
    count = f"avg@{a['protocol']['n']}" if a["protocol"]["n"] == b["protocol"]["n"] else "avg"
    lines = [
        f"{task_label(a['protocol'])}, {len(left[common[0]])} problems",
        f"{'':<10}     A      B   B - A  95 % over problems",
    ]
    for name in common:
        x, y = left[name], right[name]
        ends = score_interval(y - x) if name == "score" else paired(x, y)
        lines.append(f"{count if name == 'avg' else name:<10}{difference(x.mean(), y.mean(), ends)}")
    x, y = left[common[0]], right[common[0]]
    better, worse, equal = (int(which.sum()) for which in (y > x, y < x, y == x))
    return [*lines, f"{'':<10} B is better on {better} problems, A on {worse}, equal on {equal}"]


def problem_figures(result: Mapping[str, Any], ks: Sequence[int]) -> dict[str, NDArray[np.float64]]:
    """For each figure of a result (`avg`, pass@k, maj@k, `score`), its value on each problem."""
    values = columns(tallies(result), ks) if f"avg@{result['protocol']['n']}" in result["figures"] else {}
    values |= {"score": result["scores"]} if "score" in result["figures"] else {}
    return {name: np.array(column) for name, column in values.items()}


def difference(a: float, b: float, interval: tuple[float, float]) -> str:
    """Two means, and their difference with its interval, as text.

    >>> difference(0.25, 0.75, (0.375, 0.625))
    ' 0.250  0.750  +0.500  (+0.375 .. +0.625)'
    """
    low, high = interval
    line = f" {a:.3f}  {b:.3f}  {b - a:+.3f}  ({low:+.3f} .. {high:+.3f})"
    return line if low > 0 or high < 0 else f"{line}  the interval contains 0"


def average(a: Mapping[str, Any], b: Mapping[str, Any]) -> tuple[float, float, tuple[float, float]]:
    """The mean share of right answers in both evaluations, and the interval of their difference."""
    x, y = (np.array([t.share for t in tallies(result)]) for result in (a, b))
    return float(x.mean()), float(y.mean()), paired(x, y)


def pooled(averages: Sequence[tuple[float, float, tuple[float, float]]]) -> tuple[float, float, tuple[float, float]]:
    """The means of both evaluations, averaged over tasks with equal weights, and the interval of their difference."""
    a, b = (sum(row[i] for row in averages) / len(averages) for i in (0, 1))  # type: ignore[misc]
    return a, b, averaged([y - x for x, y, _ in averages], [interval for _, _, interval in averages])
