"""Sampling strategies in two rounds: drafts, explanations of a known answer, and corrections by feedback."""

from groupwise.rollout.prompt_template import ModelDependentDefault

__all__ = []

CORRECTED = ModelDependentDefault(
    "{problem}{draft};{feedback}{problem}",
    "{problem}\n\nThis is an earlier attempt:\n\n{draft}\n\nFeedback on the attempt:\n\n{feedback}\n\n"
    "Write a corrected and complete answer to the problem.",
)
"""The prompts with a draft, a gold answer, and a failed attempt with its feedback. In the packaged form the problem is
repeated, so that the answer is whole without the rest of the prompt."""
