"""Vision-language models of transformers as a `Backbone`: features of pictures replace the embeddings of placeholders.

A layout of packed tokens names the contexts that have pictures (`content_spans`). The first placeholders of such a
context, one for each feature, get the features as their embeddings; all other tokens are text, also a placeholder that
the policy sampled.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from groupwise.core import BadData
from groupwise.data import AttentionLayout, ContentSpan, Ids
from groupwise.models.decoder.decoder import ModelSizes
from groupwise.models.decoder.transformers_model import TransformersBackbone
from groupwise.models.vision.picture_store import PictureStore, TensorCache

__all__ = ["VisionModel", "VisionSizes", "position_shift"]

CACHED_PIXELS, CACHED_FEATURES = 1 << 28, 1 << 28
"""The most bytes of preprocessed pixels, and of features, that a model keeps."""
VISION_ATTENTION = "sdpa"
"""The attention of the vision tower, among the patches of one frame."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionSizes(ModelSizes):
    """The sizes of a vision-language model's decoder, and the placeholder token of a feature of a picture.

    `heads` and `tower_heads` are the numbers of attention heads of the decoder's layers and of the vision tower's.
    """

    kind_name: ClassVar[str] = "vision"
    kind_label: ClassVar[str] = "vision-language model"

    placeholder: int
    heads: int
    tower_heads: int


class VisionModel(TransformersBackbone):
    """Adapts Idefics3 and SmolVLM of transformers to `Backbone`. `pictures` holds the pictures of prompts by hash.

    The pictures of a prompt pass through the vision tower by themselves, so features do not depend on other prompts.
    Those of a frozen tower are computed once in a run. An engine computes those of a tower that is trained once for
    each version of the weights: in inference mode they are cached until `drop_features`.
    """

    def __init__(self, causal: nn.Module, shape: VisionSizes, processor: Any) -> None:
        super().__init__(causal, shape)
        self.processor, self.placeholder = processor, shape.placeholder
        self.pictures = PictureStore()
        self._pixels, self._features = TensorCache(CACHED_PIXELS), TensorCache(CACHED_FEATURES)

    @property
    def tower(self) -> tuple[nn.Module, ...]:
        """The vision tower, and its connector to the decoder."""
        model: Any = self.causal.get_submodule("model")
        return model.vision_model, model.connector

    def freeze_tower(self) -> None:
        """Train the decoder only: the vision tower and its connector keep their weights."""
        for module in self.tower:
            module.requires_grad_(False)

    def set_attention(self, name: str) -> None:
        attentions = {"": name, "text_config": name, "vision_config": VISION_ATTENTION}
        self.causal.set_attn_implementation(attentions)  # pyright: ignore[reportCallIssue]

    def inputs(self, tokens: Int[Tensor, " n"], layout: AttentionLayout) -> dict[str, Tensor]:
        """The packed tokens as ids; as embeddings if some contexts have pictures."""
        spans: Sequence[ContentSpan] = getattr(layout, "content_spans", ())
        if not spans:
            return super().inputs(tokens, layout)
        features = [self.features(span.content_hash) for span in spans]
        places = [
            span.start + place
            for span, rows in zip(spans, features)
            for place in placeholders(span.context, self.placeholder, len(rows))
        ]
        embedded = self.causal.get_input_embeddings()(tokens)  # pyright: ignore[reportCallIssue]
        index = torch.tensor(places, device=tokens.device)
        return {"inputs_embeds": embedded.index_copy(0, index, torch.cat(features).to(embedded.dtype))[None]}

    @property
    def trains_tower(self) -> bool:
        """Whether a weight of the vision tower or of its connector is trained."""
        return any(weight.requires_grad for module in self.tower for weight in module.parameters())

    def drop_features(self) -> None:
        """Forget the features of a tower that is trained. An engine calls it when it loads weights."""
        if self.trains_tower:
            self._features.clear()

    def features(self, content_hash: str) -> Float[Tensor, "features width"]:
        """The features of a prompt's pictures, in the order of their placeholders. BadData for unknown pictures."""
        if self.trains_tower and not torch.is_inference_mode_enabled():
            return self._computed(content_hash)

        def compute() -> Tensor:
            with torch.inference_mode(False), torch.no_grad():  # autograd refuses tensors of inference mode
                return self._computed(content_hash)

        return self._features.get(content_hash, compute)

    def position_shift(self, content_hash: str) -> int:
        """The rotary position of a token after pictures, minus its index in the sequence."""
        return 0

    def _computed(self, content_hash: str) -> Float[Tensor, "features width"]:
        tower, connector = self.tower
        weight = next(tower.parameters())
        pictures = self.pictures[content_hash]
        pixels = [self._pixels.get(p.sha256, lambda p=p: self.processor.frames(p)) for p in pictures]
        frames = torch.cat(pixels).to(weight.device, weight.dtype)
        config: Any = self.causal.config
        patches = frames.shape[-1] // int(config.vision_config.patch_size)
        mask = torch.ones(len(frames), patches, patches, dtype=torch.bool, device=frames.device)
        hidden = tower(pixel_values=frames, patch_attention_mask=mask).last_hidden_state
        return connector(hidden).flatten(0, 1)


def position_shift(model: nn.Module, content_hash: str) -> int:
    """The rotary position of a token after a prompt's pictures, minus its index in the sequence; 0 without pictures."""
    return model.position_shift(content_hash) if content_hash and isinstance(model, VisionModel) else 0


def placeholders(context: Ids, placeholder: int, features: int) -> list[int]:
    """The indices of a context's first `features` placeholders. BadData if there are fewer.

    >>> placeholders((5, 9, 9, 6, 9), 9, 2)
    [1, 2]
    """
    found = [i for i, token in enumerate(context) if token == placeholder][:features]
    if len(found) < features:
        what = f"a prompt has {len(found)} placeholders for {features} features of its pictures"
        fix = "write prompts with the sampler's `prompt`, which places the pictures"
        raise BadData(what, fix=fix)
    return found
