"""Output of show, diff and methods, and the errors of check."""

import gc
import json
import shutil
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest
import torch

import groupwise.checks.check as checking
import groupwise.config.recipe_toml as text
from groupwise.__main__ import main
from groupwise.certificates.proofs import proofs_of
from groupwise.checks.check_method import dry_run
from groupwise.checks.check_result import CheckResult
from groupwise.commands.check import errors_text
from groupwise.commands.methods import alike, entries, likeness, list_methods
from groupwise.commands.show_and_diff import read, show, show_diff, table
from groupwise.config.diff import changed_fields
from groupwise.config.packaged import packaged_recipes
from groupwise.config.recipe_toml import read_recipe, write
from groupwise.config.registry import methods
from groupwise.config.user_code import Permissions, load_use
from groupwise.core import BadData, Usage
from groupwise.data import Logp
from groupwise.methods import gspo, published, reference_of
from groupwise.methods.families import FAMILIES, method_family
from groupwise.models import find_model
from tests.checks import check

DEFAULT = Path(text.__file__).with_name("default.toml")
SMALL = "prompts = 16\nsampling.max_tokens = 40\n"
NAMES = [method.__name__ for method in published]


@pytest.fixture
def model(tmp_path) -> Path:
    """A copy of the packaged model's directory."""
    path = tmp_path / "model"
    shutil.copytree(find_model("calculator"), path)
    return path


# show, diff, methods


def test_show_gives_formula_constants_source_differences_and_proofs():
    lines = show("gspo").splitlines()
    reference = reference_of(gspo)
    assert lines[0] == "gspo: Group Sequence Policy Optimization, arXiv:2507.18071"
    titles = [line for line in lines if line and not line.startswith(" ")]
    assert titles == [
        lines[0],
        "code read",
        "formula",
        "changes in grpo",
        "arguments, each a field beside method.base",
        "constants",
        "differences",
        "effect",
        "finding",
        "proofs",
    ]
    assert lines[2] == "  ratio, 2025, method, code read"
    assert "  " + reference.formula.splitlines()[0] in lines
    assert "  low = 0.0003" in lines and '  ratio = "sequence_ratio"' in lines
    assert next(line for line in lines if line.startswith("  clip range")).count("3e-4 and 4e-4") == 2
    assert [line.strip() for line in lines[lines.index("proofs") + 1 :]] == list(proofs_of(gspo))
    assert max(map(len, lines)) <= 120


@pytest.mark.parametrize("name", NAMES)
def test_the_constants_shown_read_back(name):
    lines = show(name).splitlines()
    toml = "\n".join(line[2:] for line in lines[lines.index("constants") + 1 : lines.index("differences")])
    assert toml.strip() == write(methods()[name]()).strip()


def test_denoising_is_shown_only_where_a_method_denoises():
    shown = {name for name in NAMES if "denoise" in write(methods()[name]())}
    assert shown == {name for name in NAMES if methods()[name]().denoise is not None}
    assert "denoise" not in show(str(DEFAULT))


