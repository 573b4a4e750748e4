"""Recipes as text: TOML round trips, overrides, errors, user code."""

import hashlib
import math
import random
import re
import sys
import tomllib
from dataclasses import fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from types import ModuleType, NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from groupwise import advantages, data, learner, methods, models, objective, rewards, rollout, tasks
from groupwise.advantages import centred
from groupwise.config.diff import diff, label
from groupwise.config.parse_toml_values import hints_of
from groupwise.config.recipe import Recipe
from groupwise.config.recipe_toml import override, read_recipe, read_with_problems, write
from groupwise.config.registry import UnloadedPart, fitting_names, parts, public_name
from groupwise.config.toml import keys_of
from groupwise.config.user_code import Permissions, UserCode, load_use
from groupwise.core import BadData, Usage, part_names
from groupwise.engines import Native
from groupwise.learner import InitialPolicy, SquaredValueLoss, ValueModel
from groupwise.methods import (
    GAE,
    LinearRamp,
    Method,
    ScheduleInput,
    SoftGate,
    dapo,
    grpo,
    gspo,
    leave_one_out,
    published,
    reinforce_pp,
)
from groupwise.objective import Clip, Objective, complete, sequence_mean
from groupwise.verifiers.user_function import Function, functions_in

NAMES = [method.__name__ for method in published]
REFERENCE = (("reference", InitialPolicy()),)
OWN_FILE = "my_file"
"""The user's file in drawn recipes."""


def method_from(text: str, use: UserCode | None = None) -> Method:
    """A method read from its TOML, as part of a recipe."""
    indented = re.sub(r"^(\[+)", r"\1method.", text, flags=re.MULTILINE)
    prompts = tomllib.loads(text)["minibatches"]
    return read_recipe(f"prompts = {prompts}\n[method]\n" + indented, (), use).method


# Round trips


@cache
def values(hint: Any) -> st.SearchStrategy[Any]:
    """Values of a field's type, including the public parts of its socket. Made once: a strategy is checked when new."""
    if hint is bool:
        return st.booleans()
    if hint is int:
        return st.integers(0, 100)
    if hint is float:
        return st.floats(0, 2, allow_nan=False) | st.sampled_from([math.inf, 1e-300, 0.1 + 0.2])
    if hint is str:
        return st.text(st.characters(codec="utf-8", exclude_characters=":"), max_size=8)
    if get_origin(hint) in (Union, UnionType):
        return st.one_of(*(st.none() if arm is NoneType else values(arm) for arm in get_args(hint)))
    if get_origin(hint) is Literal:
        return st.sampled_from(get_args(hint))
    if get_origin(hint) is tuple:
        args = get_args(hint)
        if ... not in args:
            return st.tuples(*map(values, args))
        if get_origin(args[0]) is tuple:
            return st.lists(values(args[0]), max_size=2, unique_by=lambda pair: pair[0]).map(tuple)
        return st.lists(values(args[0]), max_size=3).map(tuple)
    if is_dataclass(hint):
        return built(hint)
    names = fitting_names(hint) if hint.__name__ in part_names() else []
    return st.sampled_from(names).flatmap(named) if names else st.nothing()


@cache
def named(name: str) -> st.SearchStrategy[Any]:
    part = parts()[name]
    return built(part) if isinstance(part, type) else st.just(part)


