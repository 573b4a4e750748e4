"""Signal kept: the toy's gradient is exact, its clips are the library's, and the page has the stored numbers."""

import re

import numpy as np
import pytest
import torch
from studies.noisy_answers import GROUP, GROUPS, KINDS, WORDS, Answers, Noise, advantages, draw, scores
from studies.pages import read_exact
from studies.ratio_noise import BATCHES, NOISES, SEQUENCE, TOKEN, UNCLIPPED, measure, signal, updates
from studies.running import HOME

from groupwise.data import Batch, pack, rollout_of
from groupwise.methods import grpo
from groupwise.objective import Clip, Objective, sequence_mean, sequence_ratio, token_ratio
from groupwise.training.loop import compute_advantages
from studies import signal_kept

LENGTH = 24


def answers_of(noise: Noise, length: int = LENGTH, seed: int = 0) -> Answers:
    return draw(length, noise, np.random.default_rng(seed))


def packed(answers: Answers) -> Batch:
    """The answers as a batch of the library, with GRPO's advantages."""
    right = answers.right.all(1).reshape(GROUPS, GROUP)
    length = answers.log_ratio.shape[1]
    batch = pack([rollout_of([float(x) for x in group], lengths=[length] * GROUP) for group in right])
    return compute_advantages(batch, grpo(group_size=GROUP, kl=0.0))


@pytest.mark.parametrize("noise", [Noise("recorded", 0.2), Noise("engine", 0.5), Noise("churn", 0.1)])
def test_advantages_and_clipped_gradients_are_those_of_the_library(noise: Noise) -> None:
    answers = answers_of(noise)
    batch = packed(answers)
    assert batch.advantage is not None
    assert batch.sequences.mean(batch.advantage).numpy() == pytest.approx(advantages(answers.right))
    found, log_ratio = updates(answers), torch.tensor(answers.log_ratio, dtype=torch.float64).flatten()
    for ratio, bounds in ((token_ratio, TOKEN), (sequence_ratio, SEQUENCE)):
        for name, (low, high) in bounds.items():
            objective = Objective(surrogate=Clip(low, high, ratio), aggregate=sequence_mean)
            logp = log_ratio.clone().requires_grad_()
            step = objective.prepare(batch).having(logp=logp, logp_old=torch.zeros_like(log_ratio))
            objective(step).backward()
            assert logp.grad is not None
            weight = -logp.grad.numpy().reshape(len(answers.right), -1) * GROUPS * GROUP
            expected = scores(answers, weight).reshape(GROUPS, GROUP, -1).mean(1)
            assert found[name][0] == pytest.approx(expected, rel=1e-4, abs=1e-6), name


def test_scores_are_the_derivatives_of_the_log_probs() -> None:
    answers = answers_of(Noise("none"))
    critical = answers.right.shape[1]
    logit = torch.tensor(answers.chance, dtype=torch.float64).logit().requires_grad_()
    words = torch.zeros(KINDS, WORDS, dtype=torch.float64, requires_grad=True)
    weight = np.random.default_rng(1).random(answers.log_ratio.shape)
    right = torch.tensor(answers.right[0])
    of_critical = torch.where(right, logit, -logit).sigmoid().log()
    kind, word = np.arange(LENGTH - critical) % KINDS, answers.words[0]
    of_fillers = words.log_softmax(1)[kind, word]
    (torch.cat([of_critical, of_fillers]) * torch.tensor(weight[0])).sum().backward()
    assert logit.grad is not None and words.grad is not None
    gradient = [float(logit.grad), *words.grad.flatten().tolist()]
    assert scores(answers, weight)[0] == pytest.approx(gradient, abs=1e-5)


def test_an_update_without_noise_points_along_the_exact_gradient_and_half_of_it_keeps_half_of_the_signal() -> None:
    rng, whole, half = np.random.default_rng(2), [], []
    for seed in range(150):
        answers = answers_of(Noise("none"), seed=seed)
        assert not answers.log_ratio.any() and 0.3 < answers.right.all(1).mean() < 0.7
        whole.append(updates(answers)[UNCLIPPED][0])
        kept = (rng.random(len(answers.right)) < 0.5)[:, None] * scores(answers)
        half.append((advantages(answers.right)[:, None] * kept).reshape(GROUPS, GROUP, -1).mean(1) / LENGTH)
    update = np.concatenate(whole)
    mean, error = update.mean(0), update.std(0) / len(update) ** 0.5
    assert mean[0] > 20 * error[0] and (np.abs(mean[1:]) < 4 * error[1:]).all()
    assert signal(np.concatenate(half)) / signal(update) == pytest.approx(0.5, abs=0.06)
    assert signal(-update) == pytest.approx(-signal(update))


