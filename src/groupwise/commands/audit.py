"""`groupwise audit`: error rates of verifiers on answers that a person has labelled."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from groupwise.commands.terminal_tables import aligned
from groupwise.config.recipe_toml import read_verifier
from groupwise.config.toml import CommandLineValue
from groupwise.config.user_code import Permissions, UserCode, load_use
from groupwise.core import MissingRequirement, Usage, counted, plain_name, visible
from groupwise.data import Outcome, Verdict, Verifier, VerifierSettings
from groupwise.evaluation.interval import score
from groupwise.sandbox import Sandbox
from groupwise.verifiers import (
    Exact,
    Function,
    LastNumber,
    Math,
    MathDapo,
    MathDrGrpo,
    MathVerify,
    VerifierContext,
    grade_function,
)
from groupwise.verifiers.verifier_audit import (
    CHANGES,
    OF_WHOLE_TEXTS,
    AuditResult,
    LabelledCase,
    audit_cases,
    count_flips,
    packaged_cases,
    read_cases,
)

PEERS: tuple[VerifierSettings, ...] = (MathVerify(), MathDrGrpo(), MathDapo(), LastNumber())
"""Verifiers that the audit of `Math` alone also measures, for comparison. None with `--cases`."""
WITH_MATH_CASES = (*map(type, PEERS), Exact, Function)
"""Verifiers without packaged cases, which are audited on the cases of `math`."""


def audit(
    names: Sequence[str],
    allowed: Permissions = Permissions(),  # noqa: B008
    *,
    cases_path: str | None = None,
    listed: int = 10,
    families: bool = False,
) -> int:
    """Print the error rates of verifiers on one table of labelled cases, and the first verifier's wrong verdicts.

    With `families`, also the errors in each family of cases.
    """
    loaded = load_use(allowed)
    kinds = {name: read_verifier(CommandLineValue(name), loaded) for name in names}
    verifiers = {name: build(kind, loaded) for name, kind in kinds.items()}
    first_kind = kinds[names[0]]
    for notice in (line for verifier in verifiers.values() for line in verifier.notices):
        print(visible(notice))
    cases, source = cases_for(first_kind, cases_path)
    for peer in PEERS if len(names) == 1 and first_kind == Math() and cases_path is None else ():
        name = plain_name(type(peer).__name__)
        try:
            verifiers[name] = build(peer, loaded)
        except MissingRequirement as missing:
            print(visible(f"{name} is left out: {missing.evidence}"))
    changes = OF_WHOLE_TEXTS.get(type(first_kind), tuple(CHANGES))
    try:
        judged, flips = asyncio.run(judge_all(verifiers, cases, changes))
    finally:
        for verifier in verifiers.values():
            verifier.close()
    first = next(iter(judged.values()))
    tables = [*rates(judged, source), *(by_family(judged) if families else ()), *rewritten(flips)]
    print(visible("\n".join([*tables, *errors(names[0], first, listed)]), lines=True))
    return 0


def cases_for(kind: VerifierSettings, path: str | None) -> tuple[tuple[LabelledCase, ...], str]:
    """The labelled answers for the audit of a verifier, and their source."""
    if path is not None:
        return read_cases(path), path
    table = "math" if isinstance(kind, WITH_MATH_CASES) else plain_name(type(kind).__name__)
    if (cases := packaged_cases(table)) is None:
        raise Usage(f"there are no packaged cases for {type(kind).__name__}", fix="use your own: --cases FILE.jsonl")
    return cases, f"the packaged cases of {table}"


def build(kind: VerifierSettings, use: UserCode) -> Verifier:
    """The verifier with these settings, for any problems."""
    sandbox = partial(Sandbox, unsafe=use.unsafe_local_exec)

    def load(file: str, name: str) -> Verifier:
        return grade_function(use.function(file, name))

    return VerifierContext(None, sandbox, load, use.judge_access).build(kind)


async def judge_all(
    verifiers: Mapping[str, Verifier], cases: Sequence[LabelledCase], changes: Sequence[str]
) -> tuple[dict[str, AuditResult], dict[str, tuple[int, int]]]:
    """Run each verifier on all labelled answers, and the first also on these harmless changes of their notation."""
    judged = {name: await audit_cases(verifier, cases) for name, verifier in verifiers.items()}
    name, first = next(iter(verifiers.items()))
    return judged, await count_flips(first, judged[name], changes)


def rates(judged: Mapping[str, AuditResult], source: str) -> list[str]:
    """The table of error rates: one row per verifier."""
    cases = next(iter(judged.values())).cases
    wrong, right = sum(not c.right for c in cases), sum(c.right for c in cases)
    lines = [f"{counted(len(cases), 'answer')}, {right} of them right and {wrong} wrong: {source}", ""]
    rows: list[tuple[str, ...]] = [
        ("", f"false accepts of {wrong}", f"false rejects of {right}", "unverifiable", "p50", "p95")
    ]
    for name, j in judged.items():
        accepts, rejects = len(j.false_accepts), len(j.false_rejects)
        unknown = sum(v.outcome is Outcome.unverifiable for v in j.verdicts)
        times = (f"{1000 * j.latency(q):.1f} ms" for q in (0.5, 0.95))
        rows.append((name, share(accepts, wrong), share(rejects, right), str(unknown), *times))
    note = "in brackets: 95 % intervals; a right answer with an unverifiable verdict counts as rejected"
    return [*lines, *aligned(rows, numbers=True), note]


def by_family(judged: Mapping[str, AuditResult]) -> list[str]:
    """The table of errors in each family of cases: false accepts and false rejects of each verifier."""
    cases = next(iter(judged.values())).cases
    rows = [("", "wrong", "right", *(f"{name}: {kind}" for name in judged for kind in ("accepts", "rejects")))]
    for family in dict.fromkeys(case.family for case in cases):
        of = Counter(case.right for case in cases if case.family == family)
        errors = (errors for j in judged.values() for errors in (j.false_accepts, j.false_rejects))
        counts = (sum(case.family == family for case, _ in some) for some in errors)
        rows.append((family or "no family", str(of[False]), str(of[True]), *map(str, counts)))
    return ["", *aligned(rows, numbers=True)]


def share(count: int, of: int) -> str:
    """A count as text, with its percentage and Wilson's 95 % interval; `-` if there are no cases."""
    if not of:
        return "-"
    low, high = score(np.array([1.0] * count + [0.0] * (of - count)))
    return f"{count:>3}  {100 * count / of:4.1f} % ({100 * low:.1f} .. {100 * high:.1f})"


