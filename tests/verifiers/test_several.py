"""Several verifiers at once: the outcome of the first, the weighted mean of all scores, a part for each."""

import asyncio
from typing import Any

import pytest

from groupwise.core import Usage
from groupwise.data import Draw, Outcome, Prompt, Rollout, Sample, Verdict, pack
from groupwise.objective import describe_samples
from groupwise.verifiers import find_verifier, user_functions
from groupwise.verifiers.several import Member, Several

SHAPED = "several(right=last_number, shape=0.25 * format(tags=['a']))"


def ask(verifier: Any, text: str, gold: Any = 4) -> Verdict:
    return asyncio.run(verifier(Prompt("p", (), "p", {"answer": gold}), Sample(context=(), stream=(0,), text=text)))


@pytest.mark.parametrize(
    "text,outcome,score,parts",
    [
        ("<a>4</a>", Outcome.correct, 1.0, {"right": 1.0, "shape": 1.0}),
        ("4", Outcome.correct, 0.8, {"right": 1.0, "shape": 0.0}),
        ("<a>5</a>", Outcome.wrong, 0.2, {"right": 0.0, "shape": 1.0}),
        ("<a>four</a>", Outcome.malformed, 0.2, {"right": 0.0, "shape": 1.0}),
    ],
)
def test_the_first_outcome_counts_and_all_scores_are_weighted(
    text: str, outcome: Outcome, score: float, parts: dict[str, float]
):
    verdict = ask(find_verifier(SHAPED, None), text)
    assert verdict.outcome is outcome and verdict.score == pytest.approx(score) and dict(verdict.subscores) == parts


def test_each_verifier_is_a_column_and_a_metric():
    verdict = ask(find_verifier(SHAPED, None), "<a>5</a>")
    sample = Sample(context=(0,), stream=(0,), text="<a>5</a>", verdict=verdict)
    batch = pack([Rollout(Draw(0, Prompt("p", (0,)), 1), (sample,))])
    assert {name: x.tolist() for name, x in batch.subscores.items()} == {"right": [0.0], "shape": [1.0]}
    metrics = describe_samples(batch)
    assert (metrics["subscores/right"], metrics["subscores/shape"]) == (0.0, 1.0)


def test_a_verifier_that_cannot_judge_is_named():
    async def broken(prompt: Prompt, sample: Sample) -> Verdict:
        raise KeyError("x")

    async def stuck(prompt: Prompt, sample: Sample) -> Verdict:
        await asyncio.sleep(60)
        raise AssertionError

    right = find_verifier("last_number", None)
    for other, cause in ((broken, " in broken: KeyError: 'x'"), (stuck, "other: no verdict within 0.1 s")):
        verdict = ask(Several([Member("right", right), Member("other", other)], deadline=0.1), "4")
        assert (
            verdict.outcome is Outcome.unverifiable and verdict.cause.startswith("other: ") and cause in verdict.cause
        )


def test_a_user_function_is_a_member():
    name = "several(right=last_number, own=0.5 * 'my_file:grade')"
    assert user_functions(name) == ["my_file:grade"]

    async def grade(prompt: Prompt, sample: Sample) -> Verdict:
        return Verdict(Outcome.correct, subscores={"wit": 0.5})

    verdict = ask(find_verifier(name, None, load=lambda _: grade), "5")
    assert dict(verdict.subscores) == {"right": 0.0, "own": 1.0, "own/wit": 0.5}
    with pytest.raises(Usage, match="is a function in a file"):
        find_verifier(name, None)


@pytest.mark.parametrize(
    "name,what",
    [
        ("several(a=exact)", "fewer than two"),
        ("several(exact, last_number)", "no verifier is called"),
        ("several(a=exact, b=0 * format)", "a name, and a weight above 0"),
        ("several(a=exact, b=-1 * format)", "no verifier is called"),
        ("several(a=exact, b=1e999 * format)", "a name, and a weight above 0"),
        ("several(a=exact, b=formt)", "did you mean format?"),
        ("several(a=exact, b=format.x)", "no verifier is called"),
        ("several(a=exact, **b)", "a name, and a weight above 0"),
        ("several(a=exact, a=format)", "no verifier is called"),
        ("several", "fewer than two"),
    ],
)
def test_invalid_members_are_refused(name: str, what: str):
    with pytest.raises(Usage) as caught:
        find_verifier(name, None)
    assert what in f"{caught.value}"
