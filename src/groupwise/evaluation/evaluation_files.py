"""Evaluation files: write, read and print results, with the settings they depend on and counts per problem."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from math import fsum, isclose
from pathlib import Path
from typing import Any

from groupwise.core import BadData, Storage, visible
from groupwise.data import Rollout
from groupwise.evaluation.accuracy import (
    KS,
    MOST_VOTES,
    NO_OUTCOMES,
    NO_VERDICT,
    NO_VOTE,
    ProblemTally,
    causes,
    counts,
    figures,
    has_outcomes,
    has_scores,
    has_verdicts,
    lengths,
    mean,
    mean_score,
    problem_scores,
    tally,
)
from groupwise.evaluation.by_column import figures_by
from groupwise.evaluation.conversation_metrics import describe_conversations
from groupwise.evaluation.interval import averaged
from groupwise.runs.atomic_writes import check_writable, write_file
from groupwise.runs.run_layout import numbered

FORMAT = 1
CAUSES = 3
"""The most causes of unverifiable answers that are printed; the file has all of them."""
MAY_DIFFER = ("model", "task.name", "n", "seed", "seed_rule", "engine", "interval", "versions")
"""Settings in which two results may differ and still be compared. The model is the subject of the comparison. The
number of answers, the random numbers and the engine affect the precision of a number, not its meaning."""


def task_result(rollouts: Sequence[Rollout], protocol: Mapping[str, Any], *, by: str = "") -> dict[str, Any]:
    """One task's result as JSON: figures such as pass@k, counts per problem, and the settings (protocol).

    Verdicts with outcomes have the share of right answers; verdicts with scores have the mean score. Without a judged
    answer there is no figure. `by` is a column of the rows: each of its values has a figure, too.
    """
    tallies, n = [tally(f) for f in rollouts], protocol["n"]
    judged = has_verdicts(rollouts) and has_outcomes(rollouts)
    values = figures(tallies, n, [k for k in KS if k <= n]) if judged else {}
    scored = has_scores(rollouts)
    values |= {"score": mean_score(rollouts)} if scored else {}
    return {
        "protocol": dict(protocol),
        "figures": {name: [x.value, x.low, x.high] for name, x in values.items()},
        "by": {name: [x.value, x.low, x.high, count] for name, (count, x) in figures_by(rollouts, by).items()},
        "counts": counts(rollouts),
        "causes": causes(rollouts),
        "lengths": lengths(rollouts),
        "conversations": describe_conversations(rollouts),
        "problems": [[t.id, t.answer_count, t.correct_count, t.wrong_counts] for t in tallies],
        **({"scores": problem_scores(rollouts)} if scored else {}),
    }


def tallies(result: Mapping[str, Any]) -> list[ProblemTally]:
    """The counts of each problem in a stored result. TypeError if one is not a whole number."""
    counts = [x for _, n, right, votes in result["problems"] for x in (n, right, *(votes or ()))]
    if not all(isinstance(x, int) for x in counts):
        raise TypeError("a count of answers is not a whole number")
    return [
        ProblemTally(id, n, right, None if votes is None else tuple(votes))
        for id, n, right, votes in result["problems"]
    ]


def is_judged(result: Mapping[str, Any]) -> bool:
    """Whether at least one answer of a result has a verdict other than `unverifiable`."""
    return any(result["counts"].get(name) for name in ("correct", "wrong", "malformed", "scored"))


def task_label(protocol: Mapping[str, Any]) -> str:
    """The task and the sampling parameters of a result, as text."""
    sampling = protocol["sampling"]
    defaults = (("top_p", 1), ("top_k", 0), ("min_p", 0))
    cuts = [f"{name} {sampling[name]:g}" for name, default in defaults if sampling[name] != default]
    label = ", ".join([f"temperature {sampling['temperature']:g}", *cuts]) if sampling["temperature"] else "greedy"
    return visible(f"{protocol['task']['name']}, {label}")


def model_label(protocol: Mapping[str, Any]) -> str:
    """The model of a result, with the start of its hash."""
    return visible(f"model {protocol['model']['name']}, sha256 {protocol['model']['sha256'][:12]}")


def interval_text(low: float, high: float, problems: int) -> str:
    """The interval of a figure as text. A bootstrap of one score, or of equal scores, says nothing: a dash.

    >>> interval_text(0.2, 0.4, 9), interval_text(0.5, 0.5, 9), interval_text(0.5, 0.5, 1)
    ('(0.200 .. 0.400, 95 % over 9 problems)', '(-, 9 problems with equal scores)', '(-, 1 problem)')
    """
    counted = f"{problems} problem{'s' * (problems != 1)}"
    if low == high:
        return f"(-, {counted} with equal scores)" if problems > 1 else f"(-, {counted})"
    return f"({low:.3f} .. {high:.3f}, 95 % over {counted})"


def result_lines(result: Mapping[str, Any]) -> list[str]:
    """One task's result as text, one figure per line."""
    protocol, problems = result["protocol"], tallies(result)
    lines = [task_label(protocol)]
    for name, (value, low, high) in result["figures"].items():
        lines.append(f"{name:<10} {value:.3f}  {interval_text(low, high, len(problems))}")
    for name, (value, low, high, count) in result.get("by", {}).items():
        lines.append(f"{visible(name):<10} {value:.3f}  {interval_text(low, high, count)}")
    if (average := f"avg@{protocol['n']}") not in result["figures"]:
        lines.append(f"{average:<10} -      {NO_OUTCOMES if is_judged(result) else NO_VERDICT}")
    elif protocol["n"] > 1 and not all(t.has_votes for t in problems):
        lines.append(f"maj@k is left out: {NO_VOTE}, or there are more than {MOST_VOTES} answers to a problem")
    answers = sum(t.answer_count for t in problems)
    for name, count in result["counts"].items():
        size = result["lengths"].get(name)
        tokens = f"  {size['mean']:.1f} tokens on average, {size['longest']} at most" if size else ""
        lines.append(f"{name:<13} {count:>6} of {answers}{tokens}")
    for cause, count in list(result.get("causes", {}).items())[:CAUSES]:
        lines.append(visible(f"  {count} unverifiable: {cause}"))
    lines += [f"{visible(name):<24} {x:.3f}" for name, x in result.get("conversations", {}).items()]
    return lines


