"""The loss: ratios, surrogates, weights, penalties, masks and aggregates, and the metrics of an optimizer step."""

from groupwise.core.lazy_imports import open_room

open_room(__name__)
