"""A verifier is a part of a recipe like all others: typed, written, compared, overridden by path, and extensible."""

from dataclasses import MISSING, fields, replace
from pathlib import Path

import pytest

from groupwise.commands.field_help import field_help
from groupwise.config.diff import diff
from groupwise.config.parse_toml_values import default
from groupwise.config.recipe import ExtraTask, Recipe
from groupwise.config.recipe_toml import read_recipe, read_verifier, write
from groupwise.config.registry import fitting_names
from groupwise.config.user_code import Permissions, UserCode, load_use
from groupwise.core import Usage, class_name, part_named, plain_name
from groupwise.data import Verifier, VerifierSettings
from groupwise.verifiers import (
    Combined,
    CombinedMember,
    Exact,
    Function,
    HackableScore,
    Judge,
    Math,
    NoisyVerdicts,
    ProcessRewardModel,
    Regex,
    RewardModel,
    VerifierContext,
)

KINDS = {name: part_named(name) for name in fitting_names(VerifierSettings)}
EXAMPLES = {
    "Combined": Combined(
        (
            CombinedMember("a", Math(use_algebra=False)),
            CombinedMember("b", NoisyVerdicts(Exact(), false_reject_rate=0.5), 0.25),
        )
    ),
    "Function": Function("brief"),
    "HackableScore": HackableScore(Regex(pattern='"[a-z]+"')),
    "Judge": Judge(url="http://localhost:8000/v1", model="m"),
    "NoisyVerdicts": NoisyVerdicts(Function("brief")),
    "ProcessRewardModel": ProcessRewardModel("a-process-reward-model"),
    "RewardModel": RewardModel("a-reward-model"),
}
NEAR = """\
from dataclasses import dataclass

from groupwise.data import Outcome, Verdict, VerifierSettings


@dataclass(frozen=True)
class Near(VerifierSettings):
    tolerance: float = 0.1

    async def __call__(self, prompt, sample):
        return Verdict(Outcome(int(abs(float(sample.text) - prompt.row["answer"]) <= self.tolerance)))


@dataclass(frozen=True)
class Other:
    x: float = 0.1


def grade(answer):
    return 1.0
"""


def recipe(*overrides: tuple[str, object], text: str = "method = 'grpo'", use: UserCode | None = None) -> Recipe:
    return read_recipe(text, overrides, use)


@pytest.fixture
def use(tmp_path: Path) -> UserCode:
    (tmp_path / "near.py").write_text(NEAR)
    return load_use(Permissions(use=[tmp_path / "near.py"]))


@pytest.mark.parametrize("name", KINDS)
def test_every_verifier_is_a_value_that_reads_back(name: str) -> None:
    assert class_name(plain_name(name)) == class_name(name) == name
    kind = EXAMPLES[name] if name in EXAMPLES else read_verifier(plain_name(name))
    assert isinstance(kind, KINDS[name]) and (name in EXAMPLES or kind == read_verifier(name))
    written = write(replace(recipe(), verifier=kind, extra_tasks=(ExtraTask(task="a.jsonl", verifier=kind),)))
    again = recipe(text=written, use=UserCode(functions_in_memory={"brief": len}))
    assert (again.verifier, again.extra_tasks[0].verifier) == (kind, kind)
    for field in fields(KINDS[name]):
        assert f"{field.name}:" in field_help(f"verifier.{field.name}") and field.name in field_help("verifier")
        assert default(field) is not MISSING or name in EXAMPLES


def test_fields_are_set_by_path_and_compared() -> None:
    base = recipe(("verifier", "math"))
    deep = recipe(("verifier", "math"), ("verifier.deadline", "5"), ("verifier.which_answer", "first"))
    assert deep.verifier == Math(which_answer="first", deadline=5.0)
    assert diff(base, deep) == ["verifier.which_answer: last -> first", "verifier.deadline: 2 -> 5"]
    members = '{ kind = "combined", members = [{ name = "a", verifier = "exact" }, { name = "b", verifier = "math" }] }'
    text = f"method = 'grpo'\nverifier = {members}"
    both = recipe(("verifier.members.1.weight", "0.5"), ("verifier.members.1.verifier.workers", "1"), text=text)
    assert both.verifier == Combined((CombinedMember("a", Exact()), CombinedMember("b", Math(workers=1), 0.5)))
    assert recipe().verifier is None and recipe(("verifier", "none"), text=text).verifier is None


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ("math(answer='first')", 'verifier = { kind = "math", answer = "first" }'),
        ("several(a=math, b=0.2*format)", 'kind = "Combined"'),
        ("flipping(verifier=exact, rejects=0.2)", 'kind = "noisy_verdicts", verifier = "exact", rejects = 0.2'),
        ("__import__('os').system('true')", "write a table"),
        ('{ kind = "math", anser = "first" }', "recipe.verifier: Math has no field 'anser'"),
        ('{ kind = "math", deadline = true }', "recipe.verifier.deadline: True is a boolean"),
        ("Clip", "Clip is not a VerifierSettings"),
        ("calculator", "no verifier is called 'calculator'"),
        ("", "no verifier is called ''"),
    ],
)
def test_other_texts_are_answered_with_what_to_write(value: str, what: str) -> None:
    with pytest.raises(Usage) as caught:
        recipe(("verifier", value))
    assert what in str(caught.value) and caught.value.fix


def test_a_user_s_class_and_function_are_verifiers(use: UserCode) -> None:
    near = recipe(("verifier", "near:Near"), ("verifier.tolerance", "0.5"), use=use)
    assert write(near).count('kind = "near:Near"\ntolerance = 0.5') == 1
    assert recipe(text=write(near), use=use).verifier == near.verifier
    assert recipe(text=write(near).replace("near:Near", "code/near.py:Near"), use=use).verifier == near.verifier
    kind = near.verifier
    assert isinstance(kind, VerifierSettings) and isinstance(VerifierContext().build(kind), Verifier)
    for name in ("near:grade", "near.py:grade"):
        assert recipe(("verifier", name), use=use).verifier == Function("grade", "near.py")
    assert recipe(("verifier", "code/near.py:grade"), use=use).verifier == Function("grade", "code/near.py")
    with pytest.raises(Usage, match="Other is not a VerifierSettings") as caught:
        recipe(("verifier", "near:Other"), use=use)
    assert "from groupwise.data import VerifierSettings" in caught.value.fix
    assert "class Other(VerifierSettings)" in caught.value.fix


@pytest.mark.parametrize(
    "value", ["near:Near", "code/near.py:grade", '{ kind = "Function", name = "f", file = "near.py" }']
)
def test_a_recipe_alone_loads_no_file(value: str, home: Path) -> None:
    Path("near.py").write_text("raise SystemExit")
    nested = f'{{ kind = "NoisyVerdicts", verifier = {value if value.startswith("{") else repr(value)} }}'
    for text in (value, nested):
        with pytest.raises(Usage, match=r"near.* is code in a file that is not loaded") as caught:
            recipe(("verifier", text))
        assert "near.py to the command" in caught.value.fix


def test_a_kind_without_a_call_or_a_build_is_refused() -> None:
    class Empty(VerifierSettings):
        pass

    with pytest.raises(NotImplementedError, match="Empty needs an async __call__"):
        VerifierContext().build(Empty())