def test_show_and_diff_read_files_and_runs(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    shutil.copy(DEFAULT, run / "recipe.toml")
    assert show(str(DEFAULT)) == show(str(run)) == write(read_recipe(DEFAULT)).strip()
    other = tmp_path / "other.toml"
    other.write_text(SMALL + "method.base = 'dapo'\nmethod.minibatches = 4\nverifier = 'my_file:grade'")
    assert "verifier: none -> my_file:grade" in show_diff(str(DEFAULT), str(other)).splitlines()
    assert show_diff(str(run), str(DEFAULT)) == "no difference"
    assert show_diff("dapo", str(other)) == "minibatches: 16 -> 4"
    assert show_diff("dapo", "dapo") == "no difference"


def test_packaged_recipes_are_shown_and_compared_by_name(capsys):
    for name in packaged_recipes():
        assert main(["show", name]) == 0, name
    capsys.readouterr()
    assert main(["diff", "calculator", "big_sums"]) == 0
    assert "task: Calculator -> BigSums" in capsys.readouterr().out


def test_user_code_is_shown_by_name_and_not_imported(home):
    (home / "my_file.py").write_text("raise SystemExit('imported')")
    path = home / "mine.toml"
    path.write_text(
        "method.filter = 'my_file:mine'\nmethod.objective.surrogate = { kind = 'my_file:MyClip', high = 1 }"
    )
    assert 'filter = "my_file:mine"' in show(str(path)) and "high = 1" in show(str(path))
    assert "filter: everything -> my_file:mine" in show_diff("gspo", str(path))


def test_diff_of_grpo_and_dapo_has_at_most_ten_lines():
    assert len(show_diff("grpo", "dapo").splitlines()) <= 10
    assert "objective.surrogate.ratio: token_ratio -> sequence_ratio" in show_diff("grpo", "gspo").splitlines()


def test_methods_are_listed_by_family_with_year_label_and_changes():
    text = list_methods()
    entries_of = {e.name: e for e in entries()}
    assert list(entries_of) == NAMES
    for m in published:
        e, reference = entries_of[m.__name__], reference_of(m)
        facts = (e.paper, e.arxiv, e.year, e.evidence, e.contribution_kind, e.parent)
        assert facts == (
            *(getattr(reference, f) for f in ("paper", "arxiv", "year", "evidence", "contribution_kind", "parent")),
        )
        assert " ".join(e.summary.split()) in " ".join(text.split()) and e.summary == m.__doc__.partition("\n")[0]
        assert list(e.changes) == (changed_fields(methods()[e.parent](), m()) if e.parent else [])
    titles = [line.partition(":")[0] for line in text.splitlines() if line and not line.startswith(" ")]
    assert titles == [f for f in FAMILIES if f in {method_family(name) for name in NAMES}]
    assert max(map(len, text.splitlines())) <= 120
    lines = list_methods(family="ratio").splitlines()
    assert lines[0].startswith("ratio: ") and not any(line.startswith("  grpo ") for line in lines)
    assert "gspo: objective.surrogate" in next(line for line in lines if line.startswith("  gspo_token "))


def test_methods_like_another_share_a_changed_part():
    assert alike("gspo_token", entries())[0].name == "gspo"
    assert {"gspo", "dapo", "dr_grpo", "gmpo"} <= {e.name for e in alike("grpo", entries())}
    assert list_methods(like="gspo").splitlines()[0].startswith("  ")
    assert "grpo " not in list_methods(family="ratio", like="dapo")
    changes = {"a": ("mask",), "b": ("mask", "credit"), "c": ("epochs",)}
    a, b, c = (replace(entries()[0], name=name, parent="", changes=fields) for name, fields in changes.items())
    assert (likeness(a, a), likeness(a, b), likeness(a, c), likeness(c, c)) == (1.0, 0.5, 0.0, 0.0)


def test_an_unknown_family_or_method_raises_with_the_names():
    with pytest.raises(Usage, match="no family is called 'ration'") as raised:
        list_methods(family="ration")
    families = "the families are classics, ratio, rewards_and_advantages, sampling, contrast, multi_agent, flow, stored"
    assert raised.value.fix == families
    with pytest.raises(Usage, match="no method is called 'gsop'") as raised:
        list_methods(like="gsop")
    assert raised.value.fix == "did you mean gspo?"
    with pytest.raises(Usage) as raised:
        list_methods(like="zzz")
    assert raised.value.fix == "groupwise methods lists the names"


def test_show_prints_the_effect_and_the_finding_of_a_method(monkeypatch):
    found = replace(reference_of(gspo), our_finding="It equals GRPO at one minibatch.", contribution_kind="engine")
    monkeypatch.setattr(sys.modules[gspo.__module__], "REFERENCE", found)
    lines = show("gspo").splitlines()
    assert "  ratio, 2025, engine, code read" in lines and "  It equals GRPO at one minibatch." in lines
    assert lines[lines.index("effect") + 1].strip() == found.expected_effect.claim("gspo")
    assert "  minibatches: 1 -> 4" in lines[lines.index("changes in grpo") : lines.index("constants")]


def test_an_unknown_name_raises_with_a_suggestion():
    with pytest.raises(Usage, match="neither a method nor a file") as raised:
        read("gsop")
    assert raised.value.fix == "did you mean gspo?"


def test_a_table_wraps_its_longest_column():
    rows = [("a", "short", "one two three four five six seven"), ("bb", "x", "y")]
    assert table(rows, 30) == ["a   short  one two three four", "           five six seven", "bb  x      y"]


# check


def errors_of(toml: str, **options) -> list[str]:
    return [str(problem) for problem in check(toml, **options)]


@pytest.fixture
def only_text(monkeypatch):
    """Only the recipe's text and its method are checked."""
    monkeypatch.setattr(checking, "check_inputs", lambda *_, **__: CheckResult())


@pytest.fixture(autouse=True)
def no_weights(monkeypatch):
    """Loading weights fails, so that `check` is seen to load none."""
    monkeypatch.setattr("safetensors.safe_open", None)
    monkeypatch.setattr("groupwise.models.safetensors_weights.safe_open", None)


@pytest.mark.parametrize("method", published, ids=NAMES)
def test_every_method_passes(method, only_text):
    toml = SMALL + f"method.base = '{method.__name__}'"
    if any(type(part).__name__ == "OverlongPenalty" for part in method().shaping):
        toml += "\nmethod.shaping = [{ kind = 'Correctness' }, { kind = 'OverlongPenalty', buffer_length = 8 }]"
    assert errors_of(toml) == []


def test_check_of_a_valid_recipe_prints_ok():
    assert check(DEFAULT) == []
    assert errors_text("a.toml", []) == "a.toml: ok"


def test_all_errors_are_reported_together(tmp_path):
    problems = check(
        f"prompts = 17\nmodl = 1\nmodel = '{tmp_path / 'none'}'\nmethod.base = 'gspo'\nmethod.objective.aggregat = 1"
    )
    messages = [str(problem).splitlines()[0] for problem in problems]
    assert messages == [
        "recipe: Recipe has no field 'modl'; did you mean model?",
        "recipe.method.objective: Objective has no field 'aggregat'; did you mean aggregate?",
        "recipe: 17 prompts cannot be cut into 4 equal minibatches",
        f"there is no model at {tmp_path / 'none'}",
    ]
    assert errors_text("a.toml", problems).endswith("\na.toml: 4 errors")
    assert errors_text("a.toml", problems[:1]).endswith("\na.toml: 1 error")


def test_an_overlong_buffer_larger_than_the_budget():
    (error,) = errors_of(
        "prompts = 16\nsampling.max_tokens = 40\nmethod.base = 'dapo'\nmethod.shaping.1.buffer_length = 41"
    )[:1]
    assert "overlong buffer is larger than the generation budget" in error


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("{ base = 'grpo', models = {} }", "which method.models does not define"),
        ("{ base = 'grpo', group_size = 1 }", "group_size is 1"),
        ("{ base = 'gspo', objective = { aggregate = 'token_mean' } }", "sequence_ratio gives a sequence one ratio"),
        ("{ base = 'gspo', objective = { aggregate = 'budget_mean' } }", "sequence_ratio gives a sequence one ratio"),
        ("{ base = 'gspo', minibatches = 5, shuffle = 'samples' }", ""),
        ("{ base = 'gspo', minibatches = 5 }", "16 prompts cannot be cut into 5 equal minibatches"),
        ("{ base = 'gmpo', credit = { kind = 'WhitenedTokens', base_credit = 'ReturnsToGo' } }", ""),
        (
            "{ base = 'gmpo', credit = { kind = 'ReturnsToGo', gamma = 0.5 } }",
            "PowerMeanRatio needs one advantage per sequence",
        ),
    ],
)
def test_invalid_methods(method, message, only_text):
    problems = errors_of(SMALL + f"method = {method}")
    assert [message in problem for problem in problems] == [True] if message else problems == []


