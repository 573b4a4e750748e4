"""Published methods, one per file: a function that returns a `Method`, and its `REFERENCE`."""

from groupwise.core.lazy_imports import open_room

open_room(__name__)
