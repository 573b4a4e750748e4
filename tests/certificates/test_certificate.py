"""A certificate holds everything that `show` prints and the results of the proofs; its page escapes all text."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from groupwise.__main__ import main
from groupwise.certificates import certificate as certificates
from groupwise.certificates.certificate import Certificate, certificate_of, certify, commit_of
from groupwise.certificates.certificate_page import certificate_page
from groupwise.certificates.effect_comparisons import EffectComparison
from groupwise.certificates.proofs import ProofResult, proofs_of
from groupwise.commands import certify as command
from groupwise.commands.certify import write_certificates
from groupwise.config.registry import methods
from groupwise.core import Storage, Usage
from groupwise.methods import PaperDifference, reference_of

NAMES = list(methods())
PLANTED = '<script>window.__pwn = 1</script><img src=x onerror="window.__pwn = 1">'


def passing(tests, root=None) -> dict[str, ProofResult]:
    return {test: ProofResult(test, "passed", 1, 0.25) for test in tests}


def certificate(name: str) -> Certificate:
    return certificate_of(name, passing(proofs_of(methods()[name])), "0123456789ab")


class Text(HTMLParser):
    """The text of a page, and its tags."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.text, self.tags = "", []
        self.feed(page)

    def handle_data(self, data: str) -> None:
        self.text += data

    def handle_starttag(self, tag: str, attrs) -> None:
        self.tags.append(tag)


@pytest.mark.parametrize("name", NAMES)
def test_the_page_of_each_method_has_formula_constants_differences_and_proofs(name: str) -> None:
    c, reference = certificate(name), reference_of(methods()[name])
    text = Text(certificate_page(c)).text
    assert c.passed and c.name in text and reference.source in text and reference.evidence in text
    assert reference.formula in text and c.constants in text
    assert all(word in text for d in reference.differences for word in (d.subject, d.paper, d.code, d.ours))
    assert all(test in text for test in proofs_of(methods()[name]))
    assert all(change in text for change in c.changes) and bool(c.changes) == bool(c.parent)
    assert json.loads(json.dumps(c.as_json()))["proofs"][0]["result"] == "passed"


def test_no_text_is_markup() -> None:
    plain = certificate("gspo")
    planted = replace(
        plain, name=PLANTED, summary=PLANTED, paper=PLANTED, formula=PLANTED, constants=PLANTED, changes=(PLANTED,),
        parent=PLANTED, expected_effect=PLANTED, our_finding=PLANTED, commit=PLANTED, evidence=PLANTED,
        differences=(PaperDifference(PLANTED, PLANTED, PLANTED, PLANTED),), proofs=(ProofResult(PLANTED, "passed", 1,
        0.0),),
        versions={PLANTED: PLANTED},
    )  # fmt: skip
    page = Text(certificate_page(planted))
    assert page.text.count(PLANTED) >= 17
    assert not {"script", "img"} & set(page.tags)


def test_one_proof_that_did_not_pass_fails_the_certificate() -> None:
    for result in ("failed", "skipped", "missing"):
        proofs = (*certificate("gspo").proofs, ProofResult("a", result, 1, 0.0))
        failed = replace(certificate("gspo"), proofs=proofs)
        assert (
            not failed.passed
            and f"failed: {len(proofs) - 1} of {len(proofs)} proofs" in Text(certificate_page(failed)).text
        )


def test_all_proofs_run_once_in_one_process(monkeypatch) -> None:
    calls = []
    monkeypatch.setattr(certificates, "run_proofs", lambda tests, root: calls.append(list(tests)) or passing(calls[0]))
    assert [c.name for c in certify(["gspo", "grpo"])] == ["gspo", "grpo"]
    assert calls == [[test for name in ("gspo", "grpo") for test in proofs_of(methods()[name])]]


def test_the_command_writes_both_files_and_its_code_says_if_all_passed(monkeypatch, tmp_path: Path, capsys) -> None:
    monkeypatch.setattr(certificates, "run_proofs", passing)
    assert main(["certify", "gspo", "--out", str(tmp_path / "a")]) == 0
    n = len(proofs_of(methods()["gspo"]))
    first, second = capsys.readouterr().out.splitlines()
    assert first == "running the proofs (tests) of 1 method"
    assert second == f"gspo  {n} of {n} proofs passed  {tmp_path / 'a' / 'gspo.html'}"
    written = json.loads((tmp_path / "a" / "gspo.json").read_text())
    assert (
        written["passed"]
        and written["name"] == "gspo"
        and written["expected_effect"].startswith("eval/accuracy is higher")
    )
    assert (tmp_path / "a" / "gspo.html").read_text().startswith("<!doctype html>")
    failing = lambda tests, root: {t: replace(p, result="failed") for t, p in passing(tests).items()}  # noqa: E731
    monkeypatch.setattr(certificates, "run_proofs", failing)
    assert write_certificates("all", str(tmp_path / "b")) == 1
    assert sorted(path.stem for path in (tmp_path / "b").glob("*.html")) == sorted([*NAMES, "index"])
    assert capsys.readouterr().out.splitlines()[-1] == str(tmp_path / "b" / "index.html")


def test_the_effect_is_measured_first_and_its_measurement_is_in_both_files(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(certificates, "run_proofs", passing)
    calls, effect = [], reference_of(methods()["gspo"]).expected_effect
    monkeypatch.setattr(command, "run_studies", lambda names, root: calls.append(names))
    measured = EffectComparison(effect, (0.3, 0.31, 0.32), (0.0, 0.0, 0.0))
    monkeypatch.setattr(certificates, "measured_effect", lambda name, reference, root: measured if calls else None)
    for options, text in ([], "Not measured with this code."), (["--effect"], str(measured)):
        assert main(["certify", "gspo", "--out", str(tmp_path), *options]) == 0
        assert text in Text((tmp_path / "gspo.html").read_text()).text
    assert calls == [["gspo"]] and json.loads((tmp_path / "gspo.json").read_text())["measured"]["result"] == "shown"


def test_an_unknown_method_and_a_directory_that_cannot_be_written_are_errors(monkeypatch, tmp_path: Path) -> None:
    """The directory is checked before a test or a study runs, which takes minutes."""
    with pytest.raises(Usage, match="no method is called 'gsop'") as raised:
        write_certificates("gsop", str(tmp_path))
    assert raised.value.fix == "did you mean gspo?"
    with pytest.raises(Usage) as raised:
        write_certificates("qqq", str(tmp_path))
    assert re.fullmatch(r"the nearest are \w+, \w+, \w+; all of them: groupwise methods", raised.value.fix)
    monkeypatch.setattr(command, "certify", None)
    (tmp_path / "file").write_text("")
    with pytest.raises(Storage, match="the certificates could not be written"):
        write_certificates("gspo", str(tmp_path / "file"))


def test_the_commit_is_that_of_the_repository(tmp_path: Path) -> None:
    assert commit_of(tmp_path) == ""
