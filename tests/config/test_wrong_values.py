"""A value that its field cannot have is answered with the line to write, in the words of the door."""

import json

import pytest

import groupwise as gw
from groupwise.config.command_line_advice import in_options
from groupwise.config.fields import recipe_fields
from groupwise.config.model_dependent_defaults import starting_point
from groupwise.config.python_advice import in_python
from groupwise.config.recipe_toml import read_recipe, read_with_problems
from groupwise.config.train_keyword_arguments import overrides_of
from groupwise.config.trl_and_verl_names import EARLIER_COMPONENTS, FORMER_VERIFIERS
from groupwise.config.user_code import UserCode
from groupwise.core import Usage, class_name, part_names

PARTS = {name for names in part_names().values() for name in names}


def fix_of(line: str) -> str:
    """The advice for one line of a recipe, which has no other fault."""
    _, problems = read_with_problems(f"method.base = 'grpo'\n{line}", [], UserCode())
    assert len(problems) == 1, problems
    return problems[0].fix


@pytest.mark.parametrize(
    ("line", "option", "argument"),
    [
        ("lora = 'eight'", "such as --lora.rank 32", "such as lora=gw.Lora(rank=32)"),
        ("lora = 8", "write --lora.rank 8", "write lora=gw.Lora(rank=8)"),
        ("lora.rank = 'x'", "such as --lora.rank 32", "such as lora=gw.Lora(rank=32)"),
        ("engine = 'vllm'", "did you mean --engine Vllm?", 'did you mean engine="Vllm"?'),
        ("optimizer = 'adamw'", "did you mean --optimizer AdamW?", 'did you mean optimizer="AdamW"?'),
        ("optimizer = 1e-5", "write --optimizer.lr 1e-05", "write optimizer=gw.AdamW(lr=1e-05)"),
        ("machine = 'cuda'", "write --machine.device cuda", 'write machine={"device": "cuda"}'),
        ("evaluate = 'no'", "such as --evaluate.every 10", 'such as evaluate={"every": 10}'),
        ("save = 10", "write --save.every 10", 'write save={"every": 10}'),
        ("cluster = 'ray'", "write --cluster.launch ray", 'write cluster={"launch": "ray"}'),
        ("columns = 'question'", "write --columns.prompt question", 'write columns={"prompt": "question"}'),
        ("trackers = 'wandb'", """write --trackers '["wandb"]'""", 'write trackers=["wandb"]'),
        ("sampling = 0.7", "write --sampling.temperature 0.7", 'write sampling={"temperature": 0.7}'),
        ("extra_tasks = ['x.jsonl']", 'write { task = "x.jsonl" }', 'write {"task": "x.jsonl"}'),
        (
            "extra_tasks = [{ task = 'big_sums', columns = 3 }]",
            "groupwise help FIELD explains a field of a recipe",
            "docs/fields.md explains each field of a recipe",
        ),
    ],
)
def test_a_value_of_another_type_has_its_line(line: str, option: str, argument: str) -> None:
    fix = fix_of(line)
    assert (in_options(fix, ["train"]), in_python(fix)) == (option, argument)


def test_a_component_with_a_similar_or_an_earlier_name_has_its_line() -> None:
    assert fix_of('method.strategy = "Lookahed"') == 'did you mean method.strategy = "LookaheadTree"?'
    assert fix_of('method.shaping = ["overlongpenalty"]') == 'did you mean "OverlongPenalty"?'
    assert fix_of('method.strategy = "Anchored"') == 'write method.strategy = "WithSolutionAnchor", its name here'
    assert set(EARLIER_COMPONENTS.values()) <= PARTS and not PARTS & EARLIER_COMPONENTS.keys()
    assert {class_name(name) for name in FORMER_VERIFIERS.values()} <= PARTS


def test_a_method_in_the_notation_of_a_call_has_its_table() -> None:
    _, problems = read_with_problems("method = 'grpo(group_size=8)'", [], UserCode())
    assert problems[0].fix == 'write method = { base = "grpo", group_size = 8 }'
    recipe, problems = read_with_problems(problems[0].fix.removeprefix("write "), [], UserCode())
    assert recipe is not None and recipe.method.group_size == 8 and problems == []


