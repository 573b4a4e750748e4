"""The verifier `RewardModel`: a sequence classifier with one label scores the answer."""

import asyncio
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from groupwise.core import BadData, MissingRequirement, check_types
from groupwise.data import Finish, Outcome, Prompt, Sample, Verdict, Verifier, VerifierSettings, verdicts_have
from groupwise.data.verdicts import unverifiable
from groupwise.models import find_model, of_hub
from groupwise.models.classifier.classifier_input_encoder import ClassifierInput, ClassifierInputEncoder
from groupwise.models.classifier.scoring_model import pad_token, read_classifier, read_classifier_config, scores
from groupwise.models.model_json_files import read_json
from groupwise.verifiers.build_verifier import VerifierContext
from groupwise.verifiers.bulk_verifier import BulkVerifier, check_tolerance, refuse_different
from groupwise.verifiers.function_verifier import made_up_texts
from groupwise.verifiers.grade_function_arguments import Item, conversation

__all__ = ["RewardModel"]

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
DEVICE = re.compile(r"auto|cpu|cuda(:\d{1,3})?")
AT_ONCE = 32
"""The most answers of one forward pass on a GPU."""
TRIED = 8
"""The problems that are encoded before the run."""
TRUNCATED = "truncated"
"""The subscore that is 1 for a text whose beginning the model did not read, else 0."""


@verdicts_have(TRUNCATED)
@dataclass(frozen=True, slots=True)
class RewardModel(VerifierSettings):
    """The score of a reward model, any `AutoModelForSequenceClassification` directory with one label. No outcome.

    `path` is a directory, or a name on the hub. The model reads texts, by its own tokenizer: the conversation in its
    chat template, or problem and answer if it has none, or with `template = "no"`. A text that is longer than its
    positions loses its beginning; the subscore `truncated` is then 1. The weights are safetensors, and no code of the
    directory runs. The device `auto` is `cuda` where torch has a CUDA device, else `cpu`. On a CPU answers are scored
    one at a time, so that no bit depends on the others. A GPU scores answers together that arrive together; a trial
    refuses a model whose scores then differ by more than `tolerance`, relative to scores above 1.
    """

    path: str
    device: str = "auto"
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    template: Literal["auto", "chat", "no"] = "auto"
    tolerance: float = 1e-3

    def __post_init__(self) -> None:
        check_types(self)
        check_tolerance(self.tolerance)
        if not DEVICE.fullmatch(self.device):
            raise ValueError(f"device is {self.device!r}\nuse auto, cpu, cuda or cuda:1")

    def build(self, grading: VerifierContext) -> Verifier:
        """The verifier. BadData for a directory that is no reward model.

        Its weights are read at the first answer; those of a model on the hub are then fetched.
        """
        path, device = find_model(self.path, weights=not of_hub(self.path)), self.torch_device()
        texts = ClassifierInputEncoder.read(path, self.config(path), self.template)
        return RewardModelVerifier(RewardModelGrader(self, path, texts, device))

    def config(self, path: Path) -> Mapping[str, Any]:
        """The config.json of the directory. BadData if that is no reward model."""
        return read_classifier_config(path, weights=not of_hub(self.path))

    def torch_device(self) -> torch.device:
        """The device of the weights. `MissingRequirement` for a CUDA device that is not there."""
        count = torch.cuda.device_count()
        name = ("cuda" if count else "cpu") if self.device == "auto" else self.device
        device = torch.device(name)
        if device.type == "cuda" and (device.index or 0) >= count:
            what = "this machine has no such CUDA device for the reward model"
            fix = "set verifier.device to cpu, or to a device that is there"
            raise MissingRequirement(what, evidence=f"device = {self.device!r}, devices {count}", fix=fix)
        return device


@dataclass(frozen=True, slots=True)
class FutureRewardModel(RewardModel):
    """A reward model that an earlier phase has not trained yet: `path` is the model that the phase starts from.

    The checks before the first phase read problems with it, and score nothing.
    """

    def config(self, path: Path) -> Mapping[str, Any]:
        return read_json(path / "config.json")


