"""Permissions are one value, from the command line and from Python to the code that they allow."""

import importlib
import inspect
import pkgutil
from dataclasses import fields

import pytest

import groupwise as gw
from groupwise import api, commands, training

NAMES = {field.name for field in fields(gw.Permissions)}


def test_no_function_spells_out_the_permissions() -> None:
    found = []
    for room in (api, commands, training):
        for module in pkgutil.iter_modules(room.__path__, f"{room.__name__}."):
            for name, f in vars(importlib.import_module(module.name)).items():
                if inspect.isfunction(f) and len(NAMES & inspect.signature(f).parameters.keys()) > 1:
                    found.append(f"{module.name}.{name}")
    assert not found


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_permission_by_its_own_name_is_answered_with_the_value(name: str) -> None:
    with pytest.raises(gw.Usage, match=f"{name} is a permission") as caught:
        gw.train(**{name: True})
    assert caught.value.fix == f"pass permissions=gw.Permissions({name}=...)"