@st.composite
def built(draw: st.DrawFn, cls: type) -> Any:
    """A dataclass with some fields drawn. Combinations that the constructor refuses are discarded."""
    chance = random.getstate()  # beartype changes it, which hypothesis reports as a foreign source of randomness
    hints, given = hints_of(cls), {}
    for f in fields(cls):
        if get_origin(hints[f.name]) is tuple and "MethodState" in str(hints[f.name]):
            continue
        required = f.default is f.default_factory  # both MISSING
        if required or draw(st.booleans()):
            given[f.name] = draw(values(hints[f.name]))
    if cls is Objective and given.get("aggregate") is not sequence_mean:
        given["aggregate"] = draw(st.sampled_from([sequence_mean, objective.group_mean]))
    if cls is Method:
        given |= {"models": REFERENCE, "schedules": (), "shaping": given.get("shaping") or (rewards.Score(),)}
        given["models"] += models_needed(given)
        if (curriculum := given.get("curriculum")) is not None:
            if name := getattr(curriculum, "required_strategy", ""):
                given["strategy"] = draw(named(name))
            given["max_refills"] = max(getattr(curriculum, "rounds", 1) - 1, given.get("max_refills", 0))
            given |= {"old_logprobs": "engine"} if getattr(curriculum, "replays_answers", False) else {}
        chosen = (given.get(name) for name in ("curriculum", "strategy"))
        given["group_size"] = max(2, given.get("group_size", 2), *(getattr(p, "least_group_size", 1) for p in chosen))
        given |= {name: max(1, given.get(name, 1)) for name in ("minibatches", "epochs")}
    if cls is Function and given.get("file"):
        given["file"] = f"{OWN_FILE}.py"  # functions of other files are refused: no --use names them
    if cls is Recipe:
        given["prompts"] = given["method"].minibatches * draw(st.integers(1, 9))
        stop = tuple(filter(None, draw(values(tuple[str, ...]))))
        given["sampling"] = data.Sampling(max_tokens=draw(st.integers(1, 99)), stop=stop)
    try:
        return cls(**given)
    except ValueError:
        assume(False)
    finally:
        random.setstate(chance)


def models_needed(given: dict[str, Any]) -> tuple[tuple[str, learner.SideModel], ...]:
    """The models that the drawn parts need, besides the reference model."""
    read = data.needs(
        tuple(part for value in given.values() for part in (value if isinstance(value, tuple) else (value,)))
    )
    critics = sorted({m.model for m in read if isinstance(m, data.Value | data.Return)})
    others = sorted({m.model for m in read if isinstance(m, data.Logp)} - {"policy", "reference"})
    trained = ((n, ValueModel(target_credit=GAE(critic=n), loss=SquaredValueLoss(critic=n))) for n in critics)
    return (*((name, InitialPolicy()) for name in others), *trained)


@pytest.mark.parametrize("method", published, ids=NAMES)
def test_every_method_reads_back_exactly(method):
    value = method()
    back = method_from(write(value))
    assert back == value and repr(back) == repr(value)
    assert read_recipe(f"prompts = 1024\nmethod = '{method.__name__}'").method == value
    assert read_recipe(f"prompts = 1024\nmethod = {{ base = '{method.__name__}' }}").method == value


def test_a_component_may_have_a_field_called_base(tmp_path: Path) -> None:
    """`base` names a method only in the table of the method."""
    file = tmp_path / "powers.py"
    file.write_text("""
from dataclasses import dataclass
import groupwise as gw

@dataclass(frozen=True)
class Power(gw.Shaping):
    base: float = 2.0

    def __call__(self, reward, batch):
        return self.base**reward
""")
    use = load_use(Permissions(use=(file,)))
    method = read_recipe('method.shaping = [{ kind = "powers:Power", base = 0.25 }]', use=use).method
    assert method.shaping[0].base == 0.25


