"""Each option of TRL's trainers, and each main key of verl, is answered with the line to write."""

import re
import sys
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

import groupwise
from groupwise.__main__ import main
from groupwise.config.fields import SECOND_NAMES
from groupwise.config.python_advice import field_pattern, in_python, recipe_names
from groupwise.config.recipe import Recipe
from groupwise.config.recipe_toml import read_with_problems
from groupwise.config.train_keyword_arguments import overrides_of
from groupwise.config.trl_and_verl_names import DICTIONARY, TRAINERS, answer_of, answers, other_name_fix
from groupwise.config.user_code import UserCode
from tests.docs.printed_names import absent_names

HOME = Path(__file__).parents[2]
OPTIONS = tomllib.loads(Path(__file__).with_name("trl_verl_options.toml").read_text("utf-8"))
OWN = {*SECOND_NAMES, *(f.name for f in fields(Recipe)), "tools"}
LINES = {
    answer.command_line_text: answer for answer in answers().values() if ", as an option --" in answer.command_line_text
}


@pytest.mark.parametrize("name", OPTIONS)
def test_each_option_has_its_answer(name: str) -> None:
    options = OPTIONS[name].split()
    assert len(options) >= 6
    assert [option for option in options if not other_name_fix(option) and option not in OWN] == []


STORED = {
    "SFT": ["sft"], "DPO": ["dpo", "ipo"], "KTO": ["kto"], "CPO": ["simpo"], "ORPO": ["orpo"],
    "Reward": ["bradley_terry"],
}  # fmt: skip
"""The methods here of TRL's trainers of stored answers."""
OF_A_SAMPLER = ("sampling.", "engine", "method.group_size", "method.objective", "method.advantage", "method.shaping")


