"""Verdicts over seeds: their four words, the error of three looks, corrections, and the seeds that a power needs."""

import math

import numpy as np
import pytest
from studies.study import Estimate

from groupwise.evaluation.interval import mean_interval, mean_p, t_probability, t_quantile
from groupwise.evaluation.seed_verdicts import (
    LOOK_LEVEL,
    LOOK_P,
    LOOKS,
    benjamini_hochberg,
    corrected_p,
    has_little_room,
    holm,
    not_worse,
    verdict,
)
from groupwise.evaluation.seeds_to_decide import seeds_in_words, seeds_to_decide, seeds_to_keep

TABLE = {  # two-sided 95 % and 99 %: CRC Standard Mathematical Tables, and scipy.stats.t.ppf
    1: (12.706204736432095, 63.65674116287399),
    4: (2.7764451051977987, 4.604094871415897),
    9: (2.262157162740992, 3.2498355440153697),
    19: (2.093024054408263, 2.860934606449914),
}


@pytest.mark.parametrize("degrees", TABLE)
def test_the_quantiles_of_students_t_are_those_of_the_tables(degrees: int) -> None:
    for level, quantile in zip((0.95, 0.99), TABLE[degrees], strict=True):
        assert t_quantile(degrees, level) == pytest.approx(quantile, rel=1e-9)
        assert t_probability(quantile, degrees) == pytest.approx(level, rel=1e-10)


def test_the_p_of_a_mean_is_below_a_level_where_its_interval_excludes_zero() -> None:
    random = np.random.default_rng(3)
    for n in (2, 5, 12):
        for _ in range(40):
            values = random.normal(0.5, 1.0, n).tolist()
            for level in (0.95, 1 - LOOK_P):
                low, high = mean_interval(values, level)
                assert (mean_p(values) < 1 - level) == (low > 0 or high < 0)
    assert (mean_p([0.0, 0.0]), mean_p([1.0]), mean_p([1.0, 1.0])) == (1.0, 1.0, 0.0)


@pytest.mark.parametrize(
    ("differences", "word"),
    [
        ([0.3, 0.31, 0.29], "shown"),
        ([-0.3, -0.31, -0.29], "opposite"),
        ([0.05, 0.05, 0.05], "absent"),  # above 0, and too small to count
        ([0.0, 0.0, 0.0], "absent"),
        ([0.0, 0.1, 0.5], "undecided"),
        ([0.09, 0.08, 0.1], "undecided"),  # above 0, perhaps large enough, and the mean is not
        ([0.3], "undecided"),
    ],
)
def test_the_four_words(differences: list[float], word: str) -> None:
    assert verdict(differences, 0.1) == word
    mirrored = {"shown": "opposite", "opposite": "shown"}
    assert verdict([-x for x in differences], 0.1) == mirrored.get(word, word)


def test_a_verdict_needs_each_first_model_on_its_side() -> None:
    differences = [0.9, 0.8, 0.9, 0.8, 0.9, -0.1]
    for values, word in ((differences, "shown"), ([-x for x in differences], "opposite")):
        assert verdict(values, 0.1) == verdict(values, 0.1, bases=[0, 0, 0, 1, 1, 1]) == word
        assert verdict(values, 0.1, bases=[0, 0, 1, 1, 1, 2]) == "undecided"
    assert verdict([0.01, -0.01, 0.0], 0.1, bases=[0, 1, 2]) == "absent"


def test_what_is_kept_may_fall_by_less_than_the_margin() -> None:
    assert [not_worse(x, 0.1) for x in ([-0.05, -0.04, -0.06], [-0.3, -0.31, -0.29], [0.1, -0.3, 0.2])] == [
        "shown", "opposite", "undecided"]  # fmt: skip