def mean_of(results: Sequence[Mapping[str, Any]]) -> list[float] | None:
    """The mean accuracy over several tasks with equal weights, and its interval.

    None if a task has no share of right answers: its answers have only scores, or none could be judged.
    """
    names = [f"avg@{x['protocol']['n']}" for x in results]
    if any(name not in x["figures"] for name, x in zip(names, results)):
        return None
    figures = [x["figures"][name] for name, x in zip(names, results)]
    values = [value for value, _, _ in figures]
    return [sum(values) / len(values), *averaged(values, [(low, high) for _, low, high in figures])]


def evaluation_text(evaluation: Mapping[str, Any]) -> str:
    """All results of an evaluation as text."""
    blocks = ["\n".join(result_lines(result)) for result in evaluation["results"]]
    if "mean" in evaluation:
        value, low, high = evaluation["mean"]
        blocks.append(f"mean of {len(blocks)}  {value:.3f}  ({low:.3f} .. {high:.3f}, 95 % over the problems of each)")
    return "\n\n".join(blocks)


def file_name(evaluation: Mapping[str, Any], iteration: int | None = None) -> str:
    """A file name derived from an evaluation's settings: equal for equal settings, else unique within a run.

    It depends on all fields of the protocols except model, engine and versions, and on the `iteration` of a checkpoint.
    """
    protocols = [x["protocol"] for x in evaluation["results"]]
    fields = [{k: v for k, v in x.items() if k not in ("model", "engine", "versions")} for x in protocols]
    mark = sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:8]
    task = re.sub(r"[^\w.-]+", "-", Path(protocols[0]["task"]["name"].partition("@")[0]).stem).strip("-")
    at = "" if iteration is None else f"-at-{numbered(iteration)}"
    return f"{evaluation['preset'] or task}-{mark}{at}.json"


def write(path: Path, evaluation: Mapping[str, Any]) -> None:
    """Write an evaluation file atomically."""
    with write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, json.dumps({"format": FORMAT, **evaluation}, indent=1).encode() + b"\n")


def check_file(path: Path) -> None:
    """Raise an error if an evaluation file cannot be written, before its answers are generated. Creates its folder."""
    with write_errors(path):
        check_writable(path, "FILE.json")


@contextmanager
def write_errors(path: Path) -> Iterator[None]:
    """A context that turns an OSError into a `Storage` error about the evaluation file."""
    try:
        yield
    except OSError as error:
        evidence = f"{error.strerror} ({error.filename or path})"
        raise Storage(
            "the evaluation could not be written", evidence=evidence, fix="name another file: --out FILE.json"
        ) from error


def read(path: Path) -> dict[str, Any]:
    """Read an evaluation file. `BadData` for any other file."""
    again = "write it again: groupwise eval MODEL_OR_RUN --out FILE.json"
    try:
        evaluation = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadData(f"{path} cannot be read", evidence=str(error.strerror), fix=again) from error
    except (ValueError, RecursionError) as error:
        raise BadData(f"{path} is not JSON", evidence=str(error), fix=again) from error
    if not isinstance(evaluation, dict) or "format" not in evaluation:
        raise BadData(f"{path} is not an evaluation", evidence="it has no key format", fix=again)
    if evaluation["format"] != FORMAT:
        evidence = f"format {evaluation['format']!r}; this version reads {FORMAT}"
        raise BadData(f"{path} was written by another version", evidence=evidence, fix=again)
    try:
        consistent = bool(evaluation["results"]) and all(is_consistent(x) for x in evaluation["results"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadData(f"{path} is damaged", evidence=f"{type(error).__name__}: {error}", fix=again) from error
    if not consistent:
        raise BadData(
            f"{path} is damaged", evidence="its figures do not follow from the counts of its problems", fix=again
        )
    return evaluation


def is_consistent(result: Any) -> bool:
    """Whether a stored result is intact: it has its settings, and its counts and scores give its accuracy and score."""
    protocol, problems = result["protocol"], tallies(result)
    n, figures, scores = len(problems), result["figures"], result.get("scores", [])
    expected = {}
    if (average := f"avg@{protocol['n']}") in figures or (is_judged(result) and "score" not in figures):
        expected[average] = mean([t.share for t in problems])
    if "score" in figures:
        expected["score"] = fsum(scores) / max(1, n)
    return (
        bool(model_label(protocol) and task_label(protocol))
        and n == protocol["task"]["problems"]
        and all(
            0 <= t.correct_count <= t.answer_count and t.correct_count + sum(t.wrong_counts or ()) <= t.answer_count
            for t in problems
        )
        and len(scores) == ("score" in figures) * n
        and all(isclose(figures[name][0], value, rel_tol=1e-9, abs_tol=1e-9) for name, value in expected.items())
    )
