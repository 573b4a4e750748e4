"""What a recipe's machine decides, seen in whole runs."""

from dataclasses import replace
from pathlib import Path

import pytest

from groupwise.train.place import place
from groupwise.train.recipe import Machine, Native
from groupwise.train.use import Use
from tests.faults.small_runs import EVERY, left, ran


def test_layers_forwarded_again_change_no_bit_of_a_run(tmp_path: Path) -> None:
    plain, again = (ran(tmp_path / str(r), replace(EVERY, machine=Machine(recompute=r))) for r in (False, True))
    assert left(plain) == left(again)
    assert place(replace(EVERY, machine=Machine(recompute=True)), Use()).model.model.recompute


@pytest.mark.parametrize(("dtype", "bound"), [("float32", 1e-3), ("float64", 1e-3), ("bfloat16", 2.0)])
def test_the_gap_that_rounding_explains_depends_on_the_dtype(dtype, bound) -> None:
    recipe = replace(EVERY, machine=Machine(dtype=dtype))
    assert place(recipe, Use()).guards.max_gap == bound
    assert place(replace(recipe, engine=Native(max_gap=0.25)), Use()).guards.max_gap == 0.25