def test_the_engine_samples_what_the_log_ratios_say() -> None:
    """The mean of a token's ratio under the engine is 1, and the mean of its logarithm minus the KL divergence."""
    for noise in (Noise("engine", 0.5), Noise("churn", 0.1)):
        log_ratio = np.concatenate([answers_of(noise, 64, seed).log_ratio for seed in range(40)])
        assert np.exp(log_ratio).mean() == pytest.approx(1, abs=0.01)
        assert log_ratio.mean() < -0.01
    recorded = np.concatenate([answers_of(Noise("recorded", 0.5), 64, seed).log_ratio for seed in range(10)])
    assert recorded.std() == pytest.approx(0.5, abs=0.01) and recorded.mean() == pytest.approx(0, abs=0.01)


def test_the_page_and_its_table_have_the_stored_numbers() -> None:
    stored = read_exact(HOME)[signal_kept.NAME]
    assert [*map(int, stored)] == [*BATCHES]
    for path, text in signal_kept.written(stored).items():
        assert path.read_text("utf-8") == text, "python -m studies.signal_kept --page"
    svg = (HOME / signal_kept.PAGE).with_suffix(".svg").read_text("utf-8")
    assert f'aria-label="{signal_kept.ALT}"' in svg and "prefers-color-scheme:dark" in svg
    page = (HOME / signal_kept.PAGE).read_text("utf-8")
    before, _, prose = page.partition("## What this does and does not show")
    known = {float(x) for x in re.findall(r"\d+\.\d+", before)}
    assert prose and {float(x) for x in re.findall(r"(?<![\d.:/])\d+\.\d+(?![\d.])", prose)} <= known


def test_a_verdict_follows_from_the_difference_within_blocks() -> None:
    def stored(grpo: list[float], gspo: list[float]) -> signal_kept.Stored:
        return {"16": {"engine 0.5": {signal_kept.GRPO: {"kept": grpo}, signal_kept.GSPO: {"kept": gspo}}}}

    noisy = [0.1, 0.9, 0.5, 0.3, 0.7]
    assert signal_kept.verdict(stored(noisy, [x + 0.01 for x in noisy]), 16, "engine 0.5") == "*true*"
    assert signal_kept.verdict(stored([x + 0.01 for x in noisy], noisy), 16, "engine 0.5") == "*false*"
    assert signal_kept.verdict(stored(noisy, noisy[::-1]), 16, "engine 0.5") == "*undecided*"


def test_the_sentence_names_the_noises_and_lengths_at_which_the_claim_is_true(monkeypatch: pytest.MonkeyPatch) -> None:
    every, late, gap, *_ = (noise.name for noise in NOISES)
    true = {(every, 16), (every, 64), (every, 256), (late, 256), (late, 64), (gap, 16)}
    monkeypatch.setattr(signal_kept, "verdict", lambda _, n, noise: "*true*" if (noise, n) in true else "*false*")
    titles = [signal_kept.NAMES[noise] for noise in NOISES[:3]]
    assert signal_kept.where_true({"16": {}, "256": {}, "64": {}}) == (
        f"at every length under *{titles[0]}*, from 64 tokens on under *{titles[1]}*, at the lengths [16] under "
        f"*{titles[2]}*, and under none of the other {len(NOISES) - 3} noises"
    )


def test_the_stored_numbers_are_measured_again() -> None:
    again, stored = measure(16, NOISES[1:2]), read_exact(HOME)[signal_kept.NAME]["16"]
    for noise, ratios in again.items():
        for ratio, found in ratios.items():
            assert found["kept"] == pytest.approx(stored[noise][ratio]["kept"], rel=1e-3, abs=1e-3)
            assert found["clipped"] == pytest.approx(stored[noise][ratio]["clipped"], abs=1e-3)


def test_a_length_that_is_not_measured_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        signal_kept.main(["17"])
    assert "no length is 17: take 16, 64, 256, 1024, 4096" in capsys.readouterr().err
