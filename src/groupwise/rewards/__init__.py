"""Shaping (verdicts to rewards), and filters that select the samples to train on."""

from groupwise.core.lazy_imports import open_room

open_room(__name__)
