"""How a process reward model reads an answer: step by step, each followed by the separator at which it is scored."""

from dataclasses import dataclass
from pathlib import Path

from groupwise.core import BadData
from groupwise.data import Ids
from groupwise.models.classifier.classifier_input_encoder import ClassifierInput, ClassifierInputEncoder
from groupwise.models.templates import Messages


@dataclass(frozen=True, slots=True)
class ScoredStep:
    """The token at which a step is scored, as an index of the text, and the step's end in the answer, in characters.

    `end` is 0 for an answer without a step, which is scored as a whole.
    """

    token_index: int
    end: int


@dataclass(frozen=True, slots=True)
class StepsInput:
    """The token ids that a process reward model reads, and the steps among them that it scores."""

    text: ClassifierInput
    steps: tuple[ScoredStep, ...]


@dataclass(frozen=True, slots=True, eq=False)
class StepEncoder:
    """Converts a problem and the steps of an answer to ids, each encoded apart: step, separator, step, separator.

    A step is the text between two separators. It is scored at the last token of the separator behind it, which the last
    step gets, too. A step without anything but white space is read and not scored. With a chat template, the messages
    before the answer are the prompt that the template writes.
    """

    texts: ClassifierInputEncoder
    separator: str
    separator_ids: Ids

    @classmethod
    def of(cls, path: Path, texts: ClassifierInputEncoder, separator: str) -> "StepEncoder":
        """The encoder of the model in a directory. BadData for an encoder such as BERT, or an unknown separator."""
        if texts.pairs:
            what = f"the model in {path} is no process reward model: it encloses texts in special tokens"
            fix = "use a decoder, such as a Qwen2ForTokenClassification"
            raise BadData(what, evidence="its score of a step would depend on later steps", fix=fix)
        ids = texts.tokenizer.encode(separator)
        if not ids:
            what = f"the tokenizer in {path} has no token for the separator {separator!r}"
            raise BadData(what, fix="set verifier.separator to the text that ended the steps when it was trained")
        return cls(texts, separator, ids)

    def __call__(self, problem: str, messages: Messages, answer: str) -> StepsInput:
        """The ids of an answer to a problem; `messages` are the conversation with the answer at its end.

        BadData for a character that the tokenizer has no token for, or messages that the template cannot render.
        """
        encode, steps, end = self.texts.tokenizer.encode, list[ScoredStep](), 0
        template = self.texts.template
        ids = list(encode(problem, bos=True) if template is None else template(messages[:-1]))
        for step in self._steps(answer):
            ids += [*encode(step), *self.separator_ids]
            end += len(step) + len(self.separator)
            if step.strip():
                steps.append(ScoredStep(len(ids) - 1, min(end, len(answer))))
        steps = steps or [ScoredStep(len(ids) - 1, 0)]
        cut = max(0, len(ids) - self.texts.max_positions)
        kept = tuple(ids[cut:])
        read = tuple(ScoredStep(s.token_index - cut, s.end) for s in steps if s.token_index >= cut)
        return StepsInput(ClassifierInput(kept, (0,) * len(kept), cut > 0), read)

    def _steps(self, answer: str) -> list[str]:
        """The texts between the separators of an answer; none behind one at its end."""
        *steps, last = answer.split(self.separator)
        return [*steps, last] if last or not steps else steps