@settings(max_examples=60, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(values(Method))
def test_any_method_reads_back_exactly(method):
    back = method_from(write(method))
    assert back == method and repr(back) == repr(method)


@settings(max_examples=30, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(values(Recipe))
def test_any_recipe_reads_back_exactly(recipe):
    """A function without a file is one of the program that reads the recipe; the file of others is loaded."""
    kinds = [recipe.verifier, *(also.verifier for also in recipe.extra_tasks)]
    functions = {f.name: len for kind in kinds for f in functions_in(kind)}
    own = ModuleType(OWN_FILE)
    vars(own).update(functions)
    functions |= {recipe.agent.file: len} if recipe.agent else {}
    back = read_recipe(write(recipe), use=UserCode(modules={OWN_FILE: own}, functions_in_memory=functions))
    assert back == recipe and repr(back) == repr(recipe)


def test_the_packaged_recipe_reads_back_exactly():
    import groupwise.config.recipe_toml as text

    recipe = read_recipe(Path(text.__file__).with_name("default.toml"))
    assert read_recipe(write(recipe)) == recipe and write(read_recipe(write(recipe))) == write(recipe)


@settings(max_examples=30, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(values(Method), values(Method))
def test_equal_methods_have_no_differences(a, b):
    assert (diff(a, b) == []) == (a == b)
    assert diff(a, a) == []


# The package is the registry


def test_public_names_are_unique_across_rooms():
    rooms = (data, models, tasks, rollout, rewards, advantages, objective, learner, methods)
    names = [name for room in rooms for name in room.__all__]
    assert sorted(names) == sorted(set(names))


def test_every_part_is_found_by_its_name_and_fits_one_socket():
    homes: dict[str, str] = {}
    for socket in part_names():
        rooms = (data, models, rollout, objective, learner, methods)
        protocol = next(getattr(room, socket) for room in rooms if hasattr(room, socket))
        names = fitting_names(protocol)
        assert names, socket
        for name in names:
            assert homes.setdefault(name, socket) == socket
            assert isinstance(parts()[name], type) or public_name(parts()[name]) == name
    assert {"Clip", "token_ratio", "KL", "complete", "Whitened", "Shuffled", "LinearRamp"} <= set(homes)
    assert "kl_k1" not in homes, "a metric is no penalty"


def test_an_engine_is_a_part_with_the_fields_of_its_kind(tmp_path: Path) -> None:
    recipe = read_recipe("", [("method", "gspo"), ("engine", '{ kind = "Native", max_num_seqs = 7 }')])
    assert recipe.engine == Native(max_num_seqs=7) and read_recipe(write(recipe)) == recipe
    assert read_recipe("", [("method", "gspo"), ("engine.max_num_seqs", "7")]) == recipe
    file = tmp_path / "mine.py"
    file.write_text(
        "from dataclasses import dataclass\n"
        "@dataclass(frozen=True)\n"
        "class MyEngine:\n"
        "    port: int = 80\n"
        "    max_logprob_diff: float = 0.5\n"
        "    def build(self, model, tokenizer, *, seed, experts): ...\n"
        "@dataclass(frozen=True)\n"
        "class NoEngine:\n"
        "    port: int = 80\n"
    )
    use = load_use(Permissions(use=[file]))
    own = read_recipe("", [("method", "gspo"), ("engine", '{ kind = "mine:MyEngine", port = 9 }')], use)
    assert own.engine.port == 9 and "mine:MyEngine" in write(own)
    for kind, field, what in (
        ("mine:MyEngine", "rows", "MyEngine has no field 'rows'"),
        ("Native", "port", "Native has no field 'port'"),
        ("mine:NoEngine", "port", "NoEngine is not an EngineSettings"),
        ("Clip", "low", "Clip is not an EngineSettings"),
    ):
        with pytest.raises(Usage, match=what):
            read_recipe("", [("method", "gspo"), ("engine", f'{{ kind = "{kind}", {field} = 1 }}')], use)


# Overrides


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        ("group_size", "5", replace(dapo(), group_size=5)),
        ("objective.surrogate.high", "0.35", dapo(high=0.35)),
        ("objective.surrogate.high", "1", dapo(high=1.0)),
        ("objective.aggregate", "token_mean", dapo()),
        ("advantage", "centred", replace(dapo(), advantage=(centred,))),
        ("advantage", '["centred", "leave_one_out"]', replace(dapo(), advantage=(centred, leave_one_out))),
        ("advantage", "[]", replace(dapo(), advantage=())),
        ("mask", "complete", replace(dapo(), mask=(complete,))),
        ("shaping.1.buffer_length", "64", dapo(buffer_length=64)),
        ("shuffle", "samples", replace(dapo(), shuffle="samples")),
        ("models", '{ reference = "InitialPolicy" }', replace(dapo(), models=REFERENCE)),
        ("objective", '{ surrogate = "SoftGate" }', replace(dapo(), objective=Objective(surrogate=SoftGate()))),
        ("objective.surrogate.kind", "SoftGate", replace(dapo(), objective=Objective(surrogate=SoftGate()))),
        ("objective.surrogate", '{ kind = "Clip", low = 0.1 }', dapo(low=0.1, high=0.2)),
    ],
)
def test_override_changes_one_thing(path, text, expected):
    assert override(dapo(), path, text) == expected


def test_the_length_of_a_run_is_said_once():
    with pytest.raises(Usage, match="epochs and iterations both say how long the run is"):
        read_recipe("prompts = 8", [("epochs", "2"), ("iterations", "7")])
    assert read_recipe("method = 'gspo'\nepochs = 2", [("iterations", "7")]).epochs is None
    assert read_recipe("method = 'gspo'\niterations = 7", [("epochs", "2")]).epochs == 2


def test_overrides_are_applied_together():
    text = "prompts = 16\nmethod = 'gspo'"
    recipe = read_recipe(text, [("prompts", "6"), ("method.minibatches", "3")])
    assert (recipe.prompts, recipe.method.minibatches) == (6, 3)
    recipe = read_recipe(text, [("method", "grpo"), ("method.group_size", "4"), ("task", "2024")])
    assert recipe.method == grpo(group_size=4) and recipe.task == tasks.DataRows("2024")
    recipe = read_recipe(
        text, [("method.objective", '{ surrogate = "Clip" }'), ("method.objective.surrogate.high", "1")]
    )
    assert recipe.method.objective.surrogate == Clip(high=1.0)


def test_another_part_does_not_inherit_constants():
    text = "prompts = 16\nmethod.objective.surrogate = { kind = 'Clip', low = 0.1 }"
    recipe = read_recipe(text, [("method.objective.surrogate.kind", "SoftGate")])
    assert recipe.method.objective.surrogate == SoftGate()


def test_short_form_changes_constants_in_place():
    recipe = read_recipe(
        """
        prompts = 512
        [method]
        base = "dapo"
        objective.weights = [{ kind = "TruncatedImportance", cap = 2 }]
        [method.objective.surrogate]
        high = 0.3
        [optimizer]
        lr = 1e-6
        betas = [0.9, 0.95]
        """
    )
    assert recipe.method.objective.surrogate == Clip(0.2, 0.3)
    assert recipe.method.objective.weights == (objective.TruncatedImportance(2.0),)
    assert type(recipe.method.objective.weights[0].cap) is float
    assert recipe.method.shaping == dapo().shaping
    assert recipe.optimizer.betas == (0.9, 0.95)


@pytest.mark.parametrize(("path", "keys"), [("a.b.1", ["a", "b", "1"]), ('s."a.b".end', ["s", "a.b", "end"])])
def test_paths_are_toml_keys(path, keys):
    assert keys_of(path) == keys


# Schedules


def test_schedules_become_numbers():
    ramps = (("objective.surrogate.high", LinearRamp(0.4, 0.2, 10)), ("epochs", LinearRamp(1.0, 3.0, 2)))
    method = replace(grpo(), schedules=ramps)
    assert method.at(ScheduleInput(0)).objective.surrogate == Clip(0.2, 0.4)
    assert method.at(ScheduleInput(10)) == replace(
        method, objective=replace(method.objective, surrogate=Clip(0.2, 0.2)), epochs=3
    )
    assert method_from(write(method)) == method
    ramp = "{{ kind = 'LinearRamp', start_value = 1, end_value = 2, over_iterations = 3 }}"
    text = f"method.base = 'grpo'\n[method.schedules]\n'{{}}' = {ramp}"
    assert read_recipe(text.format("objective.surrogate.low")).method.schedules[0][1] == LinearRamp(1.0, 2.0, 3)
    with pytest.raises(Usage, match="Clip has no field 'lo'; did you mean low"):
        read_recipe(text.format("objective.surrogate.lo"))


def test_a_schedule_that_is_invalid_at_a_middle_iteration_raises_at_reading():
    """A group size of 4.4 in the second iteration; whole numbers in the first and the last."""
    text = "iterations = 100\n[method]\nbase = 'grpo'\nschedules = {{ group_size = {{ kind = 'LinearRamp', {} }} }}"
    with pytest.raises(Usage, match=r"group_size: 4\.4 is a number; expected a whole number"):
        read_recipe(text.format("start_value = 4, end_value = 8, over_iterations = 10"))
    read_recipe(text.format("start_value = 4, end_value = 8, over_iterations = 2"))


# Differences


def test_the_difference_between_grpo_and_dapo():
    lines = diff(grpo(), dapo())
    assert lines == [
        "group_size: 64 -> 16",
        "filter: everything -> mixed_outcomes (max_refills 10)",
        (
            "shaping: Score(scale=1, offset=0) -> Correctness(correct_reward=1, wrong_reward=-1), "
            "OverlongPenalty(buffer_length=0.2, penalty_factor=1)"
        ),
        "objective.surrogate.high: 0.2 -> 0.28",
        "objective.penalties: KL(coefficient=0.04, kl_estimator=k3, model=reference) -> none",
        "objective.aggregate: group_mean -> token_mean",
        "minibatches: 1 -> 16",
        "models: reference InitialPolicy -> none",
    ]
    assert "objective.surrogate.ratio: token_ratio -> sequence_ratio" in diff(grpo(), gspo())
    assert "credit: every_token -> " in "\n".join(diff(grpo(), reinforce_pp()))


def test_differences_between_recipes_have_dotted_paths():
    a = read_recipe("method = 'gspo'")
    b = read_recipe(
        "method = 'gspo'\nmodel = 'else'", [("method.objective.surrogate.high", "0.5"), ("trackers", "wandb")]
    )
    assert diff(a, b) == [
        "model: calculator -> else",
        "method.objective.surrogate.high: 0.0004 -> 0.5",
        "trackers: none -> wandb",
    ]
    assert diff(b, b) == []


@pytest.mark.parametrize(
    ("value", "words"), [(1.0, "1"), (3e-4, "0.0003"), (1e300, "1e+300"), (True, "true"), ("", '""'), ((), "none")]
)
def test_labels(value, words):
    assert label(value) == words


# Errors


ERRORS = """
method.objective.surrogate.hihg = 3
    recipe.method.objective.surrogate: Clip has no field 'hihg'; did you mean high?
method.objective.aggregate = 'sequence_meen'
    recipe.method.objective.aggregate: unknown component 'sequence_meen'; similar: sequence_mean, sequence_sum
method = 'grop'
    recipe.method: unknown method 'grop'; did you mean grpo?
method = { base = 'gspo', grup_size = 4 }
    recipe.method: Method has no field 'grup_size'; did you mean group_size?
modl = 'x'; method = 'gspo'
    recipe: Recipe has no field 'modl'; did you mean model?
prompts = 'many'; method = 'gspo'
    recipe.prompts: 'many' is a string; expected a whole number
prompts = 1.5; method = 'gspo'
    recipe.prompts: 1.5 is a number; expected a whole number
prompts = true; method = 'gspo'
    recipe.prompts: True is a boolean; expected a whole number
optimizer.lr = true; method = 'gspo'
    recipe.optimizer.lr: True is a boolean; expected a number
task = 3; method = 'gspo'
    recipe.task: 3 is a whole number; expected the name of a component or a table
method = 3
    recipe.method: 3 is a whole number; expected the name of a component or a table
optimizer.betas = [1.0]; method = 'gspo'
    recipe.optimizer.betas: [1.0] is a list; expected a list of 2
trackers = 'wandb'; method = 'gspo'
    recipe.trackers: 'wandb' is a string; expected a list
method.shuffle = 'cards'
    recipe.method.shuffle: 'cards' is not one of prompts, samples
method.models = [['reference', 'InitialPolicy']]
    recipe.method.models: [['reference', 'InitialPolicy']] is a list; expected a table
method.models.reference = 'Clip'
    recipe.method.models.reference: Clip is not a SideModel
method.objective.aggregate = 'centred'
    recipe.method.objective.aggregate: centred is not an Aggregate
method.objective.aggregate = 'token_ratio'
    recipe.method.objective.aggregate: token_ratio is not an Aggregate
method.objective.surrogate = 'Batch'
    recipe.method.objective.surrogate: Batch is not a Surrogate
method.objective.surrogate.kind = 3
    recipe.method.objective.surrogate: kind: 3 is a whole number; expected the name of a component
method.objective.aggregate.x = 1
    recipe.method.objective.aggregate: the table has no kind; the names are LengthScaledAggregate
method.objective.aggregate = { kind = 'token_mean', x = 1 }
    recipe.method.objective.aggregate: token_mean has no constants, so no 'x'
method.objective.penalties = ['KL']
    recipe.method.objective.penalties.0: KL needs coefficient
method.objective.penalties = [{ kind = 'KL', coefficient = 1 }]
    recipe.method: a component needs the model 'reference', which method.models does not define
method = { group_size = 1, advantage = ['centred'] }
    recipe.method: group_size is 1 and the advantage compares samples of a group
method = { base = 'gspo', objective = { aggregate = 'token_mean' } }
    recipe.method.objective: sequence_ratio gives a sequence one ratio, and token_mean would weigh
method = { base = 'gspo', objective = { aggregate = 'budget_mean' } }
    recipe.method.objective: sequence_ratio gives a sequence one ratio, and budget_mean would weigh
prompts = 17; method = 'gspo'
    recipe: 17 prompts cannot be cut into 4 equal minibatches
method = 'gspo'; sampling.top_p = 0.9
    recipe: sampling is truncated
method = 'gspo'; sampling.temperature = 0
    recipe: sampling.temperature is 0
method.filter = 'my_file:mine'
    recipe.method.filter: 'my_file:mine' is code in a file
method = 'gspo'; verifier = 'my_file:grade'
    recipe.verifier: 'my_file:grade' is code in a file
prompts = 3
    recipe: Recipe needs method
prompts =
    recipe is not TOML
""".strip().splitlines()


@pytest.mark.parametrize(("text", "message"), list(zip(ERRORS[::2], map(str.strip, ERRORS[1::2]))))
def test_errors_name_path_value_and_fix(text, message):
    with pytest.raises(Usage) as raised:
        read_recipe(text.replace("; ", "\n") + "\n")
    assert str(raised.value).startswith(message)
    assert raised.value.code == 2


def test_several_errors_are_raised_together():
    text = (
        "modl = 1\nprompts = 'x'\nmethod = { base = 'gspo', group_size = 0, objective = { surrogate = { hihg = 1 } } }"
    )
    _, problems = read_with_problems(text)
    messages = [problem.what for problem in problems]
    assert len(messages) == 4
    for part in ("has no field 'modl'", "prompts: 'x'", "has no field 'hihg'", "group_size is 0"):
        assert sum(part in line for line in messages) == 1
    with pytest.raises(Usage, match="4 errors"):
        read_recipe(text)


@pytest.mark.parametrize(
    ("path", "text", "message"),
    [
        ("objective.surrogate.hihg", "1", "method.objective.surrogate: Clip has no field 'hihg'"),
        ("shaping.7.buffer", "1", "method.shaping: no element '7'"),
        ("a b", "1", "'a b' is not a dotted path"),
        ("epochs", "often", "method.epochs: 'often' is a string"),
    ],
)
def test_errors_of_overrides(path, text, message):
    with pytest.raises(Usage) as raised:
        override(dapo(), path, text)
    assert str(raised.value).startswith(message)


def test_an_override_changes_an_element_of_a_list():
    text = "prompts = 16\n[method]\nbase = 'grpo'\nobjective.penalties = [{ kind = 'KL', coefficient = 1 }]"
    recipe = read_recipe(text, [("method.objective.penalties.0.coefficient", "0.5")])
    assert recipe.method.objective.penalties[0].coefficient == 0.5
    with pytest.raises(Usage, match="no element '1'"):
        read_recipe(text, [("method.objective.penalties.1.coefficient", "0.5")])


def test_errors_of_files_that_cannot_be_read(tmp_path):
    with pytest.raises(Usage, match="cannot be read"):
        read_recipe(tmp_path / "none.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(Usage, match="is not TOML"):
        read_recipe(tmp_path / "bytes.toml")


def test_a_part_without_a_name_cannot_be_written():
    with pytest.raises(Usage, match="without a name that a recipe can use"):
        write(replace(grpo(), filter=lambda rollout: rollout))


# User code

MINE = """
from dataclasses import dataclass
import torch
from groupwise.data import Ratio, aggregate
from groupwise.objective import token_ratio

@dataclass(frozen=True, slots=True)
class MyClip:
    high: float = 0.5
    ratio: Ratio = token_ratio
    def __call__(self, b):
        return torch.minimum(self.ratio(b), torch.tensor(1 + self.high)) * b.advantage

@aggregate
def my_mean(step):
    return torch.ones_like(step.advantage)

def two(a, b):
    return a

class Odd:
    def __call__(self, b):
        return b

def grade(prompt, answer, gold):
    return answer == gold
"""


@pytest.fixture
def mine(tmp_path) -> Path:
    path = tmp_path / "my_file.py"
    path.write_text(MINE)
    return path


def test_path_and_hash_of_a_file_are_printed_before_it_runs(mine, capsys):
    mine.write_text("print('running')\n" + MINE)
    use = load_use(Permissions(use=[mine]))
    digest = hashlib.sha256(mine.read_bytes()).hexdigest()
    assert capsys.readouterr().out == f"using {mine.resolve()}  sha256 {digest}\nrunning\n"
    assert use.hashes == {"my_file": digest}
    assert set(use.functions) == {"my_file:MyClip", "my_file:my_mean", "my_file:two", "my_file:Odd", "my_file:grade"}
    assert "my_file" not in sys.modules


def test_user_parts_read_back(mine):
    use = load_use(Permissions(use=[mine]))
    text = """
    prompts = 16
    verifier = "my_file:grade"
    [method]
    base = "dapo"
    [method.objective]
    aggregate = "my_file:my_mean"
    surrogate = { kind = "my_file:MyClip", high = 1 }
    """
    recipe = read_recipe(text, (), use)
    surrogate = recipe.method.objective.surrogate
    assert surrogate == use.find("my_file:MyClip")(high=1.0) and type(surrogate.high) is float
    assert read_recipe(write(recipe), (), use) == recipe
    assert "objective.aggregate: token_mean -> my_file:my_mean" in diff(dapo(), recipe.method)


def test_user_parts_are_unloaded_where_nothing_is_imported(mine):
    text = "method.objective.surrogate = { kind = 'my_file:MyClip', high = 3 }\nverifier = 'my_file:grade'"
    recipe, problems = read_with_problems(text)
    assert problems == [] and recipe.method.objective.surrogate == UnloadedPart("my_file:MyClip", (("high", 3),))
    assert 'kind = "my_file:MyClip"' in write(recipe) and read_with_problems(write(recipe)) == (recipe, [])
    assert "Clip(low=0.2, high=0.2, ratio=token_ratio) -> my_file:MyClip(high=3)" in diff(Method(), recipe.method)[0]
    with pytest.raises(Usage, match="is not loaded"):
        recipe.method.objective.surrogate(None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("aggregate = 'my_file:two'", "two is not an Aggregate"),
        ("aggregate = 'my_file:none'", "my_file.py does not define 'none'"),
        ("surrogate = 'my_file:Odd'", "my_file:Odd is not a dataclass"),
        ("surrogate = { kind = 'my_file:MyClip', hihg = 3 }", "MyClip has no field 'hihg'; did you mean high?"),
        ("surrogate = 'your_file:MyClip'", "'your_file:MyClip' is code in a file"),
    ],
)
def test_errors_of_user_parts(mine, text, message):
    with pytest.raises(Usage) as raised:
        read_recipe(f"[method.objective]\n{text}\n[method]", (), load_use(Permissions(use=[mine])))
    assert message in str(raised.value)


def test_a_run_resumes_only_with_the_code_that_it_started_with(mine, tmp_path, capsys):
    recorded = load_use(Permissions(use=[mine])).hashes
    assert load_use(Permissions(use=[mine]), recorded).hashes == recorded
    with pytest.raises(Usage, match="started with user code") as raised:
        load_use(Permissions(use=[]), recorded)
    assert "--use my_file.py" in raised.value.fix
    with pytest.raises(Usage, match="was started without my_file"):
        load_use(Permissions(use=[mine]), {})
    capsys.readouterr()
    mine.write_text("print('running')\n" + MINE)
    with pytest.raises(BadData, match="started with"):
        load_use(Permissions(use=[mine]), recorded)
    assert capsys.readouterr().out == "", "the error comes before the file runs"


def test_errors_of_files_that_cannot_be_loaded(tmp_path, mine):
    with pytest.raises(Usage, match="is not a Python file"):
        load_use(Permissions(use=[tmp_path / "none.py"]))
    (tmp_path / "other").mkdir()
    again = tmp_path / "other" / "my_file.py"
    again.write_text("")
    with pytest.raises(Usage, match="two files of --use have the name my_file"):
        load_use(Permissions(use=[mine, again]))
    again.write_text("x = 1\ny = 1 / 0\n")
    with pytest.raises(Usage, match="raises an error when it is loaded") as raised:
        load_use(Permissions(use=[again]))
    assert raised.value.evidence.endswith(".py:2 in <module>: ZeroDivisionError: division by zero")
    again.write_text("def (:\n")
    with pytest.raises(Usage, match="raises an error when it is loaded"):
        load_use(Permissions(use=[again]))


def test_a_key_of_a_thousand_dots_is_one_error():
    with pytest.raises(Usage, match="is nested too deeply"):
        read_recipe(".".join("a" * 1500) + " = 1")
