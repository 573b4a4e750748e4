"""Verifiers that score answers with a classifier of transformers: its settings, its thread, and the trial on a GPU."""

import asyncio
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, TypeVar

import torch
from torch import nn

from groupwise.core import BadData, GroupwiseError, check_types, or_near
from groupwise.data import Finish, Prompt, Sample, Verdict, VerifierSettings
from groupwise.data.verdicts import unverifiable
from groupwise.models import device_named, find_model, of_hub
from groupwise.models.classifier.scoring_model import ClassifierTask, pad_token, read_classifier, read_classifier_config
from groupwise.verifiers.bulk_verifier import BulkVerifier, check_tolerance, refuse_different
from groupwise.verifiers.function_verifier import made_up_texts
from groupwise.verifiers.grade_function_arguments import Item

EncodedText = TypeVar("EncodedText")
"""The encoded text of an answer."""
TextScores = TypeVar("TextScores")
"""The numbers of a classifier for one text."""

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
DEVICE = re.compile(r"auto|cpu|cuda(:\d{1,3})?")
AT_ONCE = 32
"""The most answers of one forward pass on a GPU."""
TRIED = 8
"""The problems that are encoded before the run."""
TRUNCATED = "truncated"
"""The subscore that is 1 for a text whose beginning the model did not read, else 0."""
SHORT = Sample(context=(), stream=(0,), text="", finish=Finish.stop)
"""An answer without text, with which problems are tried."""


@dataclass(frozen=True, slots=True)
class ClassifierSettings(VerifierSettings):
    """The directory of a classifier, how its texts are rendered, and where it computes."""

    task: ClassVar[ClassifierTask]

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

    def directory(self) -> Path:
        """The directory of the model, without weights if it is one of the hub. A `GroupwiseError` if there is none."""
        on_hub = of_hub(self.path)
        try:
            return find_model(self.path, weights=not on_hub)
        except GroupwiseError as error:
            error.fix = or_near(self.path, error.fix if on_hub else self.task.advice)
            raise

    def config(self, path: Path) -> Mapping[str, Any]:
        """The config.json of the directory. BadData if that is no such classifier."""
        return read_classifier_config(path, self.task, weights=not of_hub(self.path))

    def torch_device(self) -> torch.device:
        """The device of the weights. `MissingRequirement` for a CUDA device that is not there."""
        return device_named(self.device, "verifier.device")


class ClassifierGrader(ABC, Generic[EncodedText, TextScores]):
    """Scores answers in one thread. The weights are read at the first call."""

    def __init__(self, settings: ClassifierSettings, path: Path, device: torch.device) -> None:
        self.settings, self.path, self.device = settings, path, device
        self._module: nn.Module | None = None
        self._thread: ThreadPoolExecutor | None = None

    @abstractmethod
    def encode(self, prompt: Prompt, sample: Sample) -> EncodedText:
        """The text that the model reads. BadData for one that cannot be encoded."""

    @abstractmethod
    def score(self, module: nn.Module, texts: Sequence[EncodedText]) -> list[TextScores]:
        """The scores of texts, in one forward pass."""

    @abstractmethod
    def verdict(self, text: EncodedText, score: TextScores) -> Verdict:
        """The verdict on a text with this score."""

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
        encoded = [self._encoded(*item) for item in items]
        readable = [text for text in encoded if not isinstance(text, Verdict)]
        together = self.device.type != "cpu" and pad_token(self._module) is not None
        calls = [readable] if together and readable else [[text] for text in readable]
        found = iter([score for texts in calls for score in self.score(self._module, texts)])
        return [text if isinstance(text, Verdict) else self.verdict(text, next(found)) for text in encoded]

    def gate(self, prompts: Sequence[Prompt], /) -> None:
        """Encode some problems. `BadData` for a text that the model's tokenizer cannot read."""
        for prompt in prompts[:TRIED]:
            try:
                self.encode(prompt, SHORT)
            except BadData as error:
                what = f"the {self.settings.task.description} in {self.path} cannot read the problem {prompt.id}"
                fix = "use a reward model whose tokenizer has these characters, and whose template these roles"
                raise BadData(f"{what}: {error.what}", evidence=error.evidence, fix=fix) from error

    def close(self) -> None:
        """End the thread."""
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)

    def _encoded(self, prompt: Prompt, sample: Sample) -> EncodedText | Verdict:
        try:
            return self.encode(prompt, sample)
        except BadData as error:
            return unverifiable(f"the {self.settings.task.description} cannot read the answer: {error.what}")

    def _read(self) -> nn.Module:
        """The model. On a GPU, `Usage` if made-up answers have other scores together than alone."""
        settings = self.settings
        directory, dtype = find_model(settings.path), DTYPES[settings.dtype]
        self._module = read_classifier(directory, settings.task, dtype=dtype, device=self.device)
        if self.device.type != "cpu":
            items = [(Prompt("made up", (0,), "a made-up problem"), sample) for sample in made_up_texts()]
            alone = [verdict for item in items for verdict in self.verdicts([item])]
            name = f"{type(settings).__name__}({settings.path!r})"
            refuse_different(name, items, alone, self.verdicts(items), settings.tolerance)
        return self._module


class ClassifierVerifier(BulkVerifier):
    """A verifier with a `ClassifierGrader`. A notice says how many tokens the model reads."""

    packages = ("transformers", "torch")

    def __init__(self, grader: ClassifierGrader[Any, Any], max_positions: int) -> None:
        one = grader.device.type == "cpu"
        super().__init__(grader, most=1 if one else AT_ONCE)
        model = f"the {grader.settings.task.description} {grader.settings.path}"
        self.notices = [f"note: {model} reads {max_positions:,} tokens: longer texts lose their beginning"]
