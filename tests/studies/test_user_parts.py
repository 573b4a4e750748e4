"""The parts that studies load as a user's: an engine with rounded weights, and a mask that notes spreads."""

import asyncio
import itertools
import math
import statistics
from pathlib import Path

import pytest
import torch
from benchmarks.atlas import running
from studies.ratio_spreads import Spreads
from studies.rounded_engine import Rounded, rounded
from studies.study import Measured

from groupwise.api.run import Run
from groupwise.certificates.studies import StudyRun, StudyRunResult
from groupwise.config.recipe_toml import write
from groupwise.config.registry import UnloadedPart
from groupwise.core import Usage
from groupwise.data import pack, rollout_of
from groupwise.models import find_model, read_model, read_tokenizer
from studies import engine_logprobs, gspo_regimes, ratio_drift

HOME = Path(__file__).parents[2]
TINY = ("prompts = 2", "method.group_size = 4", "method.minibatches = 2", "iterations = 2", "evaluate.problems = 1")


def test_the_engine_rounds_a_copy_and_the_learner_keeps_its_weights() -> None:
    directory = find_model("calculator")
    model, other = (read_model(directory) for _ in range(2))
    engine = Rounded(bits=4).build(model, read_tokenizer(directory), seed=0, experts=None)
    weights = dict(model.state_dict())
    asyncio.run(engine.load(1, weights))
    assert all(torch.equal(x, other.state_dict()[name]) for name, x in weights.items())
    loaded = engine._decoder.state_dict()
    for name, x in weights.items():
        if x.ndim == 2:
            unit = x.abs().amax(1, keepdim=True) / 7
            assert (loaded[name] - x).abs().max() > 0 and ((loaded[name] - x).abs() <= unit / 2 * 1.001).all()
            assert max(len(row.unique()) for row in loaded[name]) <= 15
        else:
            assert torch.equal(loaded[name], x)
    assert torch.equal(rounded(torch.zeros(1, 3), 8), torch.zeros(1, 3))


def test_spreads_are_those_of_tokens_and_of_means_and_no_token_is_left_out() -> None:
    """An answer counts with its tokens, so its means never spread farther than the tokens."""
    changes = [[0.1, -0.3], [0.2], [0.0, 0.4, -0.1]]
    flat = [x for answer in changes for x in answer]
    batch = pack([rollout_of([0, 1, 1], lengths=[len(answer) for answer in changes])])
    old = torch.linspace(-3, -1, batch.tokens, dtype=torch.float64)
    assert Spreads()(batch).all() and len(Spreads()(batch)) == batch.tokens == 6

    def notes(values: list[float]) -> dict[str, float]:
        return Spreads().notes(batch.having(logp_old=old, logp=old + torch.tensor(values, dtype=torch.float64)))

    found = notes(flat)
    assert found["token"] == pytest.approx(statistics.pstdev(flat))
    assert found["variance"] == pytest.approx(statistics.pvariance(flat))
    means = [statistics.fmean(answer) for answer in changes for _ in answer]
    assert found["between"] == pytest.approx(statistics.pvariance(means)) and found["between"] < found["variance"]
    deals = [notes(list(order))["between"] for order in itertools.permutations(flat)]
    assert found["dealt"] == pytest.approx(statistics.fmean(deals))


def test_a_trial_loads_the_files_of_its_study_and_the_mask_changes_no_metric(tmp_path: Path) -> None:
    plain = StudyRun("gspo", "calculator", 0, TINY)
    trials = [StudyRun("gspo", "calculator", 0, (*TINY, setting)) for setting in (
        'method.mask = ["ratio_spreads:Spreads"]', 'engine = {kind = "rounded_engine:Rounded", max_logprob_diff = 9.0}',
    )]  # fmt: skip
    assert trials[1].recipe().engine == UnloadedPart("rounded_engine:Rounded", (("max_logprob_diff", 9.0),))
    assert 'kind = "rounded_engine:Rounded"' in write(trials[1].recipe())
    use = [HOME / path for path in (*ratio_drift.STUDY.use, *engine_logprobs.STUDY.use)]
    with pytest.raises(Usage, match="not loaded"):
        running.run_trial(trials[0], (), tmp_path / "none", HOME)
    metrics = ("outcome/correct", "ratio/max", ratio_drift.TOKENS, "sampling/sampling_logp_difference/mean")
    results = [running.run_trial(trial, metrics, tmp_path / str(i), HOME, use=use).metrics
               for i, trial in enumerate((plain, *trials))]  # fmt: skip
    without, watched, coarse = results
    assert set(watched[ratio_drift.TOKENS]) == {1, 2} and not without[ratio_drift.TOKENS]
    assert {**watched, ratio_drift.TOKENS: {}} == without
    gap = "sampling/sampling_logp_difference/mean"
    assert coarse[gap][1] > 1e-4 > without[gap][1]
    assert Run(next((tmp_path / "2" / "runs").iterdir())).done == 2


def test_the_arms_differ_from_those_of_the_other_studies_by_the_part_alone() -> None:
    for method, arm in ratio_drift.DENSE.items():
        base, own = gspo_regimes.ARMS[f"{method} base"].trial(0).recipe(), arm.trial(0).recipe()
        assert own.method.mask == (UnloadedPart("ratio_spreads:Spreads"),)
        assert write(own).replace('mask = [\n    "ratio_spreads:Spreads",\n]', "mask = []") == write(base)
    for arms in (arms for arms, _ in engine_logprobs.PARTS.values()):
        assert all(engine_logprobs.parts_of(key)[0] == arm.method for key, arm in arms.items())
    assert engine_logprobs.parts_of("gspo 8-bit engine") == ("gspo", "8-bit", "engine")


@pytest.mark.parametrize(
    ("share", "verdict"), [(0.8, "*mostly common*"), (0.1, "*mostly averaged*"), (0.5, "*absent*")]
)
def test_what_is_common_to_an_answer_is_a_share_of_the_variance_beyond_that_of_dealt_tokens(
    share: float, verdict: str
) -> None:
    """A share of 0 has the means of tokens that are dealt at random, a share of 1 those of answers that move as one."""

    def run(trial: StudyRun) -> StudyRunResult:
        tokens = {i: (1 + 0.01 * trial.seed) * (0.1 if i <= 5 else 0.4) for i in range(1, ratio_drift.LAST + 1)}
        dealt = {i: 0.2 * x for i, x in tokens.items()}
        between = {i: dealt[i] + (share + 0.01 * trial.seed) * (x - dealt[i]) for i, x in tokens.items()}
        metrics = {ratio_drift.VARIANCE: tokens, ratio_drift.MEANS: between, ratio_drift.DEALT: dealt}
        return StudyRunResult(
            trial=trial, metrics=metrics, tokens=(1,) * ratio_drift.LAST,
            cpu_seconds=1.0, commit="c", recipe_hash="r", code_hash="x",
        )  # fmt: skip

    arms = ratio_drift.DENSE
    m = Measured(arms, {arm.trial(seed): run(arm.trial(seed)) for arm in arms.values() for seed in (0, 1, 2)})
    assert ratio_drift.common(m, "gspo").values == pytest.approx((share, share + 0.01, share + 0.02))
    assert ratio_drift.relative(m, "gspo", ratio_drift.DEALT).mean == pytest.approx(math.sqrt(0.2))
    assert ratio_drift.growth(m, "grpo", ratio_drift.VARIANCE).values == pytest.approx([math.log(2)] * 3)
    assert ratio_drift.spreads(m).count(verdict) == len(arms)
