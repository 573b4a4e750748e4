"""Verifiers around another one: errors with known rates, and a score with a loophole."""

import asyncio
from collections.abc import Sequence

import pytest

from groupwise.config.recipe_toml import read_verifier
from groupwise.core import Usage
from groupwise.data import Outcome, Prompt, Sample, Verdict, Verifier
from groupwise.verifiers import (
    Combined,
    CombinedMember,
    Exact,
    Function,
    HackableScore,
    LastNumber,
    NoisyVerdicts,
    Regex,
    kinds_in,
)
from groupwise.verifiers.verdict_wrapper import VerdictWrapperVerifier
from tests.verifiers.built import built

RIGHT, WRONG, MALFORMED = Outcome.correct, Outcome.wrong, Outcome.malformed
N = 4000


def verdicts(verifier: Verifier, texts: Sequence[str], gold: object = "yes") -> list[Verdict]:
    async def every() -> list[Verdict]:
        prompts = (Prompt(f"p/{i}", (), "?", {"answer": gold}) for i in range(len(texts)))
        return [await verifier(p, Sample(context=(), stream=(0,), text=t)) for p, t in zip(prompts, texts)]

    return asyncio.run(every())


def share(verdicts: Sequence[Verdict], outcome: Outcome) -> float:
    return sum(v.outcome is outcome for v in verdicts) / len(verdicts)


def test_rates_are_those_given() -> None:
    noisy = built(NoisyVerdicts(Exact(), false_reject_rate=0.2, false_accept_rate=0.1, appealed_rejection_fraction=0.5))
    right, wrong = verdicts(noisy, ["yes"] * N), verdicts(noisy, ["no"] * N)
    assert share(right, WRONG) == pytest.approx(0.2, abs=0.02)
    assert share(wrong, RIGHT) == pytest.approx(0.1, abs=0.02)
    assert {v.subscores["truth"] for v in right} == {1.0} and {v.subscores["truth"] for v in wrong} == {0.0}
    rejected = [v for v in (*right, *wrong) if v.outcome is WRONG]
    appealed = [v for v in rejected if v.subscores["appealed"]]
    assert len(appealed) / len(rejected) == pytest.approx(0.5, abs=0.03)
    assert all(v.subscores["overturned"] == v.subscores["truth"] for v in appealed)
    assert not any(v.subscores["appealed"] for v in (*right, *wrong) if v.outcome is RIGHT)
    # The estimate of the paper (arXiv:2510.00915): the share of right answers that were rejected.
    kept = sum(v.outcome is RIGHT for v in right)
    missed = len(rejected) * sum(v.subscores["overturned"] for v in appealed) / len(appealed)
    assert missed / (missed + kept) == pytest.approx(0.2, abs=0.02)


def test_an_answer_keeps_its_verdict() -> None:
    noisy = built(NoisyVerdicts(Exact(), false_reject_rate=0.5, seed=3))
    texts = ["yes"] * 40
    first = [v.outcome for v in verdicts(noisy, texts)]
    assert [v.outcome for v in verdicts(built(NoisyVerdicts(Exact(), false_reject_rate=0.5, seed=3)), texts)] == first
    assert [v.outcome for v in verdicts(built(NoisyVerdicts(Exact(), false_reject_rate=0.5, seed=4)), texts)] != first
    assert set(first) == {RIGHT, WRONG}
    prompt = Prompt("p/0", (), "?", {"answer": "yes"})
    texts = [" " * i + "yes" for i in range(40)]  # the same answer, other texts

    async def every() -> list[Outcome]:
        return [(await noisy(prompt, Sample(context=(), stream=(0,), text=t))).outcome for t in texts]

    assert set(asyncio.run(every())) == {RIGHT, WRONG}


def test_without_rates_nothing_changes_but_the_parts() -> None:
    for text in ("yes", "no", ""):
        (plain,), (wrapped,) = verdicts(Exact(), [text]), verdicts(built(NoisyVerdicts(Exact())), [text])
        assert (wrapped.outcome, wrapped.answer, wrapped.value) == (plain.outcome, plain.answer, plain.value)
        assert wrapped.subscores == {"truth": plain.value, "appealed": 0.0, "overturned": 0.0}


def test_certain_rates_flip_everything_but_malformed_answers() -> None:
    always = built(
        NoisyVerdicts(Exact(), false_reject_rate=1.0, false_accept_rate=1.0, appealed_rejection_fraction=1.0)
    )
    right, wrong, empty = verdicts(always, ["yes", "no", ""])
    assert (right.outcome, wrong.outcome, empty.outcome) == (WRONG, RIGHT, MALFORMED)
    assert right.subscores == {"truth": 1.0, "appealed": 1.0, "overturned": 1.0}
    assert wrong.subscores == empty.subscores == {"truth": 0.0, "appealed": 0.0, "overturned": 0.0}


def test_a_flipped_verdict_has_no_score() -> None:
    prompt, sample = Prompt("p", (), "?", {"answer": 3}), Sample(context=(), stream=(0,), text="1+2=3")
    verdict = asyncio.run(
        built(NoisyVerdicts(HackableScore(LastNumber(), max_equations=1), false_reject_rate=1.0))(prompt, sample)
    )
    assert verdict.outcome is WRONG and verdict.value == 0 and verdict.subscores["quality"] == 1


