"""Runs, methods and generation on the pretended GPU: no operation mixes devices, and the numbers equal the CPU's,
although engine and learner have no fused kernels there."""

import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from groupwise.config.recipe import Machine, Recipe
from groupwise.data import Batch, ClassifierScore, Sampling, Subscore, pack
from groupwise.learner import AdamW, Learner, forward
from groupwise.methods import published
from groupwise.models import Lora
from groupwise.runs.checkpoints import newest_checkpoint
from groupwise.runs.run_layout import RunLayout
from groupwise.training.loop import learn
from tests.faults.small_runs import EVERY, left, lines, ran
from tests.learner.small import SHAPE, model, rollouts
from tests.pretended_gpu import pretended_gpu
from tests.rollout.fakes import decoder, engine, generate, prompt_of, request

LENGTHS = [[1 + 7 * (i + 5 * group) % 13 for i in range(4)] for group in range(2)]
near = partial(pytest.approx, rel=1e-7, abs=1e-9)
SHORT = replace(EVERY, iterations=2, sampling=Sampling(max_tokens=6))
EXACT = replace(SHORT, machine=Machine(dtype="float64"))
ADAPTER = replace(EXACT, lora=Lora(rank=2, target_modules=("q_proj", "down_proj")))
FOUR_BITS = replace(ADAPTER, machine=Machine(dtype="float64", quantization="nf4"))


@pytest.mark.usefixtures("bitsandbytes")
@pytest.mark.parametrize(
    "recipe",
    [
        pytest.param(EXACT, id="reference"),
        pytest.param(ADAPTER, id="adapter", marks=pytest.mark.slow),  # the next one has an adapter, too
        pytest.param(FOUR_BITS, id="adapter on 4 bits"),
    ],
)
def test_a_run_on_a_gpu_has_the_same_metrics(recipe, tmp_path: Path) -> None:
    here = lines(ran(tmp_path / "here", recipe))
    with pretended_gpu():
        there = lines(ran(tmp_path / "there", recipe))
    assert there == [near(line) for line in here]
    assert here[-1]["entropy"] > 0.05


def test_a_resumed_run_on_a_gpu_equals_one_without_a_stop(tmp_path: Path) -> None:
    with pretended_gpu():
        whole = ran(tmp_path / "whole", SHORT)
        again = Path(shutil.copytree(whole, tmp_path / "again"))
        shutil.rmtree(again / "model")
        shutil.rmtree(again / "checkpoints" / "000002")
        checkpoint = newest_checkpoint(RunLayout(again), strict=True)
        assert checkpoint and checkpoint.state["done"] == 1 and len(lines(whole)) == 3
        assert left(ran(again, SHORT)) == left(whole)


WORDS = [method for method in published if method().denoise is None and ClassifierScore() not in method().needs]
METHODS = [method if i % 5 == 0 else pytest.param(method, marks=pytest.mark.slow) for i, method in enumerate(WORDS)]
"""Methods of policies that write: every fifth in the suite, the others in `make test-slow`."""


@pytest.mark.parametrize("method", METHODS)
def test_every_method_takes_the_same_steps_on_a_gpu(method) -> None:
    recipe = Recipe(method=replace(method(), minibatches=2, epochs=1), prompts=2)

    def learnt(device: torch.device) -> tuple[Batch, list[float], list[float]]:
        it = Learner(
            model(shape=replace(SHAPE, layers=1)).to(device), optimizer=AdamW(lr=1e-2), steps=4, temperature=0.7,
            side_models=recipe.method.models, states=recipe.method.states,
        )  # fmt: skip
        parts = [m.name for m in recipe.method.needs if isinstance(m, Subscore)]
        batch, taken = learn(recipe, recipe.method, it, pack(rollouts(LENGTHS, limit=8192, subscores=parts)), 0)
        return batch, [t.grad_norm for t in taken], torch.cat([p.flatten() for p in it.weights().values()]).tolist()

    batch, norms, weights = learnt(torch.device("cpu"))
    with pretended_gpu() as device:
        far, far_norms, far_weights = learnt(device)
        assert far.advantage is not None and batch.advantage is not None
        assert far.advantage.tolist() == near(batch.advantage.tolist())
        assert far_norms == near(norms)
        assert far_weights == near(weights)


def test_log_probs_with_windows_are_the_same_on_a_gpu() -> None:
    batch = pack(rollouts(LENGTHS))
    here, _ = forward(decoder(attention_windows=(5, None)), batch, temperature=1.0)
    with pretended_gpu() as device:
        there, _ = forward(decoder(attention_windows=(5, None)).to(device), batch.to(device), temperature=1.0)
        assert there.tolist() == near(here.tolist())


@pytest.mark.parametrize(("windows", "head_dim"), [((), 64), ((5, None), 8)])
def test_generation_with_shared_prefixes_is_the_same_on_a_gpu(windows, head_dim) -> None:
    asks = [
        request(i // 3, context=prompt_of(i // 3, 1 + 60 * (i // 3)), stream=(i,), limit=5 + 4 * i) for i in range(9)
    ]
    here = generate(engine(decoder(attention_windows=windows, head_dim=head_dim), max_num_seqs=7), asks)
    with pretended_gpu() as device:
        there = generate(engine(decoder(attention_windows=windows, head_dim=head_dim).to(device), max_num_seqs=7), asks)
    assert [span.tokens for span in there] == [span.tokens for span in here]
    assert [span.logp for span in there] == [near(span.logp) for span in here]