def test_a_method_is_run_on_a_synthetic_batch(tmp_path, only_text):
    parts = """
import torch
from groupwise import aggregate, filter
@aggregate
def whole(step): return torch.tensor(1.0)
@aggregate
def lost(step): return torch.full_like(step.advantage, float("nan"))
@aggregate
def dear(step): return step.advantage.nonsense
@filter
def some(step): return step.verdict_score
@aggregate
def fine(step): return torch.ones_like(step.advantage)
"""
    path = tmp_path / "mine.py"
    path.write_text(parts)
    use = load_use(Permissions(use=[path]))
    cases = {
        "objective.aggregate = 'mine:whole'": "returned the shape ()",
        "objective.aggregate = 'mine:lost'": "a loss of nan",
        "objective.aggregate = 'mine:dear'": "AttributeError",
        "filter = 'mine:some'": "not one boolean for each of 8 samples",
        "objective.aggregate = 'mine:fine'": "",
    }
    for line, message in cases.items():
        problems = errors_of(SMALL + f"[method]\n{line}", use=use)
        assert [message in problem for problem in problems] == [True] if message else problems == [], line
    assert "is code in a file that is not loaded" in errors_of(SMALL + "[method]\nfilter = 'mine:some'")[0]


def test_no_error_is_reported_twice():
    (error,) = errors_of(SMALL + "method = 'gspo'\nverifier = 'mine:grade'")
    assert error.startswith("recipe.verifier: 'mine:grade' is code in a file that is not loaded")


