"""An evaluation as a file: numbers, each with its protocol and what every problem came to; written, read, told."""

import json
import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from groupwise.data import BadData, Rollout, Storage, visible
from groupwise.evaluation.conversations import describe_conversations
from groupwise.evaluation.evaluate import MOST_VOTES, NO_VOTE, Tally, causes, counts, figures, lengths, tally
from groupwise.evaluation.interval import averaged
from groupwise.runs.disk import write_file

FORMAT = 1
KS = (2, 4, 8, 16, 32, 64)
"""For which k there is a pass@k and a maj@k, where there are as many answers."""
FOLDER = "evaluations"
"""Where in a run its evaluations lie."""
MAY_DIFFER = ("model", "task.name", "n", "seed", "seed_rule", "engine", "interval", "versions")
"""What two comparable numbers may differ in. The model is what is compared. How many answers there are and under which
random numbers says how sure a number is, not what it is of; so does the engine."""


def number(rollouts: Sequence[Rollout], protocol: Mapping[str, Any]) -> dict[str, Any]:
    """What an evaluation's answers came to."""
    tallies, n = [tally(f) for f in rollouts], protocol["n"]
    found = figures(tallies, n, [k for k in KS if k <= n])
    return {
        "protocol": dict(protocol),
        "figures": {name: [x.value, x.low, x.high] for name, x in found.items()},
        "counts": counts(rollouts),
        "causes": causes(rollouts),
        "lengths": lengths(rollouts),
        "conversations": describe_conversations(rollouts),
        "problems": [[t.id, t.answers, t.right, t.others] for t in tallies],
    }


def tallies(number: Mapping[str, Any]) -> list[Tally]:
    """What each problem's answers came to."""
    return [Tally(id, n, right, None if votes is None else tuple(votes)) for id, n, right, votes in number["problems"]]


def kind(protocol: Mapping[str, Any]) -> str:
    """A number in a few words: of what, and how the answers were drawn."""
    law = protocol["sampling"]
    cuts = [f"{name} {law[name]:g}" for name, off in (("top_p", 1), ("top_k", 0), ("min_p", 0)) if law[name] != off]
    drawn = ", ".join([f"temperature {law['temperature']:g}", *cuts]) if law["temperature"] else "greedy"
    return visible(f"{protocol['task']['name']}, {drawn}")


def named(protocol: Mapping[str, Any]) -> str:
    """Whose number it is."""
    return visible(f"model {protocol['model']['name']}, sha256 {protocol['model']['sha256'][:12]}")


def told(number: Mapping[str, Any]) -> list[str]:
    """A number as a person reads it, one figure a line."""
    protocol, problems = number["protocol"], tallies(number)
    lines = [kind(protocol)]
    for name, (value, low, high) in number["figures"].items():
        lines.append(f"{name:<10} {value:.3f}  ({low:.3f} .. {high:.3f}, 95 % over {len(problems)} problems)")
    if protocol["n"] > 1 and not all(t.votes for t in problems):
        lines.append(f"maj@k is left out: {NO_VOTE}, or there are more than {MOST_VOTES} answers to a problem")
    answers = sum(t.answers for t in problems)
    for name, count in number["counts"].items():
        size = number["lengths"].get(name)
        more = f"  {size['mean']:.1f} tokens on average, {size['longest']} at most" if size else ""
        lines.append(f"{name:<13} {count:>6} of {answers}{more}")
    lines += [f"{visible(name):<24} {x:.3f}" for name, x in number.get("conversations", {}).items()]
    return lines


def mean_of(numbers: Sequence[Mapping[str, Any]]) -> list[float]:
    """The unweighted mean of the tasks' shares of right answers, with its interval."""
    figures = [x["figures"][f"avg@{x['protocol']['n']}"] for x in numbers]
    values = [value for value, _, _ in figures]
    return [sum(values) / len(values), *averaged(values, [(low, high) for _, low, high in figures])]


def shown_evaluation(evaluation: Mapping[str, Any]) -> str:
    """All numbers, one under the other."""
    blocks = ["\n".join(told(number)) for number in evaluation["numbers"]]
    if "mean" in evaluation:
        value, low, high = evaluation["mean"]
        blocks.append(f"mean of {len(blocks)}  {value:.3f}  ({low:.3f} .. {high:.3f}, 95 % over the problems of each)")
    return "\n\n".join(blocks)


def file_name(evaluation: Mapping[str, Any]) -> str:
    """A name that tells evaluations of one run apart, and is the same for two runs that were asked the same.

    It stands for all fields of the protocols but those of the model, the engine and the versions.
    """
    protocols = [x["protocol"] for x in evaluation["numbers"]]
    kept = [{k: v for k, v in x.items() if k not in ("model", "engine", "versions")} for x in protocols]
    mark = sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:8]
    task = re.sub(r"[^\w.-]+", "-", Path(protocols[0]["task"]["name"].partition("@")[0]).stem).strip("-")
    return f"{evaluation['preset'] or task}-{mark}.json"


def write(path: Path, evaluation: Mapping[str, Any]) -> None:
    """The file, whole or not at all."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, json.dumps({"format": FORMAT, **evaluation}, indent=1).encode() + b"\n")
    except OSError as error:
        seen = f"{error.strerror} ({error.filename or path})"
        raise Storage("the numbers could not be written", evidence=seen, fix="say where to: --out FILE.json") from error


def read(path: Path) -> dict[str, Any]:
    """An evaluation that was written. `BadData` for anything else."""
    again = "write it again: groupwise eval MODEL_OR_RUN --out FILE.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadData(f"{path} cannot be read", evidence=str(error.strerror), fix=again) from error
    except (ValueError, RecursionError) as error:
        raise BadData(f"{path} is not JSON", evidence=str(error), fix=again) from error
    if not isinstance(found, dict) or "format" not in found:
        raise BadData(f"{path} is no evaluation", evidence="it says no format", fix=again)
    if found["format"] != FORMAT:
        seen = f"format {found['format']!r}; this version knows {FORMAT}"
        raise BadData(f"{path} was written by another version", evidence=seen, fix=again)
    try:
        whole = bool(found["numbers"]) and all(sound(x) for x in found["numbers"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadData(f"{path} is damaged", evidence=f"{type(error).__name__}: {error}", fix=again) from error
    if not whole:
        raise BadData(f"{path} is damaged", evidence="its numbers do not follow from its problems", fix=again)
    return found


def sound(number: Mapping[str, Any]) -> bool:
    """Whether a number of a file has its protocol, and is what its own problems come to."""
    protocol, problems = number["protocol"], tallies(number)
    name, n = f"avg@{protocol['n']}", len(problems)
    mean = sum(t.share for t in problems) / n if n else 0.0
    return (
        bool(named(protocol) and kind(protocol))
        and n == protocol["task"]["problems"]
        and all(0 <= t.right <= t.answers and t.right + sum(t.others or ()) <= t.answers for t in problems)
        and abs(number["figures"][name][0] - mean) < 1e-9
    )
