"""Engines in other processes: the wire, a remote engine, a fleet of them, and their probe."""

from groupwise.core.lazy_imports import open_room

open_room(__name__)
