"""Wrong arguments of a class, method or call of `gw` are answered with the call to write, in Python's words."""

import inspect
import pickle
from collections.abc import Callable
from dataclasses import is_dataclass, replace
from typing import Any

import pytest

import groupwise as gw
from groupwise.config.constructor_wrappers import answering
from groupwise.config.recipe import Recipe
from groupwise.config.recipe_toml import read_with_problems
from groupwise.config.train_keyword_arguments import overrides_of
from groupwise.config.user_code import UserCode
from groupwise.core import InvalidValue
from groupwise.core.lazy_imports import home_of
from groupwise.methods.families import method_files

WRITTEN: dict[str, tuple[Callable[..., Any], dict[str, Any], Any]] = {
    "grpo": (gw.grpo, {"beta": 0.1}, gw.grpo(kl=0.1)),
    "its group": (gw.grpo, {"num_generations": 6}, gw.grpo(group_size=6)),
    "its clip": (gw.grpo, {"epsilon": 0.1}, gw.grpo(clip=0.1)),
    "dapo": (gw.dapo, {"epsilon_high": 0.3}, gw.dapo(high=0.3)),
    "its low": (gw.dapo, {"clip_ratio": 0.1}, gw.dapo(low=0.1)),
    "AdamW": (gw.AdamW, {"learning_rate": 1e-5}, gw.AdamW(lr=1e-5)),
    "its betas": (gw.AdamW, {"adam_beta1": 0.8}, gw.AdamW(betas=(0.9, 0.999))),
    "Lora": (gw.Lora, {"r": 8}, gw.Lora(rank=8)),
    "Machine": (gw.Machine, {"bf16": True}, gw.Machine(dtype="bfloat16")),
    "Sampling": (gw.Sampling, {"max_new_tokens": 9}, gw.Sampling(max_tokens=9)),
    "Save": (gw.Save, {"save_steps": 5}, gw.Save(every=5)),
    "Evaluate": (gw.Evaluate, {"eval_steps": 5}, gw.Evaluate(every=5)),
    "KL": (gw.KL, {"beta": 0.1}, gw.KL(coefficient=0.1)),
    "Method": (gw.Method, {"num_iterations": 2}, gw.Method(epochs=2)),
}
ADVISED: dict[str, tuple[Callable[..., Any], dict[str, Any], str]] = {
    "a table": (gw.Recipe, {"lr": 1e-5}, "write gw.Recipe(optimizer=gw.AdamW(lr=1e-05))"),
    "misspelt": (gw.Clip, {"hihg": 0.3}, "did you mean high?"),
    "of another method": (gw.dapo, {"kl": 0.1}, "it is an argument of grpo"),
    "of the run": (gw.grpo, {"learning_rate": 1e-5}, "pass it to gw.train: optimizer=gw.AdamW(lr=1e-06)"),
    "of the recipe": (gw.AdamW, {"prompts": 8}, "pass it to gw.train: prompts=8"),
    "of the method": (gw.dapo, {"loss_agg_mode": "x"}, "method=gw.dapo(), **{"),
    "of no field": (gw.Lora, {"lora_dropout": 0.1}, "leave it out: "),
    "unknown": (gw.Clip, {"xyzzy": 1}, "its arguments are low=0.2, high=0.2, ratio=token_ratio"),
    "of a call": (gw.resume, {"run": "x", "xyzzy": 1}, "its arguments are run, reward=None"),
    "two": (gw.AdamW, {"learning_rate": 1e-5, "wait_decay": 0}, "write gw.AdamW(lr=1e-05)\ndid you mean weight_decay?"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRITTEN)
def test_a_foreign_argument_is_answered_with_the_call_that_makes_the_value(name: str) -> None:
    call, given, value = WRITTEN[name]
    with pytest.raises(InvalidValue) as caught:
        call(**given)
    written = caught.value.fix.removeprefix("write ").partition(" (")[0]
    assert eval(written, {"gw": gw}) == value and str(next(iter(given))) in caught.value.what


@pytest.mark.parametrize("name", ADVISED)
def test_an_argument_of_something_else_is_answered_with_its_place(name: str) -> None:
    call, given, advice = ADVISED[name]
    with pytest.raises(InvalidValue) as caught:
        call(**given)
    assert advice in caught.value.fix and "--" not in caught.value.fix


def test_what_is_passed_to_train_changes_the_method_that_was_called() -> None:
    with pytest.raises(InvalidValue) as caught:
        gw.gspo(num_iterations=2)  # pyright: ignore
    arguments = eval(caught.value.fix.replace("pass it to gw.train: ", "Call(") + ")", {"gw": gw, "Call": dict})
    recipe, problems = read_with_problems("prompts = 16", overrides_of(arguments), UserCode())
    assert problems == [] and recipe is not None and recipe.method == replace(gw.gspo(), epochs=1)


@pytest.mark.parametrize(("call", "args"), [(gw.grpo, (5,)), (gw.KL, (1.0, "k3", "reference", 1)), (gw.Prompt, ())])
def test_arguments_that_do_not_fit_otherwise_are_answered_with_those_that_do(
    call: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    with pytest.raises(InvalidValue, match=r"gw\.\w+\(\): ") as caught:
        call(*args)
    assert caught.value.fix.startswith("its arguments are ")


def test_every_class_and_method_of_gw_answers() -> None:
    names = {*dir(gw), *method_files(), *(name for names in gw.parts.values() for name in names)}
    values = {name: getattr(gw, name) for name in names}
    own: dict[str, Callable[..., Any]] = {
        n: v for n, v in values.items() if n in method_files() or (isinstance(v, type) and is_dataclass(v))
    }
    assert len(own) > 200
    for name, value in own.items():
        with pytest.raises(InvalidValue, match=f"{name} has no argument 'xyzzy'"):
            value(xyzzy=1)


def test_a_class_keeps_its_identity_and_signature_and_a_type_error_within_is_not_changed() -> None:
    assert gw.AdamW is __import__(home_of("AdamW"), fromlist=["AdamW"]).AdamW and gw.grpo is gw.grpo
    assert "betas" in inspect.signature(gw.AdamW).parameters and "clip" in inspect.signature(gw.grpo).parameters
    assert pickle.loads(pickle.dumps(gw.AdamW(lr=1e-5))) == gw.AdamW(lr=1e-5) and Recipe is gw.Recipe


def test_a_type_error_within_a_call_stays() -> None:
    def broken(*, size: int) -> int:
        return size + "1"  # type: ignore[operator]

    broken.__module__ = "groupwise.api.test"
    with pytest.raises(TypeError, match="unsupported operand"):
        answering("broken", broken)(size=1)
    with pytest.raises(InvalidValue, match="broken has no argument 'sise'"):
        answering("broken", broken)(sise=1)