@pytest.mark.parametrize(("trainer", "method"), [(trainer, name) for trainer in STORED for name in STORED[trainer]])
def test_an_answer_for_a_method_of_stored_answers_fits_the_method(trainer: str, method: str) -> None:
    for option in " ".join(OPTIONS[f"{trainer}{part}"] for part in ("Config", "Trainer")).split():
        answer = answer_of(option, method)
        assert answer or option in OWN
        if not (answer and answer.field_path):
            continue
        assert not answer.field_path.startswith(OF_A_SAMPLER)
        match = re.match(r"write ([\w.]+) = (.+), as an option ", answer.command_line_text)
        assert match is not None and match[1] == answer.field_path
        settings = [(match[1], match[2])] if match[1] != "method" else []
        recipe, problems = read_with_problems(f'method.base = "{method}"', settings, UserCode())
        assert recipe is not None and problems == [], option


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        ("--method dpo --beta 0.2", "write --method.beta 0.2"),
        ("--method.base=KTO --beta 0.2", "write --method.beta 0.2"),
        ("--method grpo --beta 0.2", "write --method.kl 0.2"),
        ("--beta 0.2", """write --method.objective.penalties '[{ kind = "KL", coefficient = 0.2 }]' (with"""),
        ("--method sft --beta 1", "leave it out: the method has no such term"),
        ("dpo.toml --beta 0.3", "write --method.beta 0.3"),
        ("--method dpo trainer.beta=0.3", "write --method.beta 0.3"),
        ("--method sft --max_length 512", "leave it out: nothing is cut, and a row"),
        ("--max_length 512", "leave it out: no prompt is cut"),
        ("--method kto --desirable_weight 2", "write --method.desirable 2"),
        ("--desirable_weight 2", """write --method '{ base = "kto", desirable = 2 }'"""),
        ("--reward_model judges/one", """write --verifier '{ kind = "RewardModel", path = "judges/one" }'"""),
        ("--reward_model.enable true", """write --verifier '{ kind = "RewardModel", path = "DIR" }'"""),
        ("--loss_type sigmoid", "write --method dpo\n"),
        ("--method dpo --loss_type hinge", "write --method NAME (each is a method"),
        ("--method grpo --epsilon 0.3", "write --method.clip 0.3"),
        ("--method grpo --epsilon_high 0.3", "write --method.objective.surrogate.high 0.3"),
        ("--method rm", "write 'bradley_terry', its name here"),
    ],
)
def test_the_answer_has_the_users_method_and_number(
    words: str, fix: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("dpo.toml").write_text('method = "dpo"\n')
    assert main(["train", *words.split()]) == 2
    assert fix in capsys.readouterr().err


def test_a_file_and_a_program_have_the_users_method_and_number(home: Path) -> None:
    _, problems = read_with_problems('method = "dpo"\nbeta = 0.2\n', [], UserCode())
    assert [problem.fix for problem in problems] == ["write method.beta = 0.2, as an option --method.beta 0.2"]
    for method in (groupwise.load_method("dpo"), "dpo"):
        with pytest.raises(groupwise.Usage, match="'beta'") as caught:
            groupwise.train(method=method, beta=0.2)
        assert caught.value.fix == "write method=gw.dpo(beta=0.2)"
    with pytest.raises(groupwise.Usage, match="'beta'") as caught:
        groupwise.train(beta=0.2)
    assert '"coefficient": 0.2' in caught.value.fix


def test_the_lists_were_read() -> None:
    trainer, config = OPTIONS["GRPOTrainer"].split(), OPTIONS["GRPOConfig"].split()
    assert {"reward_funcs", "train_dataset", "peft_config", "processing_class"} < set(trainer)
    assert {"num_generations", "beta", "loss_type"} < set(config) and len(OPTIONS["verl"].split()) > 200


@pytest.mark.parametrize("text", LINES)
def test_the_line_of_an_answer_is_a_recipe_and_its_argument_sets_the_same(text: str) -> None:
    match = re.match(r"write ([\w.]+) = (.+), as an option --\1 ", text)
    assert match is not None
    path, value = match[1], match[2]
    base = f"method = {value}" if path == "method" else 'method.base = "grpo"\nprompts = 16'
    recipe, problems = read_with_problems(base, [] if path == "method" else [(path, value)], UserCode())
    assert recipe is not None and problems == []
    rendered = in_python(text).removeprefix("write ").partition(" (")[0] if "**" not in in_python(text) else ""
    if rendered and not LINES[text].python_text:
        scope = {"gw": groupwise, "Call": dict}
        passed = {SECOND_NAMES.get(word, word): x for word, x in eval(f"Call({rendered})", scope).items()}
        again, _ = read_with_problems(base, [] if path == "method" else overrides_of(passed), UserCode())
        assert path == "method" or again == recipe


ADVICE = sorted(
    {text for answer in answers().values() for text in (answer.command_line_text, answer.python_text)} - {""}
)
OPTION = re.compile(r"""--([\w.-]+)(?: ('[^']*'|[^\s,;:)-][^\s,;:)]*))?""")
WORD = re.compile(r"""(?<![\w.-])(?<!\{ )[a-z_.]+ = (?:"[^"]*"|[\d.e-]+)""")
OTHERS = {"--revision", "--local-dir"}
"""Options of the program hf."""


@pytest.mark.parametrize("text", ADVICE)
def test_each_setting_that_an_answer_names_is_accepted_and_each_page_exists(text: str) -> None:
    spans = [match[0] for pattern in (OPTION, WORD, field_pattern()) for match in pattern.finditer(text)]
    assert absent_names("\n".join(f"`{span}`" for span in spans)) - OTHERS == set()
    options = [
        (path, value.strip("'")) for path, value in OPTION.findall(text.partition("groupwise eval ")[0]) if value
    ]
    settings = [(path, value) for path, value in options if path.partition(".")[0] in recipe_names()]
    settings += [(path, value.strip('"')) for path, value in field_pattern().findall(text)]
    base = "method = 'grpo'" if "method" in dict(settings) else 'method.base = "grpo"\nprompts = 16'
    recipe, problems = read_with_problems(base, settings, UserCode())
    assert recipe is not None and problems == [], settings
    assert all((HOME / page).is_file() for page in re.findall(r"docs/[\w-]+\.md", text))


def test_a_stale_answer_is_found() -> None:
    for text in ("--engine.tensor_parallel 2", "cluster.restarts = 3", "--cluster.shard fully"):
        with pytest.raises(AssertionError):
            test_each_setting_that_an_answer_names_is_accepted_and_each_page_exists(text)


def test_a_program_reads_its_own_arguments() -> None:
    for answer in answers().values():
        text = in_python(answer.command_line_text)
        assert "as an option" not in text and not re.search(r"(?<![\w-])--(?!revision|local-dir)[a-z]", text), text
        assert in_python(text) == text


@pytest.mark.parametrize("name", TRAINERS)
def test_the_trainer_of_trl_is_answered_with_the_dictionary(name: str) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(groupwise, name)
    with pytest.raises(ImportError) as imported:
        exec(f"from groupwise import {name}")
    assert str(imported.value) == str(caught.value)
    assert DICTIONARY in str(caught.value) and not hasattr(groupwise, name)
    known = {*OPTIONS["GRPOTrainer"].split(), *OPTIONS["GRPOConfig"].split(), *OPTIONS["TrainingArguments"].split()}
    left = [line.split("->")[0] for line in DICTIONARY.splitlines()[2:-2]]
    assert {word for line in left for word in re.findall(r"(\w+)=", line)} <= known


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("RLOOTrainer", "write gw.train(method=gw.rloo(), ...)"),
        ("dapoo", "did you mean gw.dapo?"),
        ("Segments", "from groupwise.data import Segments"),
    ],
)
def test_another_name_is_no_attribute_and_both_ways_to_use_it_have_the_advice(
    name: str, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not hasattr(groupwise, name) and getattr(groupwise, name, None) is None
    with pytest.raises(AttributeError) as caught:
        getattr(groupwise, name)
    with pytest.raises(ImportError) as imported:
        exec(f"from groupwise import {name}")
    assert str(imported.value) == str(caught.value) == f"groupwise has no attribute {name!r}; {advice}"
    with pytest.raises(ImportError, match="cannot import name 'xyzzy'"):
        exec("from groupwise import xyzzy")
    monkeypatch.delattr(groupwise, "advantages", raising=False)  # as before its import
    monkeypatch.delitem(sys.modules, "groupwise.advantages", raising=False)
    exec("from groupwise import advantages")  # near the name `advantage`, and a room


def test_a_word_of_a_table_here_is_not_taken_for_an_option() -> None:
    assert other_name_fix("warm_start.steps") == other_name_fix("evaluate.denoising_steps") == ""
    assert "iterations" in other_name_fix("steps")
    assert "machine.device" in other_name_fix("trainer.device") and other_name_fix("machine.dtypes") == ""
