"""`Certificate`: a published method, its source, differences from it, and the results of its tests."""

import inspect
import platform
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

from groupwise.certificates.effect_comparisons import EffectComparison, measured_effect
from groupwise.certificates.proofs import ProofResult, proofs_of, repository, run_proofs
from groupwise.config import recipe_toml
from groupwise.config.diff import diff
from groupwise.config.registry import methods, public_name, socket_of
from groupwise.data import with_fields
from groupwise.methods import Method, PaperDifference, reference_of
from groupwise.methods.families import method_family

PACKAGES = ("groupwise", "torch", "numpy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """A published method with its test results. `constants` is TOML, `changes` are the differences from its `parent`.

    `components`: the names of its components by socket. `measured_effect` is the stored measurement of its
    `expected_effect`, if the code is the same since, and `toy_test` the test that computes the effect exactly.

    `commit` ends in `-modified` if a tracked file of the package or of its tests has changes; it is empty outside git.
    """

    name: str
    summary: str
    family: str
    paper: str
    arxiv: str
    year: int
    evidence: str
    authors_code: str
    contribution_kind: str
    parent: str
    formula: str
    constants: str
    components: Mapping[str, tuple[str, ...]]
    changes: tuple[str, ...]
    differences: tuple[PaperDifference, ...]
    expected_effect: str
    unmeasured_reason: str
    toy_test: str
    measured_effect: EffectComparison | None
    our_finding: str
    proofs: tuple[ProofResult, ...]
    commit: str
    versions: Mapping[str, str]

    @property
    def passed(self) -> bool:
        """Whether each test of the method ran and passed."""
        return all(proof.result == "passed" for proof in self.proofs)

    @property
    def verdict(self) -> str:
        """`passed`, `failed`, or `not run` if no test has run."""
        not_run = all(proof.result == "not run" for proof in self.proofs)
        return "not run" if not_run else "passed" if self.passed else "failed"

    def as_json(self) -> dict[str, Any]:
        """The content of the JSON file."""
        measured = self.measured_effect and self.measured_effect.as_json()
        return {"format": 1, "passed": self.passed, **asdict(self), "measured": measured}


def certify(names: Sequence[str]) -> Iterator[Certificate]:
    """Run the tests of published methods, in one process and each test once, and return their certificates."""
    root = repository()
    proofs = run_proofs((test for name in names for test in proofs_of(methods()[name])), root)
    commit = commit_of(root)
    measured = {name: measured_effect(name, reference_of(methods()[name]), root) for name in names}
    return (certificate_of(name, proofs, commit, measured[name]) for name in names)


def describe(names: Sequence[str]) -> tuple[Certificate, ...]:
    """The certificates of published methods without test results, commit and measurement, since no test has run."""
    proofs = {test: ProofResult(test, "not run", 0, 0.0) for name in names for test in proofs_of(methods()[name])}
    return tuple(certificate_of(name, proofs, "") for name in names)


def certificate_of(
    name: str, proofs: Mapping[str, ProofResult], commit: str, measured: EffectComparison | None = None
) -> Certificate:
    """Create a method's certificate from the test results and the measurement of its effect."""
    known = methods()
    method, reference = known[name], reference_of(known[name])
    return Certificate(
        name=name,
        summary=" ".join((inspect.getdoc(method) or "").partition("\n\n")[0].split()),
        family=method_family(name),
        paper=reference.source,
        arxiv=reference.arxiv,
        year=reference.year,
        evidence=reference.evidence,
        authors_code=reference.code,
        contribution_kind=reference.contribution_kind,
        parent=reference.parent,
        formula=reference.formula,
        constants=recipe_toml.write(method()).rstrip(),
        components=parts_of(method()),
        changes=tuple(diff(known[reference.parent](), method())) if reference.parent else (),
        differences=reference.differences,
        expected_effect=reference.expected_effect.claim(name) if reference.expected_effect else "",
        unmeasured_reason=reference.unmeasured_reason,
        toy_test=reference.toy_test,
        measured_effect=measured,
        our_finding=reference.our_finding,
        proofs=tuple(proofs[test] for test in proofs_of(method)),
        commit=commit,
        versions={"python": platform.python_version(), **{package: version(package) for package in PACKAGES}},
    )


def parts_of(method: Method) -> dict[str, tuple[str, ...]]:
    """The names of a method's components by kind (advantage, surrogate, ...), with those inside other components.

    >>> from groupwise.methods import gspo
    >>> parts_of(gspo())["Surrogate"], parts_of(gspo())["Ratio"]
    (('Clip',), ('sequence_ratio',))
    """
    names: dict[str, set[str]] = {}
    for part in with_fields(tuple(getattr(method, f.name) for f in fields(method))):
        if (socket := socket_of(part)) is not None:
            names.setdefault(socket.__name__, set()).add(public_name(part))
    return {socket: tuple(sorted(names[socket])) for socket in sorted(names)}


def commit_of(root: Path) -> str:
    """The current commit of a repository; empty without git."""

    def git(*words: str) -> str:
        try:
            done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=False)
        except FileNotFoundError:
            return ""
        return done.stdout.strip() if done.returncode == 0 else ""

    commit = git("rev-parse", "--short=12", "HEAD")
    return commit + "-modified" * bool(commit and git("status", "--porcelain", "-uno", "--", "src", "tests"))
