"""Measures of a user: one number per token from a model's whole distribution."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from groupwise.__main__ import main
from groupwise.data import label_of, pack
from groupwise.learner.forward import of_distributions
from groupwise.runs.json_lines import read_lines
from tests.learner.small import ragged
from tests.learner.test_divergence import PIECES, dense_distributions, learner, model

USER_FILE = '''
from dataclasses import dataclass
import torch

@dataclass(frozen=True)
class TopProbability:
    model: str = "policy"
    def __call__(self, logp, token):
        return logp.max(-1).values.exp()

@dataclass(frozen=True)
class Unsure:
    """Trains tokens whose likeliest alternative is below a probability."""
    below: float = 1.0
    @property
    def needs(self):
        return frozenset({TopProbability()})
    def __call__(self, batch):
        return batch[TopProbability()] <= self.below

@dataclass(frozen=True)
class Shrink:
    """A term that grows with the hidden states."""
    coefficient: float = 0.01
    def __call__(self, step):
        return lambda forwarded: forwarded.token_states.hidden.square().sum() / 1e4
'''


@dataclass(frozen=True)
class Quartile:
    """The log-prob of the token, and a quarter of the largest one: depends on both arguments."""

    model: str = "policy"
    view: str = ""

    def __call__(self, logp: Tensor, token: Tensor) -> Tensor:
        return logp.gather(-1, token[:, None])[:, 0] + logp.max(-1).values / 4


@pytest.mark.parametrize("name", ["policy", "teacher"])
@pytest.mark.parametrize("logits", [17 * 3, 1 << 22])
def test_equals_dense_code_in_any_chunks(name: str, logits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "groupwise.learner.compute_measures.of_distributions", partial(of_distributions, logits_at_once=logits)
    )
    measure = Quartile(name)
    batch = learner().compute_measures(pack(ragged()), (PIECES,), frozenset({measure}))
    p = dense_distributions(model() if name == "policy" else model(seed=3), batch).detach()
    expected = measure(p, torch.tensor([token for s in batch.samples for token in s.tokens]))
    torch.testing.assert_close(batch[measure], expected, rtol=1e-10, atol=1e-13)


def test_the_label_of_a_users_measure_names_its_fields() -> None:
    assert label_of(Quartile()) == "quartile" and label_of(Quartile("teacher")) == "quartile/teacher"


def test_a_measure_and_an_auxiliary_loss_of_a_users_file_train(home: Path) -> None:
    Path("mine.py").write_text(USER_FILE)
    small = ["--iterations", "1", "--prompts", "2", "--evaluate.problems", "4", "--method.group_size", "4"]
    small += ["--method.minibatches", "2"]
    parts = ["--method.mask", '["mine:Unsure"]', "--method.auxiliary", '["mine:Shrink"]']
    assert main(["train", *small, *parts, "--use", "mine.py", "--name", "mine"]) == 0
    (metrics,) = Path("runs").glob("mine-*/metrics.jsonl")
    assert read_lines(metrics)[-1]["auxiliary/Shrink"] > 0
