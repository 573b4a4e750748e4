"""The pictures of prompts by content hash, and a bounded cache of tensors computed from them."""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

from torch import Tensor

from groupwise.core import BadData, Usage
from groupwise.data import Picture

__all__ = ["keep_pictures"]


class PictureStore:
    """The pictures of the prompts that a model met, by `content_hash`. Copies of the model share the store."""

    def __init__(self) -> None:
        self._pictures: dict[str, tuple[Picture, ...]] = {}

    def add(self, content_hash: str, pictures: Sequence[Picture]) -> None:
        """Store the pictures of a prompt."""
        self._pictures.setdefault(content_hash, tuple(pictures))

    def __getitem__(self, content_hash: str) -> tuple[Picture, ...]:
        if (pictures := self._pictures.get(content_hash)) is None:
            what = "the pictures of a prompt are not in this process"
            fix = "answer the prompt again: only tokens and the hash of its pictures were stored"
            raise BadData(what, evidence=f"content hash {content_hash[:80]}", fix=fix)
        return pictures

    def __contains__(self, content_hash: str) -> bool:
        return content_hash in self._pictures

    def __deepcopy__(self, memo: Any) -> "PictureStore":
        return self


class TensorCache:
    """Tensors by key, at most `most_bytes` of them. Evicts the least recently used first."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes, self._bytes = most_bytes, 0
        self._tensors: OrderedDict[Hashable, Tensor] = OrderedDict()

    def get(self, key: Hashable, compute: Callable[[], Tensor]) -> Tensor:
        """The tensor of a key, computed if it is not cached."""
        if key in self._tensors:
            self._tensors.move_to_end(key)
            return self._tensors[key]
        tensor = self._tensors[key] = compute()
        self._bytes += tensor.nbytes
        while self._bytes > self._most_bytes and len(self._tensors) > 1:
            self._bytes -= self._tensors.popitem(last=False)[1].nbytes
        return tensor

    def clear(self) -> None:
        self._tensors.clear()
        self._bytes = 0

    def __deepcopy__(self, memo: Any) -> "TensorCache":
        return TensorCache(self._most_bytes)


def keep_pictures(model: Any, content_hash: str, pictures: Sequence[Picture]) -> None:
    """Store the pictures of a prompt with a model that will read its tokens; nothing without pictures.

    `Usage` for a model that takes none.
    """
    if not pictures:
        return
    if not isinstance(store := getattr(model, "pictures", None), PictureStore):
        fix = "take a vision-language model, or prompts without pictures"
        raise Usage(f"the prompt has pictures, and {type(model).__name__} takes none", fix=fix)
    store.add(content_hash, pictures)


def kept_pictures(model: Any, content_hashes: Iterable[str]) -> list[tuple[str, tuple[Picture, ...]]]:
    """Those of the content hashes whose pictures are stored with a model, and the pictures."""
    store = getattr(model, "pictures", None)
    if not isinstance(store, PictureStore):
        return []
    return [(content_hash, store[content_hash]) for content_hash in content_hashes if content_hash in store]