def test_the_dry_run_provides_all_needs():
    recipe = read_recipe(SMALL + "method = { base = 'reinforce_pp' }")
    assert dry_run(recipe) == []
    assert dry_run(replace(recipe, method=replace(recipe.method, group_size=3))) == []


def test_the_dry_run_finds_an_undeclared_need():
    """A single step has no old log-probs before its forward pass, unless a part declares that it needs them."""

    def reads(b):
        return b.logp_old > -9

    recipe = read_recipe(SMALL + "method = { base = 'grpo' }")
    (error,) = dry_run(replace(recipe, method=replace(recipe.method, mask=(reads,))))
    assert "NoneType" in error.evidence
    declared = Reads()
    assert dry_run(replace(recipe, method=replace(recipe.method, mask=(declared,)))) == []


@dataclass(frozen=True)
class Reads:
    """A mask that removes no token and reads the old log-probs."""

    needs: ClassVar = frozenset({Logp("policy")})

    def __call__(self, b):
        return b.logp_old > -9


def test_a_pickle_checkpoint_is_an_error(model):
    (model / "model.safetensors").rename(model / "pytorch_model.bin")
    (error,) = check(SMALL + f"model = '{model}'\nmethod = 'gspo'")
    assert isinstance(error, BadData) and "only a pickle checkpoint" in str(error)


def test_a_model_with_its_own_code_is_an_error(model):
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"auto_map": {"AutoModelForCausalLM": "evil.Model"}}))
    (model / "evil.py").write_text("raise SystemExit('run')")
    assert any("brings its own code" in line for line in errors_of(SMALL + f"model = '{model}'\nmethod = 'gspo'"))


def test_a_context_longer_than_the_model_s_is_an_error():
    messages = errors_of("prompts = 16\nmethod = 'gspo'\nsampling.max_tokens = 1000000")
    assert any("tokens: the model takes" in line for line in messages)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (None, "there is no file"),
        ([], "holds no problem"),
        ([{"prompt": "1+1=", "answer": 2}, {"prompt": "1+1=", "answer": 3}], "row 2: it repeats the prompt of row 1"),
        ([{"prompt": "1+1=", "answer": 2}, {"prompt": "1+1=", "answer": 2}], ""),
        ([{"prompt": "1+1=", "answer": 2}, {"prompt": "", "answer": 2}], "row 2: field 'prompt' is empty"),
        ([{"prompt": "1+1=", "answer": 2}, {"prompt": "2+2=", "answer": 4}], ""),
    ],
)
def test_errors_of_a_user_task(tmp_path, rows, message):
    path = tmp_path / "problems.jsonl"
    if rows is not None:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    problems = errors_of(SMALL + f"task = '{path}'\nverifier = 'exact'\nmethod = 'gspo'")
    assert [message in problem for problem in problems] == [True] if message else problems == []


def test_a_user_task_needs_a_verifier(tmp_path):
    path = tmp_path / "problems.jsonl"
    path.write_text('{"prompt": "1+1=", "answer": 2}\n{"prompt": "2+2=", "answer": 4}\n')
    (error,) = errors_of(SMALL + f"task = '{path}'\nmethod = 'gspo'")
    assert "has no verifier" in error


def test_check_leaves_the_random_state():
    state = torch.random.get_rng_state()
    check(DEFAULT)
    assert torch.equal(torch.random.get_rng_state(), state), "the dry run uses its own numbers"
    assert checking.__doc__


@pytest.mark.parametrize("words", [["show", "gspo"], ["diff", "gspo", "grpo"], ["show", "nothing"]])
def test_garbage_is_collected_again_after_a_short_command(words: list[str]) -> None:
    main(words)
    assert gc.isenabled()