class RewardModelGrader:
    """Scores answers in one thread. The weights are read at the first call."""

    def __init__(self, settings: RewardModel, path: Path, texts: ClassifierInputEncoder, device: torch.device) -> None:
        self.settings, self.path, self.texts, self.device = settings, path, texts, device
        self._module: nn.Module | None = None
        self._thread: ThreadPoolExecutor | None = None

    async def grade(self, items: Sequence[Item]) -> list[Verdict]:
        """The verdicts on these answers."""
        if self._thread is None:  # torch counts its threads per thread: this one gets as many as the caller's
            threads = torch.get_num_threads()
            self._thread = ThreadPoolExecutor(1, "reward-model", torch.set_num_threads, (threads,))
        return await asyncio.get_running_loop().run_in_executor(self._thread, self.verdicts, items)

    def verdicts(self, items: Sequence[Item]) -> list[Verdict]:
        """Score these answers: on a CPU each by itself. A text that cannot be encoded is unverifiable."""
        if self._module is None:
            self._module = self._read()
        encoded = [self._encode(*item) for item in items]
        readable = [text for text in encoded if isinstance(text, ClassifierInput)]
        together = self.device.type != "cpu" and pad_token(self._module) is not None
        calls = [readable] if together and readable else [[text] for text in readable]
        found = iter([score for texts in calls for score in scores(self._module, texts)])
        return [text if isinstance(text, Verdict) else _verdict(next(found), text.truncated) for text in encoded]

    def gate(self, prompts: Sequence[Prompt], /) -> None:
        """Encode some problems. `BadData` for a text that the reward model's tokenizer cannot read."""
        for prompt in prompts[:TRIED]:
            try:
                self.texts(prompt.text, conversation(prompt, SHORT), SHORT.text, finished=True)
            except BadData as error:
                what = f"the reward model in {self.path} cannot read the problem {prompt.id}: {error.what}"
                fix = "use a reward model whose tokenizer has these characters, and whose template these roles"
                raise BadData(what, evidence=error.evidence, fix=fix) from error

    def close(self) -> None:
        """End the thread."""
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)

    def _encode(self, prompt: Prompt, sample: Sample) -> ClassifierInput | Verdict:
        finished = sample.finish is not Finish.length
        try:
            return self.texts(prompt.text, conversation(prompt, sample), sample.text, finished=finished)
        except BadData as error:
            return unverifiable(f"the reward model cannot read the answer: {error.what}")

    def _read(self) -> nn.Module:
        """The model. On a GPU, `Usage` if made-up answers have other scores together than alone."""
        settings = self.settings
        self._module = read_classifier(find_model(settings.path), dtype=DTYPES[settings.dtype], device=self.device)
        if self.device.type != "cpu":
            items = [(Prompt("made up", (0,), "a made-up problem"), sample) for sample in made_up_texts()]
            alone = [verdict for item in items for verdict in self.verdicts([item])]
            name = f"RewardModel({settings.path!r})"
            refuse_different(name, items, alone, self.verdicts(items), settings.tolerance)
        return self._module


SHORT = Sample(context=(), stream=(0,), text="", finish=Finish.stop)
"""An answer without text, with which problems are tried."""


@verdicts_have(TRUNCATED)
class RewardModelVerifier(BulkVerifier):
    """The verifier of `RewardModel`."""

    packages = ("transformers", "torch")

    def __init__(self, grader: RewardModelGrader) -> None:
        one = grader.device.type == "cpu"
        super().__init__(grader, most=1 if one else AT_ONCE)
        model, positions = grader.settings.path, grader.texts.max_positions
        self.notices = [f"note: the reward model {model} reads {positions:,} tokens: longer texts lose their beginning"]


def _verdict(score: float, truncated: bool) -> Verdict:
    if not isfinite(score):
        return unverifiable(f"the reward model's score is {score}")
    return Verdict(Outcome.scored, score=score, subscores={TRUNCATED: float(truncated)})
