"""The arguments of a grade function by name, group and bulk graders, and the trial call before a run."""

import asyncio
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from groupwise.config.user_code import Permissions, load_use
from groupwise.core import Usage
from groupwise.data import Finish, Outcome, Prompt, Sample, Verdict
from groupwise.tasks import MixtureVerifier
from groupwise.verifiers import Combined, CombinedMember, Function, LastNumber, grade_function
from groupwise.verifiers.grade_function_arguments import GradeFunctionParameters, MissingColumn
from tests.verifiers.built import built, graders

GRADERS = """
import os

def echo(row, answer, messages, finish, tokens, level, missing=7):
    values = [row["level"], answer, messages[-1]["content"], finish, tokens, level, missing]
    return values == [2, "4", "4", "stop", [5, 6], 2, 7]

def columns(answer, **columns):
    return columns == {"level": 2, "source": "a"}

def needs(answer, hint):
    return True

def raises(prompt, answer, gold):
    return {}["boom"]

def deliberate(answer):
    class Verdict:
        outcome, score, subscores, feedback, cause = 3, None, {}, "", "the judge is away"
    return Verdict()

def text(answer):
    return "yes"

def diversity(prompt, answers, finishes, level):
    assert level == 2 and set(finishes) == {"stop"}
    return [i + len(set(answers)) / 10 for i in range(len(answers))]

def short(prompt, answers):
    return [1.0]

def lengths(prompts, answers, golds, level):
    assert len(prompts) == len(answers) == len(golds) == len(level)
    return [float(len(answer)) + 100 * (len(answers) > 16) for answer in answers]
lengths.most, lengths.wait = 3, 0.01

def calls(rows, answers):
    return [float(os.getpid() * 0 + len(answers)) for _ in answers]
calls.most, calls.wait = 3, 5.0

async def bulk(prompts, answers):
    return [float(len(answer)) for answer in answers]

async def misspelt(answer):
    import asyncio
    await asyncio.sleep(0)
    return len(answr)

async def silent(answer):
    import asyncio
    await asyncio.sleep(60)

async def once(answer):
    global CLIENT
    CLIENT = CLIENT or __import__("asyncio").get_running_loop()
    return CLIENT is __import__("asyncio").get_running_loop()
CLIENT = None

def mixed(prompt, answers, answer):
    return []
"""
PROMPT = Prompt("p", (1,), "2+2=", {"answer": 4, "level": 2, "source": "a"})


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    return graders(tmp_path_factory.mktemp("graders"), GRADERS)


@pytest.fixture
def grader(user: ModuleType) -> Iterator[Callable[[str], Any]]:
    """A verifier from one of the functions, with one worker, which ends after the test."""
    made: list[Any] = []

    def make(name: str) -> Any:
        made.append(grade_function(getattr(user, name), workers=1))
        return made[-1]

    yield make
    for verifier in made:
        verifier.close()


def sample(text: str = "4", group: int = 0) -> Sample:
    nan = float("nan")
    return Sample(context=(1,), stream=(0,), tokens=(5, 6), origin=(0, 0), logp=(nan, nan), text=text, group=group,
                  finish=Finish.stop)  # fmt: skip


def ask(verifier: Any, *texts: str) -> list[Verdict]:
    async def all_of() -> list[Verdict]:
        return await asyncio.gather(*(verifier(PROMPT, sample(text)) for text in texts))

    return asyncio.run(all_of())


def test_a_function_gets_what_its_parameters_name(grader: Any) -> None:
    for name in ("echo", "columns"):
        assert ask(grader(name), "4")[0].outcome is Outcome.correct, name
    verdict = ask(grader("needs"), "4")[0]
    assert verdict.outcome is Outcome.unverifiable and "parameter hint is no column of the row" in verdict.cause


def test_messages_are_those_of_the_row_and_the_answer() -> None:
    conversation = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "2+2="}]
    prompt = Prompt("p", (1,), "be brief\n\n2+2=", {"answer": 4, "messages": conversation})
    parameters = GradeFunctionParameters.of(lambda messages, answer: True)
    assert parameters.arguments([(prompt, sample())])[1]["messages"] == [
        *conversation,
        {"role": "assistant", "content": "4"},
    ]
    _, named = parameters.arguments([(PROMPT, sample())])
    assert named["messages"][0] == {"role": "user", "content": "2+2="}


@pytest.mark.parametrize(
    ("function", "kind", "positional"),
    [
        (lambda p, a, g: True, "answer", ("prompt", "answer", "gold")),
        (lambda *arguments: True, "answer", ("prompt", "answer", "gold")),
        (lambda answer, gold, /: True, "answer", ("answer", "gold")),
        (lambda row, answer: True, "answer", ()),
        (lambda prompt, answers: [True], "group", ()),
        (lambda answers: [True], "group", ()),
        (lambda rows, answers: [True], "bulk", ()),
    ],
)
def test_the_parameters_mark_the_kind(function: Any, kind: str, positional: tuple[str, ...]) -> None:
    parameters = GradeFunctionParameters.of(function)
    assert (parameters.graded_unit, parameters.positional_names) == (kind, positional)


@pytest.mark.parametrize(
    "function", [lambda: True, lambda a: True, lambda a, b, c, d: True, lambda prompts, answer: True]
)
def test_parameters_that_fit_no_kind_are_refused(function: Any) -> None:
    with pytest.raises(Usage, match="has parameters that fit no kind") as caught:
        GradeFunctionParameters.of(function)
    assert "def grade(prompt, answers)" in caught.value.fix
    with pytest.raises(MissingColumn):
        GradeFunctionParameters.of(lambda answer, hint: True).arguments([(PROMPT, sample())])


