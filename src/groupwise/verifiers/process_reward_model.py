"""The verifier `ProcessRewardModel`: a token classifier scores each step of the answer."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from statistics import fmean
from typing import ClassVar, Literal

import torch
from torch import nn

from groupwise.data import Outcome, Prompt, Sample, Verdict, Verifier, verdicts_have
from groupwise.data.verdicts import unverifiable
from groupwise.models.classifier.classifier_input_encoder import ClassifierInputEncoder
from groupwise.models.classifier.scoring_model import STEPS, ClassifierTask, scores_at
from groupwise.models.classifier.step_encoder import StepEncoder, StepsInput
from groupwise.verifiers.build_verifier import VerifierContext
from groupwise.verifiers.classifier_grader import TRUNCATED, ClassifierGrader, ClassifierSettings, ClassifierVerifier
from groupwise.verifiers.grade_function_arguments import conversation

__all__ = ["ProcessRewardModel"]

REDUCTIONS: Mapping[str, Callable[[Sequence[float]], float]] = {
    "min": min,
    "mean": fmean,
    "last": lambda scores: scores[-1],
}


@verdicts_have(TRUNCATED)
@dataclass(frozen=True, slots=True)
class ProcessRewardModel(ClassifierSettings):
    """A score for each step of an answer, by any decoder of `AutoModelForTokenClassification`. No outcome.

    The steps are the texts between separators, such as the lines. The model reads step and separator in turn, and its
    number at a separator's last token is the score of the step before it: with two labels the probability of label 1,
    with one label its logit. `steps["step"]` has the scores, and the answer's score is their `reduction`, the least one
    by default: Let's Verify Step by Step, arXiv:2305.20050, and Math-Shepherd, arXiv:2312.08935. An answer without text
    is scored at the separator behind it. The other fields, and what is refused, are those of `RewardModel`.
    """

    task: ClassVar[ClassifierTask] = STEPS

    separator: str = "\n"
    reduction: Literal["min", "mean", "last"] = "min"

    def __post_init__(self) -> None:
        ClassifierSettings.__post_init__(self)
        if not self.separator:
            raise ValueError('separator is empty\nuse the text that ends a step, such as "\\n"')

    def build(self, grading: VerifierContext) -> Verifier:
        """The verifier. BadData for a directory that is no process reward model, or an unknown separator.

        Its weights are read at the first answer; those of a model on the hub are then fetched.
        """
        path, device = self.directory(), self.torch_device()
        texts = ClassifierInputEncoder.read(path, self.config(path), self.template)
        grader = ProcessRewardModelGrader(self, path, StepEncoder.of(path, texts, self.separator), device)
        return ProcessRewardModelVerifier(grader, texts.max_positions)


class ProcessRewardModelGrader(ClassifierGrader[StepsInput, list[float]]):
    """A score for each step of an answer."""

    def __init__(self, settings: ProcessRewardModel, path: Path, steps: StepEncoder, device: torch.device) -> None:
        super().__init__(settings, path, device)
        self.steps, self.reduction = steps, REDUCTIONS[settings.reduction]

    def encode(self, prompt: Prompt, sample: Sample) -> StepsInput:
        return self.steps(prompt.text, conversation(prompt, sample), sample.text)

    def score(self, module: nn.Module, texts: Sequence[StepsInput]) -> list[list[float]]:
        indices = [[step.token_index for step in text.steps] for text in texts]
        return scores_at(module, [text.text for text in texts], indices)

    def verdict(self, text: StepsInput, score: list[float]) -> Verdict:
        if odd := [number for number in score if not isfinite(number)]:
            return unverifiable(f"the process reward model's score of a step is {odd[0]}")
        steps = [(step.end, number) for step, number in zip(text.steps, score, strict=True) if step.end]
        return Verdict(
            Outcome.scored, score=self.reduction(score), subscores={TRUNCATED: float(text.text.truncated)},
            step_scores={"step": steps} if steps else {},
        )  # fmt: skip


@verdicts_have(TRUNCATED)
class ProcessRewardModelVerifier(ClassifierVerifier):
    """The verifier of `ProcessRewardModel`."""