@pytest.mark.parametrize(("path", "value"), [("optimizer", 1e-5), ("sampling", 0.7), ("machine", True)])
def test_a_number_in_place_of_a_table_is_not_lost_beside_a_field_of_it(path: str, value: object) -> None:
    """A default of the model sets `optimizer.lr`; it must not hide what the user wrote."""
    fields = {"optimizer": ("optimizer.lr", 1e-6), "sampling": ("sampling.max_tokens", 8)}
    beside = fields.get(path, ("machine.threads", 1))
    assert beside[0] in recipe_fields()
    _, problems = read_with_problems("method = 'grpo'", [(path, value), beside], UserCode())
    assert [problem.what.partition(":")[0] for problem in problems] == [f"recipe.{path}"]


BESIDE = [
    ("verifier", "none", "verifier.use_algebra", False),
    ("held_out", "none", "held_out.split", "test"),
    ("lora", "none", "lora.rank", 8),
    ("iterations", "5", "iterations.x", 3),
]


@pytest.mark.parametrize(("path", "value", "field", "beside"), BESIDE)
def test_a_value_without_fields_is_not_lost_beside_a_field_of_it(
    path: str, value: str, field: str, beside: object
) -> None:
    """The command line and Python, in both orders: each of the two would hide the other."""
    commands = [(path, value), (field, str(beside))]
    number = [(path, int(value) if value.isdecimal() else value), (field, beside)]
    for given in (commands, commands[::-1], overrides_of(dict(number)), overrides_of(dict(number[::-1]))):
        _, problems = read_with_problems("method = 'grpo'", given, UserCode())
        assert [problem.what for problem in problems] == [
            f"recipe.{path}: {value} has no fields, and {field} is set, too"
        ]
        assert problems[0].fix == f"leave out {path}, or {field}"
    with pytest.raises(Usage) as caught:
        read_recipe(f"{path} = {json.dumps(value)}\n{field} = {json.dumps(beside)}")
    assert "Cannot overwrite a value" in caught.value.evidence and "write it once" in caught.value.fix


@pytest.mark.parametrize("path", ["engine", "optimizer", "method", "save", "method.strategy"])
def test_a_part_that_cannot_be_none_is_not_replaced_by_its_default(path: str) -> None:
    for given in (
        [(path, "none")],
        [(path, "none"), (f"{path}.x", 3)],
        [(path, None)],
        [(path, None), (f"{path}.x", 3)],
    ):
        for overrides in (given, given[::-1]):
            start = starting_point(None, overrides)  # its defaults have `optimizer.lr`
            _, problems = read_with_problems(start.source, start.overrides, UserCode())
            assert [problem.what.partition(":")[0] for problem in problems] == [f"recipe.{path}"], problems


def test_a_number_in_a_file_is_not_replaced_by_a_field_of_it() -> None:
    with pytest.raises(Usage, match=r"iterations: 5 has no fields, and iterations\.x is set, too"):
        read_recipe("method = 'grpo'\niterations = 5", overrides_of({"iterations.x": 3}))


def test_none_in_a_file_and_a_field_on_the_command_line_make_the_table() -> None:
    recipe = read_recipe("method = 'grpo'\nlora = 'none'", [("lora.rank", "4")])
    assert recipe.lora is not None and recipe.lora.rank == 4
    assert read_recipe("method = 'grpo'\nlora.rank = 4", overrides_of({"lora": None})).lora is None


def test_a_kind_and_its_constants_are_set_in_any_order() -> None:
    """Another kind has other constants, so it is set before those of the same command."""
    given = [("engine.max_num_seqs", "4"), ("engine.kind", "Served")]
    for overrides in (given, given[::-1]):
        engine = read_recipe("method = 'grpo'\n[engine]\nkind = 'Native'\nmax_num_seqs = 9", overrides).engine
        assert isinstance(engine, gw.Served) and engine.max_num_seqs == 4


def test_a_method_that_was_not_called_and_an_environment_that_is_a_number() -> None:
    with pytest.raises(Usage) as caught:
        overrides_of({"method": gw.gspo})
    assert caught.value.fix == "call it: method=gw.gspo()"
    with pytest.raises(Usage, match="environment is 7, not a name"):
        overrides_of({"environment": 7})


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("Overlong", "; did you mean gw.OverlongPenalty?"),
        ("GRPO", "; did you mean gw.grpo?"),
        ("Anchored", "; its name here is gw.WithSolutionAnchor"),
        ("DPOTrainer", "; write gw.train(method=gw.dpo(), ...)"),
        ("Segments", "; from groupwise.data import Segments"),
        ("fit", ""),
    ],
)
def test_a_name_that_gw_lacks_has_a_similar_one(name: str, answer: str) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(gw, name)
    assert str(caught.value) == f"groupwise has no attribute {name!r}{answer}"
