"""Published problem sets by name: where the hub keeps them, how their rows read, and how they are usually judged."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from groupwise.data import Ids
from groupwise.tasks.fields import Fields, after_hashes, countdown, last_boxed, only
from groupwise.tasks.problems import Problems, problems_of
from groupwise.tasks.rows import HUB


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A published set. An empty `training` split makes an evaluation set, an empty `held_out` holds a tenth out.

    The first of `shapes` that fits the first row reads all rows: copies of one set differ in their columns.
    """

    hub: str
    shapes: tuple[Fields, ...]
    verifier: str
    template: str = "no"
    training: str = "train"
    held_out: str = ""

    def read(self, name: str, source: str, encode: Callable[[Any], Ids]) -> Problems:
        """Its problems from the hub, or from a file, a directory or a data set on disk."""
        source = source or HUB + self.hub
        one = Path(source).is_file() or "@" in source  # a file, or a split, has no splits
        if not self.training:
            held, facts = problems_of(source, encode, self.shapes, self.held_out, name)
            return Problems(tuple(held), (), (facts,)).entirely_held_out
        training = problems_of(source, encode, self.shapes, self.training, name)
        if one or not self.held_out:
            return Problems.split(*training)
        return Problems.apart(training, problems_of(source, encode, self.shapes, self.held_out, f"{name}-held-out"))


ANSWERED = (
    Fields("problem", "answer", only),
    Fields("question", "answer", only),
    Fields("Problem", "Answer", only),
    Fields("question", "final_answer", only),
    Fields("prompt", "reward_model.ground_truth", only),
    Fields("problem", "solution", last_boxed),
    Fields("question", "solution", last_boxed),
)
"""The columns in which sets of mathematics are published."""


def _evaluation(hub: str, split: str) -> Preset:
    return Preset(hub=hub, shapes=ANSWERED, verifier="math", template="qwen_math", training="", held_out=split)


PRESETS = {
    "gsm8k": Preset(
        hub="openai/gsm8k:main",
        shapes=(Fields("question", "answer", after_hashes),),
        verifier="last_number",
        held_out="test",
    ),
    "math": Preset(
        hub="DigitalLearningGmbH/MATH-lighteval",
        shapes=ANSWERED,
        verifier="math",
        template="qwen_math",
        held_out="test",
    ),
    "dapo-math-17k": Preset(
        hub="BytedTsinghua-SIA/DAPO-Math-17k",
        shapes=(Fields("prompt", "reward_model.ground_truth", only), Fields("prompt", "solution", only)),
        verifier="math",
        template="chat",
    ),
    "countdown": Preset(
        hub="Jiayi-Pan/Countdown-Tasks-3to4",
        shapes=(Fields("nums", "target", countdown), Fields("numbers", "target", countdown)),
        verifier="countdown",
        template="r1",
    ),
    "aime24": _evaluation("HuggingFaceH4/aime_2024", "train"),
    "aime25": _evaluation("math-ai/aime25", "test"),
    "amc": _evaluation("AI-MO/aimo-validation-amc", "train"),
    "math500": _evaluation("HuggingFaceH4/MATH-500", "test"),
    "minerva": _evaluation("math-ai/minervamath", "test"),
    "olympiadbench": _evaluation("Hothan/OlympiadBench:OE_TO_maths_en_COMP", "train"),
}
