"""Reward models that are trained here: their scores are those of transformers, packed or apart, written or read."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from groupwise.core import BadData, Usage
from groupwise.data import ClassifierScore, Draw, Entropy, Logp, Prompt, Rollout, Sample, pack
from groupwise.data.sample import TEMPLATE, WRITTEN
from groupwise.data.verdicts import Outcome, Verdict
from groupwise.models import (
    ClassifierShape,
    Decoder,
    DecoderShape,
    SequenceClassifier,
    padding_token,
    read_model,
    read_shape,
    write_model,
)
from tests.models.directories import characters, directory, shape
from tests.models.test_transformers import exact as exact

FAMILIES = ("qwen2", "qwen3", "llama", "mistral")
PAD = 3
TEXTS = [(5, 6), (5, 6, 7), (5, 6, 7, 8, 9), (5, 6, PAD, PAD), (PAD,), (5, 6, 7, 8, PAD, 4, PAD), (9,) * 40]


def classifier(family: str = "qwen3", pad: int | None = PAD, dtype: torch.dtype = torch.float64) -> SequenceClassifier:
    """A classifier with random weights, its head included."""
    model = SequenceClassifier.on(Decoder.new(shape(family), 1, spread=0.2, dtype=dtype), pad)
    with torch.no_grad():
        model.score.weight.copy_(torch.linspace(-1, 1, 32)[None])
    return model


def theirs(path: Path, texts: list[tuple[int, ...]], dtype: torch.dtype) -> list[float]:
    """The scores by transformers, a text at a time; no tensor is missing or superfluous."""
    import transformers

    model, notes = transformers.AutoModelForSequenceClassification.from_pretrained(
        path, dtype=dtype, local_files_only=True, output_loading_info=True
    )
    assert not any(notes.get(k) for k in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    with torch.no_grad():
        return [float(model.eval()(torch.tensor([text])).logits[0, 0]) for text in texts]


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_equal_those_of_transformers(family: str, tmp_path: Path, exact: None) -> None:
    """To 1e-12, with norms and positions in float64; transformers itself computes them in float32."""
    model = classifier(family, dtype=torch.float32)
    write_model(model, tmp_path, tokenizer=characters())
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["pad_token_id"] == PAD and config["architectures"][0].endswith("ForSequenceClassification")
    ours = model.double().scores(TEXTS)
    assert len(set(ours.tolist())) == len(TEXTS) - 1, "padding behind a text changes no score"
    assert ours.tolist() == pytest.approx(theirs(tmp_path, TEXTS, torch.float64), abs=1e-12)


@given(st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=9), min_size=1, max_size=6))
def test_texts_that_share_a_beginning_have_the_scores_of_each_alone(texts: list[list[int]]) -> None:
    model = classifier()
    together = model.scores([tuple(text) for text in texts])
    alone = torch.cat([model.scores([tuple(text)]) for text in texts])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-12)


def test_a_written_model_reads_back_with_its_scores(tmp_path: Path) -> None:
    model = classifier(dtype=torch.float32)
    write_model(model, tmp_path, tokenizer=characters())
    again = read_model(tmp_path)
    assert isinstance(again, SequenceClassifier) and again.shape == model.shape == read_shape(tmp_path)
    assert torch.equal(again.scores(TEXTS), model.scores(TEXTS))
    write_model(again, tmp_path / "copy", tokenizer=characters(), source=tmp_path)
    assert (tmp_path / "copy" / "config.json").read_bytes() == (tmp_path / "config.json").read_bytes()


def test_the_head_starts_at_zero_on_the_layers_of_a_language_model(tmp_path: Path) -> None:
    model = read_model(directory(tmp_path))
    assert isinstance(model, Decoder)
    head = SequenceClassifier.on(model, padding_token(tmp_path))
    assert head.model is model.model and not head.score.weight.any() and head.shape.pad_token == 0
    assert not head.scores(TEXTS).any() and head.scores(TEXTS).requires_grad


def sample(context: tuple[int, ...], answer: tuple[int, ...], after: tuple[int, ...] = ()) -> Sample:
    written = Sample(context=context, stream=(0,)).insert(answer, WRITTEN).insert(after, TEMPLATE)
    return written.with_verdict(Verdict(Outcome.correct))


def test_the_measure_is_the_score_at_the_last_trained_token() -> None:
    """Of the whole text, with the template's tokens after the answer. A microbatch without tokens has a gradient."""
    model = classifier()
    samples = [sample((5, 6), (7, 8), (9,)), sample((5, 6), (7,)), sample((4,), (8, 8, 8))]
    batch = pack([Rollout(Draw(i, Prompt(str(i), s.context), 1), (s,)) for i, s in enumerate(samples)])
    wanted = [Logp("policy"), Entropy(), ClassifierScore()]
    numbers = model.measure(batch, wanted, {})
    expected = model.scores([(5, 6, 7, 8, 9), (5, 6, 7), (4, 8, 8, 8)])
    column = numbers[ClassifierScore()]
    assert batch.tokens == 6
    placed = torch.zeros(6, dtype=torch.float64).index_copy(0, torch.tensor([1, 2, 5]), expected)
    torch.testing.assert_close(column, placed, rtol=0, atol=1e-12)
    assert not numbers[Logp("policy")].any() and not numbers[Entropy()].any()
    empty = model.measure(batch.take([]), wanted, {})
    torch.autograd.backward([empty[Logp("policy")], empty[ClassifierScore()]], [torch.zeros(0), torch.zeros(0)])
    with pytest.raises(Usage, match="a reward model does not compute the measure"):
        model.measure(batch, [Logp("reference")], {})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"id2label": {"0": "a", "1": "b"}}, "a reward model has one label"),
        ({"model_type": "bert"}, "model_type 'bert'"),
        ({"architectures": ["Qwen3ForSequenceClassification", "x"]}, "architectures"),
        ({"pad_token_id": "x"}, "pad_token_id"),
        ({"num_hidden_layers": 3}, "missing, unknown or of another shape"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_other_classifiers_are_refused(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    write_model(classifier(dtype=torch.float32), tmp_path, tokenizer=characters())
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    with pytest.raises(BadData) as caught:
        read_model(tmp_path)
    assert words in str(caught.value)


def test_the_shape_is_that_of_the_decoder_with_a_padding_token() -> None:
    model = classifier()
    assert isinstance(model.shape, ClassifierShape) and isinstance(model.shape, DecoderShape)
    assert not model.shape.generates and model.lm_head is None
