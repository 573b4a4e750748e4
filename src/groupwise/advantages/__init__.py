"""Advantage estimators (one number per sample), and credit assignment (one number per token)."""

from groupwise.core.lazy_imports import open_room

open_room(__name__)