def group(verifier: Any, samples: Sequence[Sample]) -> list[Verdict]:
    assert verifier.by_group(PROMPT)
    return list(asyncio.run(verifier.grade_group(PROMPT, samples)))


def test_a_group_grader_gets_all_answers_in_their_order(grader: Any) -> None:
    diversity = grader("diversity")
    samples = [sample("a"), sample("b"), sample("a")]
    assert [v.score for v in group(diversity, samples)] == [0.2, 1.2, 2.2]
    each = MixtureVerifier((diversity,))
    tagged = Prompt("1:p", (1,), "2+2=", PROMPT.row)
    assert each.by_group(tagged) and asyncio.run(each.grade_group(tagged, samples))[1].score == 1.2
    assert not grader("echo").by_group(PROMPT)


def test_several_verifiers_with_a_group_grader(user: ModuleType, grader: Any) -> None:
    kind = Combined(
        (CombinedMember("right", LastNumber()), CombinedMember("spread", Function("diversity", "graders.py")))
    )
    verifier = built(kind, load_function=lambda file, name: grader(name))
    verdicts = group(verifier, [sample("4"), sample("5")])
    assert [v.outcome.name for v in verdicts] == ["correct", "wrong"]
    assert [dict(v.subscores) for v in verdicts] == [{"right": 1.0, "spread": 0.2}, {"right": 0.0, "spread": 1.2}]


def test_a_list_of_the_wrong_length_grades_no_answer(grader: Any) -> None:
    verdicts = group(grader("short"), [sample("a"), sample("b")])
    assert {v.outcome for v in verdicts} == {Outcome.unverifiable}
    assert "it returned list of 1: expected a list of 2 grades" in verdicts[0].cause


def test_bulk_answers_share_a_call_and_keep_their_grades(grader: Any) -> None:
    assert [v.score for v in ask(grader("lengths"), "a", "bb", "ccc", "dddd")] == [1.0, 2.0, 3.0, 4.0]
    assert [v.score for v in ask(grader("calls"), *"abcdef")] == [3.0] * 6  # two full calls; none waits for 5 seconds
    assert [v.score for v in ask(grader("bulk"), "a", "bb")] == [1.0, 2.0]


def refused(verifier: Any) -> Usage:
    with pytest.raises(Usage) as caught:
        verifier.gate([PROMPT])
    return caught.value


def test_the_trial_call_refuses_a_broken_grader_with_its_line(grader: Any) -> None:
    error = refused(grader("raises"))
    assert "raises gives no grade for a made-up answer" in error.what
    line = 1 + GRADERS.splitlines().index('    return {}["boom"]')
    assert f"graders.py:{line} in raises: KeyError: 'boom'" in error.evidence
    assert "hint is no column" in refused(grader("needs")).evidence
    assert "it returned str" in refused(grader("text")).evidence
    assert "list of 1" in refused(grader("short")).evidence


def test_the_trial_call_refuses_a_bulk_grader_that_compares(grader: Any) -> None:
    error = refused(grader("calls"))
    assert (
        "differently when others are in the call" in error.what
        and "scored 1 alone, scored 3 with 2 others" in error.evidence
    )


def test_the_trial_call_accepts_a_grader_that_works(grader: Any) -> None:
    for name in ("deliberate", "lengths", "diversity", "bulk"):
        grader(name).gate([PROMPT])
    grader("raises").gate([])


def test_an_async_grader_is_tried_in_a_worker(user: ModuleType, grader: Any) -> None:
    error = refused(grader("misspelt"))
    assert "misspelt gives no grade for a made-up answer" in error.what
    line = 1 + GRADERS.splitlines().index("    return len(answr)")
    assert f"graders.py:{line} in misspelt: NameError" in error.evidence
    assert "no verdict within 0.5 s" in refused(grade_function(user.silent, deadline=0.5)).evidence
    client = grader("once")
    client.gate([PROMPT])
    assert ask(client, "4")[0].outcome is Outcome.correct  # its first call in this process is that of the run


def test_an_async_grader_that_the_worker_cannot_load_is_not_refused(tmp_path: Path) -> None:
    """The program has loaded the file already, for example a model for which the memory suffices once."""
    file = tmp_path / "large.py"
    file.write_text(f"import os\nassert os.getpid() == {os.getpid()}\nasync def grade(answer):\n    return True\n")
    grade_function(load_use(Permissions(use=[file])).modules["large"].grade).gate([PROMPT])


def test_an_async_function_of_the_program_is_not_tried(tmp_path: Path) -> None:
    async def grade(answer: str) -> bool:
        raise KeyError(answer)

    grade_function(grade, in_process=True).gate([PROMPT])


@pytest.mark.parametrize("most", [0, True, "many"])
def test_the_limits_of_a_bulk_grader(most: Any) -> None:
    async def grade(prompts: list[str], answers: list[str]) -> list[float]:
        return [0.0] * len(answers)

    grade.most = most  # type: ignore[attr-defined]
    with pytest.raises(Usage, match="invalid limits of a bulk grader"):
        grade_function(grade)


def test_a_trial_call_stops_check_before_the_model_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from groupwise.__main__ import main

    monkeypatch.chdir(tmp_path)
    (tmp_path / "v.py").write_text("def grade(prompt, answer, gold):\n    return {}['boom']\n")
    rows = [{"prompt": f"{i}+1=", "answer": i + 1} for i in range(9)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    fields = ("model = 'calculator'", "task = 'rows.jsonl'", "verifier = 'v:grade'", "method = 'gspo'")
    (tmp_path / "r.toml").write_text("\n".join([*fields, "[sampling]", "max_tokens = 16"]))
    assert main(["check", "r.toml", "--use", "v.py"]) == 2
    assert "v.py:2 in grade: KeyError: 'boom'" in capsys.readouterr().out