def rewritten(flips: Mapping[str, tuple[int, int]]) -> list[str]:
    """Lines for the terminal: how many verdicts each harmless change of notation changes."""
    if not flips:
        return []
    lines = ["", "changed verdicts when the same answers are rewritten:"]
    return [*lines, *(f"  {name:<24} {flipped:>4} of {count}" for name, (count, flipped) in flips.items())]


def errors(name: str, judged: AuditResult, listed: int) -> list[str]:
    """A verifier's false accepts and false rejects, one line per answer, at most `listed` of each."""
    lines = []
    for kind, cases in (("accepted, but wrong", judged.false_accepts), ("rejected, but right", judged.false_rejects)):
        if cases:
            lines += ["", f"{name}: {kind}"]
            lines += [f"  {line(case, verdict)}" for case, verdict in cases[:listed]]
            lines += [f"  and {len(cases) - listed} more: --list {len(cases)}"] * (len(cases) > listed)
    return lines


def line(case: LabelledCase, verdict: Verdict) -> str:
    """A line for the terminal about a labelled answer: answer, gold answer, outcome, reason."""
    reason = verdict.cause or verdict.feedback
    text = f"{case.answer[:100]!r}  gold {str(case.gold)[:60]!r}  {verdict.outcome.name}"
    return visible(f"{text}: {reason[:120]}" if reason else text)
