"""`SequenceClassifier`: a decoder with one score in place of logits, which a run trains as a reward model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import linear

from groupwise.core import Usage
from groupwise.data import Batch, ClassifierScore, Entropy, Logp, NeededMeasure
from groupwise.models.decoder.decoder import Decoder, DecoderShape
from groupwise.models.decoder.prefix_packing import PrefixPacking
from groupwise.models.lora import has_adapter, merged_weights
from groupwise.models.token_sampling import logprob_dtype

__all__ = ["ClassifierShape", "SequenceClassifier"]

NEXT = (0,)
"""A token after each text, which is not forwarded: the layout has the hidden states before each token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassifierShape(DecoderShape):
    """The architecture of a decoder with a score. `pad_token` is the padding token, None without one."""

    kind_name: ClassVar[str] = "classifier"
    kind_label: ClassVar[str] = "reward model"
    generates: ClassVar[bool] = False

    pad_token: int | None = None

    @classmethod
    def of(cls, shape: DecoderShape, pad_token: int | None) -> "ClassifierShape":
        """The architecture of a classifier on the layers of a decoder; it has no output embeddings."""
        sizes: dict[str, Any] = {f.name: getattr(shape, f.name) for f in fields(DecoderShape)}
        return cls(**(sizes | {"tied_embeddings": True, "pad_token": pad_token}))


class SequenceClassifier(Decoder):
    """A decoder whose head is a score of the whole text. It is a `Policy` without a distribution of tokens.

    The score is read at the last token that differs from the padding token, as the sequence classifiers of transformers
    do. Where the padding token is the end token, that is the token before it. The constructor creates parameters on the
    meta device.
    """

    shape: ClassifierShape

    def __init__(self, shape: ClassifierShape) -> None:
        assert shape.tied_embeddings, "a classifier has no output embeddings"
        super().__init__(shape)
        with torch.device("meta"):
            self.score = nn.Linear(shape.hidden_size, 1, bias=False)

    @classmethod
    def on(cls, decoder: Decoder, pad_token: int | None) -> "SequenceClassifier":
        """The classifier on a language model's layers, which it shares. Its head is 0: all texts have the score 0."""
        classifier = cls(ClassifierShape.of(decoder.shape, pad_token))
        classifier.model, classifier.on_disk = decoder.model, decoder.on_disk
        embedding = decoder.model.embed_tokens.weight
        device = "cpu" if embedding.is_meta else embedding.device  # a rank 0 without weights has the head, too
        head = torch.zeros(1, embedding.shape[1], dtype=embedding.dtype, device=device)
        classifier.score.weight = nn.Parameter(head)
        if has_adapter(decoder):  # its matrices are in the shared layers
            classifier.peft_config = decoder.peft_config
        return classifier

    @property
    def trained_beside_adapter(self) -> tuple[nn.Module, ...]:
        """The layers that are trained whole if the others have an adapter: the head."""
        return (self.score,)

    @torch.no_grad()
    def without_adapter(self) -> "SequenceClassifier":
        """The plain classifier with the adapter added to its layers; this one stays. Itself without an adapter."""
        if not has_adapter(self):
            return self
        plain = SequenceClassifier(self.shape)
        plain.load_state_dict(merged_weights(self, self.state_dict()), assign=True)
        return plain

    def measure(
        self, batch: Batch, wanted: Sequence[NeededMeasure], side_models: Mapping[str, Any]
    ) -> dict[NeededMeasure, Float[Tensor, " n"]]:
        """The score of each sample at its last trained token. Log-probs and entropies are 0: no token has a law."""
        for measure in wanted:
            if measure not in (ClassifierScore(), Logp("policy"), Entropy()):
                fix = "use the method bradley_terry, or a component that needs ClassifierScore only"
                raise Usage(f"a reward model does not compute the measure {measure}", fix=fix)
        like = {"dtype": logprob_dtype(self.score.weight.dtype), "device": self.score.weight.device}
        # A leaf: the learner runs backward for each microbatch, also for one without a trained token.
        logp = torch.zeros(batch.tokens, requires_grad=torch.is_grad_enabled(), **like)
        numbers: dict[NeededMeasure, Tensor] = {Logp("policy"): logp, Entropy(): torch.zeros_like(logp)}
        if ClassifierScore() in wanted:
            numbers[ClassifierScore()] = self._column(batch, torch.zeros_like(logp, requires_grad=logp.requires_grad))
        return {measure: numbers[measure] for measure in wanted}

    def scores(self, texts: Sequence[Sequence[int]], contents: Sequence[str] = ()) -> Float[Tensor, " texts"]:
        """The score of each text, given as token ids. Texts with a common beginning share its forward pass."""
        device = self.score.weight.device
        first, others = [text[:1] for text in texts], [(*text[1:], *NEXT) for text in texts]
        layout = PrefixPacking.of(first, others, contents=contents or None, device=device)
        starts = torch.tensor([len(text) for text in texts]).cumsum(0)
        last = [start - len(text) + self._pooled(text) for start, text in zip(starts.tolist(), texts)]
        rows = layout.predicting_indices[torch.tensor(last, dtype=torch.long, device=device)]
        hidden = self(layout.tokens, layout).index_select(0, rows)
        dtype = logprob_dtype(hidden.dtype)
        return linear(hidden.to(dtype), self.score.weight.to(dtype))[:, 0]

    def _pooled(self, text: Sequence[int]) -> int:
        """The index of the last token that is not padding; 0 without one, as in transformers."""
        return next((i for i in reversed(range(len(text))) if text[i] != self.shape.pad_token), 0)

    def _column(self, batch: Batch, zeros: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        """The scores of the samples with a trained token, at the last one of each.

        Without any, the model still runs on no token: sharded ranks gather the layers together.
        """
        lengths = batch.sequences.lengths
        live = (lengths > 0).nonzero()[:, 0]
        samples = [batch.samples[i] for i in live.tolist()]
        texts = [(*sample.context, *sample.tokens) for sample in samples]
        scores = self.scores(texts, [sample.content_hash for sample in samples])
        return zeros.index_copy(0, lengths.cumsum(0)[live] - 1, scores)
