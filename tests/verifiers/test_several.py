"""Several verifiers at once: the outcome of the first, the weighted mean of all scores, a part for each."""

import asyncio

import pytest

from groupwise.config.recipe_toml import read_verifier
from groupwise.core import Usage
from groupwise.data import Draw, Outcome, Prompt, Rollout, Sample, Verdict, pack
from groupwise.objective import describe_samples
from groupwise.verifiers import Combined, CombinedMember, Function, LastNumber, TagFormat
from groupwise.verifiers.combined import BuiltMember, CombinedVerifier
from tests.rollout.fakes import judged_by
from tests.verifiers.built import ask, built

SHAPED = Combined((CombinedMember("right", LastNumber()), CombinedMember("shape", TagFormat(tags=("a",)), 0.25)))


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
    verdict = ask(built(SHAPED), text)
    assert verdict.outcome is outcome and verdict.score == pytest.approx(score) and dict(verdict.subscores) == parts


def test_each_verifier_is_a_column_and_a_metric():
    verdict = ask(built(SHAPED), "<a>5</a>")
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

    right = built("last_number")
    for other, cause in ((broken, " in broken: KeyError: 'x'"), (stuck, "other: no verdict within 0.1 s")):
        members = [BuiltMember("right", right, 1.0), BuiltMember("other", judged_by(other), 1.0)]
        verdict = ask(CombinedVerifier(members, deadline=0.1), "4")
        assert (
            verdict.outcome is Outcome.unverifiable and verdict.cause.startswith("other: ") and cause in verdict.cause
        )


def test_a_user_function_is_a_member():
    kind = Combined(
        (CombinedMember("right", LastNumber()), CombinedMember("own", Function("grade", "my_file.py"), 0.5))
    )

    async def grade(prompt: Prompt, sample: Sample) -> Verdict:
        return Verdict(Outcome.correct, subscores={"wit": 0.5})

    verdict = ask(
        built(kind, load_function=lambda file, name: {"my_file.py/grade": judged_by(grade)}[f"{file}/{name}"]), "5"
    )
    assert dict(verdict.subscores) == {"right": 0.0, "own": 1.0, "own/wit": 0.5}
    with pytest.raises(Usage, match="is a user's function"):
        built(kind)


def members(*members: object) -> dict[str, object]:
    return {"kind": "Combined", "members": list(members)}


A, B = {"name": "a", "verifier": "exact"}, {"name": "b", "verifier": "tag_format"}


@pytest.mark.parametrize(
    "table,what",
    [
        (members(A), "two verifiers or more"),
        (members(A, A), "each once"),
        (members(A, B | {"weight": 0}), "a weight above 0"),
        (members(A, B | {"weight": -1}), "a weight above 0"),
        (members(A, B | {"weight": float("inf")}), "a weight above 0"),
        (members(A, B | {"name": ""}), "a name of letters"),
        (members(A, B | {"verifier": "formt"}), "verifier.members.1.verifier: no verifier is called 'formt'"),
        (members(A, {"verifier": "tag_format"}), "CombinedMember needs name"),
        ("combined", "Combined needs members"),
        ("several", "write combined, its name here"),
        ("several(exact, last_number)", 'members = [{ name = "answer", verifier = "math" }'),
        ("several(a=exact, b=0.2*format)", 'kind = "Combined"'),
    ],
)
def test_invalid_members_are_refused(table: object, what: str):
    with pytest.raises(Usage) as caught:
        read_verifier(table)
    assert what in str(caught.value)
