"""How a reward model reads a problem and its answer: by its own tokenizer and its own chat template."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from groupwise.core import BadData
from groupwise.data import Ids
from groupwise.models.json_fields import LARGEST, real, whole
from groupwise.models.model_json_files import read_json
from groupwise.models.templates import Messages, PromptTemplate, encode_answer, find_template
from groupwise.models.tokenizer import Tokenizer, chat_templates, stored_tokenizer

POSITIONS = 1 << 40
"""The largest number of positions that a configuration may name."""


@dataclass(frozen=True, slots=True)
class ClassifierInput:
    """The token ids that a classifier reads, their segments (0 or 1, of models with pairs), and whether it lost some.

    `truncated` is True if the beginning was left out, since the model has too few positions.
    """

    tokens: Ids
    segments: Ids
    truncated: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class ClassifierInputEncoder:
    """Converts texts to at most `max_positions` ids of a classifier. No id of a control token comes from text.

    A `template` renders the whole conversation. Without one, a tokenizer that encloses a text in special tokens, as
    BERT's does, gets problem and answer as a pair. Any other gets the problem, the answer, and the end token of a
    finished answer, each encoded apart, as in training. Texts lose their beginning beyond the model's positions.
    """

    tokenizer: Tokenizer
    template: PromptTemplate | None
    max_positions: int

    @classmethod
    def read(cls, path: Path, config: Mapping[str, Any], template: str = "auto") -> "ClassifierInputEncoder":
        """The texts of the model in a directory, in the template `chat` or `no`; `auto` is `chat` if it has one.

        BadData for a missing chat template, and for a tokenizer or numbers that cannot be used.
        """
        tokenizer = stored_tokenizer(path, needs_end=False)
        chat = template == "chat" or (template == "auto" and bool(chat_templates(tokenizer.extra_files)))
        return cls(tokenizer, find_template("chat", tokenizer) if chat else None, positions_of(path, config))

    def __call__(self, problem: str, messages: Messages, answer: str, *, finished: bool) -> ClassifierInput:
        """The ids of an answer to a problem; `messages` are the conversation with the answer at its end.

        BadData for a character that the tokenizer has no token for, or messages that the template cannot render.
        """
        if self.template is not None:
            return self._cut(self.template.conversation(messages))
        if self.pairs:
            return self._pair(problem, answer)
        ends = finished and self.tokenizer.eos_ids
        written = encode_answer(self.tokenizer, answer) if ends else self.tokenizer.encode(answer)
        return self._cut((*self.tokenizer.encode(problem, bos=True), *written))

    @property
    def pairs(self) -> bool:
        """Whether the tokenizer encloses a text in special tokens."""
        return self.tokenizer.backend_tokenizer.num_special_tokens_to_add(False) > 1

    def _cut(self, ids: Ids) -> ClassifierInput:
        kept = ids[-self.max_positions :]
        return ClassifierInput(kept, (0,) * len(kept), len(kept) < len(ids))

    def _pair(self, problem: str, answer: str) -> ClassifierInput:
        """Both texts with the tokens of the tokenizer around them; the problem loses its beginning first."""
        fast, control = self.tokenizer.backend_tokenizer, self.tokenizer.control_tokens
        with self.tokenizer.refusing(problem + answer):
            first, second = control.encode(fast, problem), control.encode(fast, answer)
        room, length = self.max_positions - fast.num_special_tokens_to_add(True), len(first) + len(second)
        second.truncate(room, direction="left")
        first.truncate(room - len(second), direction="left")
        both = fast.post_process(first, second, True)
        return ClassifierInput(tuple(both.ids), tuple(both.type_ids), len(first) + len(second) < length)


def positions_of(path: Path, config: Mapping[str, Any]) -> int:
    """The most tokens that the model in a directory reads: its positions, or fewer if its tokenizer says so."""
    file = path / "tokenizer_config.json"
    stated = read_json(file).get("model_max_length") if file.is_file() else None
    try:
        positions = whole(config, "max_position_embeddings", low=8, high=POSITIONS)
        length = real({"model_max_length": stated}, "model_max_length", low=1, high=LARGEST, default=LARGEST)
    except KeyError as error:
        what = f"{path / 'config.json'} does not say how many tokens the model reads"
        raise BadData(what, evidence=f"no {error.args[0]}", fix="fetch the file again") from error
    except (TypeError, ValueError) as error:
        raise BadData(f"{path} has an invalid length", evidence=str(error), fix="fetch the file again") from error
    return min(positions, max(8, int(length)))
