"""The verifier `RewardModel`: a sequence classifier with one label scores the answer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

from groupwise.data import Finish, Outcome, Prompt, Sample, Verdict, Verifier, verdicts_have
from groupwise.data.verdicts import unverifiable
from groupwise.models.classifier.classifier_input_encoder import ClassifierInput, ClassifierInputEncoder
from groupwise.models.classifier.scoring_model import WHOLE_TEXTS, ClassifierTask, scores
from groupwise.models.model_json_files import read_json
from groupwise.verifiers.build_verifier import VerifierContext
from groupwise.verifiers.classifier_grader import TRUNCATED, ClassifierGrader, ClassifierSettings, ClassifierVerifier
from groupwise.verifiers.grade_function_arguments import conversation

__all__ = ["RewardModel"]


@verdicts_have(TRUNCATED)
@dataclass(frozen=True, slots=True)
class RewardModel(ClassifierSettings):
    """The score of a reward model, any `AutoModelForSequenceClassification` directory with one label. No outcome.

    `path` is a directory, or a name on the hub. The model reads texts, by its own tokenizer: the conversation in its
    chat template, or problem and answer if it has none, or with `template = "no"`. A text that is longer than its
    positions loses its beginning; the subscore `truncated` is then 1. The weights are safetensors, and no code of the
    directory runs. The device `auto` is `cuda` where torch has a CUDA device, else `cpu`. On a CPU answers are scored
    one at a time, so that no bit depends on the others. A GPU scores answers together that arrive together; a trial
    refuses a model whose scores then differ by more than `tolerance`, relative to scores above 1.
    """

    task: ClassVar[ClassifierTask] = WHOLE_TEXTS

    def build(self, grading: VerifierContext) -> Verifier:
        """The verifier. BadData for a directory that is no reward model.

        Its weights are read at the first answer; those of a model on the hub are then fetched.
        """
        path, device = self.directory(), self.torch_device()
        texts = ClassifierInputEncoder.read(path, self.config(path), self.template)
        return RewardModelVerifier(RewardModelGrader(self, path, texts, device), texts.max_positions)


@dataclass(frozen=True, slots=True)
class FutureRewardModel(RewardModel):
    """A reward model that an earlier phase has not trained yet: `path` is the model that the phase starts from.

    The checks before the first phase read problems with it, and score nothing.
    """

    def config(self, path: Path) -> Mapping[str, Any]:
        return read_json(path / "config.json")


class RewardModelGrader(ClassifierGrader[ClassifierInput, float]):
    """One score for each answer, as a whole."""

    def __init__(
        self, settings: ClassifierSettings, path: Path, texts: ClassifierInputEncoder, device: torch.device
    ) -> None:
        super().__init__(settings, path, device)
        self.texts = texts

    def encode(self, prompt: Prompt, sample: Sample) -> ClassifierInput:
        finished = sample.finish is not Finish.length
        return self.texts(prompt.text, conversation(prompt, sample), sample.text, finished=finished)

    def score(self, module: nn.Module, texts: Sequence[ClassifierInput]) -> list[float]:
        return scores(module, texts)

    def verdict(self, text: ClassifierInput, score: float) -> Verdict:
        if not isfinite(score):
            return unverifiable(f"the reward model's score is {score}")
        return Verdict(Outcome.scored, score=score, subscores={TRUNCATED: float(text.truncated)})


@verdicts_have(TRUNCATED)
class RewardModelVerifier(ClassifierVerifier):
    """The verifier of `RewardModel`."""