def test_three_looks_err_in_six_percent_of_comparisons_without_a_difference() -> None:
    """Pocock's bound is for looks that are equally far apart. Looks at 5 % each err in more than 10 %."""
    values = np.random.default_rng(0).normal(size=(40_000, LOOKS[-1]))
    errors = {}
    for p in (LOOK_P, 0.05):
        wrong = np.zeros(len(values), dtype=bool)
        for look in LOOKS:
            seen = values[:, :look]
            t = np.abs(seen.mean(1)) / (seen.std(1, ddof=1) / math.sqrt(look))
            wrong |= t > t_quantile(look - 1, 1 - p)
        errors[p] = wrong.mean()
    assert 0.050 < errors[LOOK_P] < 0.060 and errors[0.05] > 0.10
    assert corrected_p(LOOK_P) == pytest.approx(0.05) and corrected_p(0.5) == 1.0


def test_corrections_keep_what_their_definitions_say() -> None:
    """By the definitions, rank by rank; the order of the tests does not matter."""
    ps = [0.001, 0.011, 0.012, 0.045, 0.2]
    assert holm(ps) == [True, True, True, False, False]  # 0.05 / 5, / 4, / 3, / 2
    assert benjamini_hochberg(ps) == [True, True, True, False, False]  # 0.01, 0.02, 0.03, 0.04
    assert holm([0.02, 0.001, 0.04]) == [True, True, True] and holm([0.03, 0.001, 0.04]) == [False, True, False]
    assert benjamini_hochberg([0.03, 0.049, 0.04]) == [True] * 3  # the largest rank decides
    assert (holm([]), benjamini_hochberg([]), benjamini_hochberg([0.9])) == ([], [], [False])


@pytest.mark.parametrize(("mean", "deviation"), [(0.05, 0.03), (-0.06, 0.05), (0.0, 0.03), (0.01, 0.03), (0.02, 0.02)])
def test_the_seeds_that_decide_do_so_in_simulation(mean: float, deviation: float) -> None:
    """A mean above the smallest difference is shown, one below it absent, also where its interval excludes 0."""
    pilot = [mean - deviation, mean, mean + deviation]
    needed = seeds_to_decide(pilot, 0.03)
    assert needed is not None

    def share(n: int) -> float:
        values = np.random.default_rng(1).normal(mean, deviation, size=(4_000, n))
        half = t_quantile(n - 1, LOOK_LEVEL) * values.std(1, ddof=1) / math.sqrt(n)
        found = np.abs(values.mean(1))
        return float((((found > half) & (found >= 0.03)) | (found + half < 0.03)).mean())

    assert 0.74 < share(needed) < 0.9 and share(needed // 2 + 2) < share(needed)


def test_a_mean_near_the_smallest_difference_is_never_decided() -> None:
    assert seeds_to_decide([0.02, 0.03, 0.04], 0.03) is None
    assert seeds_in_words(None, 5) == "more than 100" and seeds_in_words(6, 20) == "more than 20"
    assert seeds_to_decide([0.1] * 3, 0.03) == LOOKS[0], "no look is earlier"
    wider = [seeds_to_decide([x - 0.03, x, x + 0.03], 0.03) for x in (0.0, 0.01, 0.02)]
    assert wider == sorted(wider) and wider[0] < wider[-1]


def test_what_is_kept_needs_seeds_by_its_distance_from_the_margin() -> None:
    near, far = (seeds_to_keep([x - 0.05, x, x + 0.05], 0.1) for x in (-0.05, 0.0))
    assert near is not None and far is not None and near > far >= LOOKS[0]


def test_absent_needs_room() -> None:
    small = [0.01, -0.01, 0.0]
    assert [has_little_room(small, 0.1, room) for room in (0.19, 0.2, math.inf)] == [True, False, False]
    assert not has_little_room([0.3, 0.31, 0.29], 0.1, 0.1)
    assert Estimate((*small,), least=0.1, limits=(-1.0, 0.19)).word == "undecided"
    assert Estimate((*small,), least=0.1, limits=(-1.0, 0.2)).word == "absent"
