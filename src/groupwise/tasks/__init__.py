"""Tasks: where problems come from. Packaged and published sets, a user's data rows, mixtures."""

from groupwise.core.lazy_imports import open_room

open_room(__name__)
