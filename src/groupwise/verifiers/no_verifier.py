"""The verifier of a recipe that needs none: nothing is generated in training, and nothing is graded in evaluations."""

from groupwise.core import Usage
from groupwise.data import Prompt, Sample, Verdict, Verifier


class NoVerifier(Verifier):
    """The verifier of a method of stored answers in a recipe that names no verifier. A call of it is a `Usage`."""

    __slots__ = ()

    async def __call__(self, prompt: Prompt, sample: Sample) -> Verdict:
        what = "answers cannot be graded: the recipe has no verifier, and its method needs none"
        raise Usage(what, fix="add --reward last_number, --reward math, or --reward my_file.py:grade")
