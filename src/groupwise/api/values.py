"""The values that arguments of the library take, under one roof."""

from groupwise.config.recipe import Columns, Evaluate, Machine, Recipe, Save
from groupwise.data import Outcome, Sampling, Verdict
from groupwise.learner import AdamW
from groupwise.models import Lora

__all__ = ["AdamW", "Columns", "Evaluate", "Lora", "Machine", "Outcome", "Recipe", "Sampling", "Save", "Verdict"]
