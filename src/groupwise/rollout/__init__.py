"""Draws to families: curricula, strategies, the sampler that strategies meet, the engine, and the buffer."""

from groupwise.rollout.buffer import Buffer, Harvest, answers
from groupwise.rollout.curriculum import Shuffled
from groupwise.rollout.engine import NativeEngine
from groupwise.rollout.sampler import DrawSampler
from groupwise.rollout.strategy import Independent, Turns

__all__ = ["Buffer", "DrawSampler", "Harvest", "Independent", "NativeEngine", "Shuffled", "Turns", "answers"]
