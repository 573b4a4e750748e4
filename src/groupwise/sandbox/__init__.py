"""The sandbox that runs model-written code, and pools of worker processes."""

from groupwise.core.lazy_imports import open_room

open_room(__name__)
