"""`groupwise audit`: how often verifiers err on answers that a reader has decided, side by side."""

import asyncio
import re
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from groupwise.config.user_code import Use, load_use
from groupwise.data import MissingRequirement, Outcome, Usage, Verdict, Verifier, visible
from groupwise.evaluation.interval import score
from groupwise.sandbox import Sandbox
from groupwise.verifiers import find_verifier, grade_function
from groupwise.verifiers.audit import CHANGES, OF_WHOLE_TEXTS, Case, Judged, changed, judge, packaged_cases, read_cases

BESIDE = {"math": ("math_verify", "math_dr_grpo", "math_dapo", "last_number")}
"""Whose rows stand beside a verifier's where nobody names any."""
OF_MATHS = (*BESIDE["math"], "exact")
"""Verifiers without a table of their own that are asked the one of `math`, as one's own functions are."""


def audit(
    names: Sequence[str],
    use: Sequence[str] = (),
    *,
    cases_path: str | None = None,
    listed: int = 10,
    unsafe_local_exec: bool = False,
    keys: Sequence[str] = (),
    judges: Sequence[str] = (),
) -> int:
    """The error rates of verifiers on one table of cases, and the errors of the first."""
    loaded = load_use(use, unsafe_local_exec=unsafe_local_exec, keys=keys, judges=judges)
    verifiers = {name: verifier_named(name, loaded) for name in names}
    for notice in (line for verifier in verifiers.values() for line in getattr(verifier, "notices", ())):
        print(visible(notice))
    cases, source = cases_for(names[0], cases_path)
    for peer in BESIDE.get(names[0], ()) if len(names) == 1 and cases_path is None else ():
        try:
            verifiers[peer] = verifier_named(peer, loaded)
        except MissingRequirement as absent:
            print(visible(f"{peer} is left out: {absent.evidence}"))
    try:
        judged, flips = asyncio.run(judge_all(verifiers, cases))
    finally:
        for verifier in verifiers.values():
            getattr(verifier, "close", lambda: None)()
    first = next(iter(judged.values()))
    print(visible("\n".join([*rates(judged, source), *rewritten(flips), *errors(names[0], first, listed)]), lines=True))
    return 0


def cases_for(name: str, path: str | None) -> tuple[tuple[Case, ...], str]:
    """The cases to ask, and what they are called."""
    if path is not None:
        return read_cases(path), path
    table = "math" if head(name) in OF_MATHS or ":" in name.partition("(")[0] else head(name)
    if (cases := packaged_cases(table)) is None:
        raise Usage(f"there is no table of cases for {name}", fix="bring your own: --cases FILE.jsonl")
    return cases, f"the packaged cases of {table}"


def verifier_named(name: str, use: Use) -> Verifier:
    sandbox = partial(Sandbox, unsafe=use.unsafe_local_exec)
    return find_verifier(name, None, sandbox, own=lambda own: grade_function(use.find(own)), judges=use.judges)


async def judge_all(
    verifiers: Mapping[str, Verifier], cases: Sequence[Case]
) -> tuple[dict[str, Judged], dict[str, tuple[int, int]]]:
    """What each says of the cases, and how often another writing changes what the first says."""
    judged = {name: await judge(verifier, cases) for name, verifier in verifiers.items()}
    name, first = next(iter(verifiers.items()))
    return judged, await changed(first, judged[name], OF_WHOLE_TEXTS.get(head(name), tuple(CHANGES)))


def head(name: str) -> str:
    """A verifier's name without its fields."""
    return re.split(r"\W", name)[0]


def rates(judged: Mapping[str, Judged], source: str) -> list[str]:
    """A row for each verifier."""
    cases = next(iter(judged.values())).cases
    wrong, right = sum(not c.right for c in cases), sum(c.right for c in cases)
    lines = [f"{len(cases)} answers, {right} of them right and {wrong} wrong: {source}", ""]
    rows: list[tuple[str, ...]] = [
        ("", f"false accepts of {wrong}", f"false rejects of {right}", "unverifiable", "p50", "p95")
    ]
    for name, j in judged.items():
        accepts, rejects = len(j.false_accepts), len(j.false_rejects)
        unknown = sum(v.outcome is Outcome.unverifiable for v in j.verdicts)
        times = (f"{1000 * j.latency(q):.1f} ms" for q in (0.5, 0.95))
        rows.append((name, share(accepts, wrong), share(rejects, right), str(unknown), *times))
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines += ["  ".join([r[0].ljust(widths[0]), *map(str.rjust, r[1:], widths[1:])]).rstrip() for r in rows]
    return [*lines, "in brackets: 95 % intervals; an unverifiable answer that is right counts as rejected"]


def share(count: int, of: int) -> str:
    """A count, its share and Wilson's interval."""
    if not of:
        return "-"
    low, high = score(np.array([1.0] * count + [0.0] * (of - count)))
    return f"{count:>3}  {100 * count / of:4.1f} % ({100 * low:.1f} .. {100 * high:.1f})"


def rewritten(flips: Mapping[str, tuple[int, int]]) -> list[str]:
    """What writing the same answer otherwise changes."""
    if not flips:
        return []
    lines = ["", "the same answers written otherwise, and how many verdicts that changes:"]
    return [*lines, *(f"  {name:<24} {flipped:>4} of {asked}" for name, (asked, flipped) in flips.items())]


def errors(name: str, judged: Judged, listed: int) -> list[str]:
    """The answers on which a verifier erred, a line each."""
    lines = []
    for what, found in (("accepted, and wrong", judged.false_accepts), ("rejected, and right", judged.false_rejects)):
        if found:
            lines += ["", f"{name}: {what}"]
            lines += [f"  {line(case, verdict)}" for case, verdict in found[:listed]]
            lines += [f"  and {len(found) - listed} more: --list {len(found)}"] * (len(found) > listed)
    return lines


def line(case: Case, verdict: Verdict) -> str:
    why = verdict.cause or verdict.feedback
    said = f"{case.answer[:100]!r}  gold {str(case.gold)[:60]!r}  {verdict.outcome.name}"
    return visible(f"{said}: {why[:120]}" if why else said)
