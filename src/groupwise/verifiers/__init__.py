"""Verifiers grade answers: by text, numbers, formats, mathematics, code, user functions, or a judge model."""

from groupwise.core.lazy_imports import open_room

open_room(__name__)