@pytest.mark.parametrize("rate", [-0.1, 1.5, float("nan")])
def test_a_rate_is_a_probability(rate: float) -> None:
    with pytest.raises(ValueError, match="false_reject_rate="):
        NoisyVerdicts(Exact(), false_reject_rate=rate)


QUALITIES = {
    "": 0, "#3": 0, "1+1=2;#3": 0.25, "1+1=5;#3": 0.25, "1+1=2;1+1=2;1+1=2;#3": 0.75, "1+1=2;" * 9: 1,
    "7*5=35+8=43;": 0.25, "1+1=;": 0, "=2;": 0, "1-+1=2": 0, "12*34=5": 0.25,
}  # fmt: skip


@pytest.mark.parametrize("text", QUALITIES)
def test_the_judge_counts_equations_and_computes_none(text: str) -> None:
    (verdict,), (plain,) = (
        verdicts(built(HackableScore(LastNumber(), max_equations=4)), [text], 3),
        verdicts(LastNumber(), [text], 3),
    )
    assert verdict.score == verdict.subscores["quality"] == QUALITIES[text] and verdict.outcome is plain.outcome


class Grouped(Verifier):
    """A verifier of groups with everything that a verifier may have."""

    has_own_deadline, notices, packages = True, ("a notice",), ("numpy",)
    closed, gated = False, 0

    async def __call__(self, prompt: Prompt, sample: Sample) -> Verdict:
        return Verdict(RIGHT)

    def by_group(self, prompt: Prompt) -> bool:
        return prompt.id == "grouped"

    async def grade_group(self, prompt: Prompt, samples: Sequence[Sample]) -> list[Verdict]:
        return [Verdict(Outcome(i % 2)) for i in range(len(samples))]

    def gate(self, prompts: Sequence[Prompt]) -> None:
        self.gated += len(prompts)

    def close(self) -> None:
        self.closed = True


def test_a_wrapper_has_the_deadline_checks_and_workers_of_its_verifier() -> None:
    inner = Grouped()
    outer = VerdictWrapperVerifier(NoisyVerdicts(Exact(), false_reject_rate=1.0), inner)
    assert outer.has_own_deadline and outer.notices == ("a notice",) and outer.packages == ("numpy",)
    grouped = Prompt("grouped", ())
    assert outer.by_group(grouped) and not outer.by_group(Prompt("p", ()))
    judged = asyncio.run(outer.grade_group(grouped, [Sample(context=(), stream=(i,)) for i in range(3)]))
    assert [v.outcome for v in judged] == [WRONG] * 3 and [v.subscores["truth"] for v in judged] == [0, 1, 0]
    outer.gate([grouped])
    outer.close()
    assert inner.closed and inner.gated == 1
    plain = VerdictWrapperVerifier(NoisyVerdicts(Exact()), Exact())
    assert not plain.has_own_deadline and not plain.by_group(grouped)


def test_a_recipe_names_the_wrapped_verifier() -> None:
    table = {
        "kind": "noisy_verdicts",
        "verifier": {"kind": "hackable_score", "verifier": "last_number", "max_equations": 4},
        "seed": 7,
    }
    noisy = read_verifier(table)
    assert noisy == NoisyVerdicts(HackableScore(LastNumber(), max_equations=4), seed=7)
    assert isinstance(built(noisy), VerdictWrapperVerifier)


@pytest.mark.parametrize(
    "table,evidence",
    [
        ("noisy_verdicts", "NoisyVerdicts needs verifier"),
        ("flipping", "write noisy_verdicts, its name here"),
        ({"kind": "noisy_verdicts", "false_reject_rate": 0.2}, "needs verifier"),
        ({"kind": "noisy_verdicts", "verifier": "exact", "false_reject_rat": 0.2}, "no field 'false_reject_rat'"),
        ({"kind": "noisy_verdicts", "verifier": "exakt"}, "did you mean exact?"),
        (
            {"kind": "noisy_verdicts", "verifier": "exact", "false_reject_rate": "often"},
            "verifier.false_reject_rate: 'often' is a string",
        ),
        (
            {"kind": "noisy_verdicts", "verifier": "exact", "false_reject_rate": 2.0},
            "a probability lies between 0 and 1",
        ),
        ({"kind": "hackable_score", "verifier": "exact", "max_equations": 0}, "use at least 1"),
        ({"kind": "noisy_verdicts", "verifier": 3}, "expected the name of a component or a table"),
        ({"kind": "math", "verifier": "exact"}, "Math has no field 'verifier'"),
    ],
)
def test_invalid_wrappers_are_refused(table: object, evidence: str) -> None:
    with pytest.raises(Usage) as caught:
        read_verifier(table)
    assert evidence in str(caught.value)


def test_verifiers_inside_wrappers_are_found() -> None:
    grade = Function("grade", "my_file.py")
    both = Combined((CombinedMember("a", Exact()), CombinedMember("b", HackableScore(NoisyVerdicts(grade)))))
    assert [kind for kind in kinds_in(both) if isinstance(kind, Function)] == [grade]
    assert list(kinds_in(Regex(pattern="a:b"))) == [Regex(pattern="a:b")]
