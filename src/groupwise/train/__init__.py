"""One run: the recipe, its text, the loop, where it computes, what it leaves, and the commands."""

from groupwise.train.recipe import Columns, Evaluate, Machine, Native, Recipe, Save

__all__ = ["Columns", "Evaluate", "Machine", "Native", "Recipe", "Save"]
