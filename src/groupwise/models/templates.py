"""From a problem's words to the ids that a model is asked with: its tokenizer's chat template, or a plain one."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

import tokenizers

from groupwise.data import BadData, Ids, Usage
from groupwise.models.fields import json_object
from groupwise.models.rendering import render
from groupwise.models.tokenizer import Tokenizer

Messages = Sequence[Mapping[str, Any]]
"""A conversation, as `[{"role": "user", "content": "7*5="}]`."""

PLAIN = {
    "no": "{prompt}",
    "qwen_math": (
        "<|im_start|>system\nPlease reason step by step, and put your final answer within \\boxed{}.<|im_end|>\n"
        "<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n"
    ),
    "r1": (
        "A conversation between User and Assistant. The User asks a question, and the Assistant solves it. The "
        "Assistant first thinks about the reasoning process in the mind and then provides the User with the answer. "
        "The reasoning process is enclosed within <think> </think> and answer is enclosed within <answer> </answer> "
        "tags, respectively, i.e., <think> reasoning process here </think> <answer> answer here </answer>.\n"
        "User: {prompt}\nAssistant: <think>"
    ),
}
"""Dr. GRPO's three (arXiv:2503.20783, `train_zero_math.py`). There `r1` ends at `</answer>`: say so in `stop`."""

_PLACE = "{prompt}"


@dataclass(frozen=True, slots=True, eq=False)
class Template:
    """What stands around a problem. Called with its text or with messages, it gives the ids of the whole prompt.

    The template's own special tokens are special; in the words of a problem `<|im_end|>` is ten characters. `source`
    is Jinja for `chat`, else a text in which `{prompt}` stands once.
    """

    name: str
    source: str = field(repr=False)
    tokenizer: Tokenizer = field(repr=False)
    _parsing: tokenizers.Tokenizer | None = field(init=False, repr=False)
    _special: dict[str, tuple[int, Any]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        parsing = None
        if self.source != _PLACE:  # else no text but the problem's is ever read
            parsing = tokenizers.Tokenizer.from_str(self.tokenizer.source.decode())
            parsing.no_truncation()
            parsing.no_padding()
        added = self.tokenizer.fast.get_added_tokens_decoder()
        object.__setattr__(self, "_parsing", parsing)
        object.__setattr__(self, "_special", {t.content: (i, t) for i, t in added.items() if t.special and t.content})

    @property
    def digest(self) -> str:
        """SHA-256 of the source."""
        return hashlib.sha256(self.source.encode()).hexdigest()

    @property
    def notes(self) -> tuple[str, ...]:
        """What may not be meant: a plain template with marks that this tokenizer reads as text."""
        marks = set(re.findall(r"<\|\w+\|>", self.source)) - set(self._special)
        if self.name == "chat" or not marks:
            return ()
        return (f"the template {self.name} writes {' and '.join(sorted(marks))}, to this tokenizer plain text",)

    def __call__(self, asked: str | Messages) -> tuple[int, ...]:
        if self._parsing is None:
            return self.tokenizer.encode(_alone(asked), opens=True)
        mark = self._mark(asked)
        if self.name == "chat":
            messages = [{"role": "user", "content": asked}] if isinstance(asked, str) else asked
            whole = _rendered(self.source, [_escaped(m, self._escape, mark) for m in messages], self.tokenizer)
        else:
            whole = self.source.replace(_PLACE, self._escape(_alone(asked), mark))
        opens = self.name != "chat"  # a chat template writes what opens a text itself
        if mark not in whole:
            return self.tokenizer.encode_by(self._parsing, whole, opens=opens)
        return self._pieces(whole, mark, opens)

    def between(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """What stands before and behind a user's words within a conversation: nothing for a plain template.

        Taken from between the turns of a conversation of single characters, so that what was said is never written
        again: whatever a template does to earlier turns, the tokens of a conversation only grow.
        """
        if self.name != "chat":
            return (), ()
        mark, *words = [c for c in map(chr, range(0xE000, 0xF8FF)) if c not in self.source][:4]
        roles = ("user", "assistant", "user")
        messages = [{"role": role, "content": word} for role, word in zip(roles, words)]
        before, said, after = (
            _rendered(self.source, messages, self.tokenizer).rpartition(words[1])[2].partition(words[2])
        )
        if not said:
            fix = "say --template no, and let the environment write what stands around its words"
            raise BadData("the chat template does not write a second message of a user", fix=fix)
        return self._pieces(before, mark, False), self._pieces(after, mark, False)

    def _mark(self, asked: str | Messages) -> str:
        """A character of the private use area that nothing here contains."""
        text = self.source + (asked if isinstance(asked, str) else json.dumps(list(asked), ensure_ascii=False))
        return next(c for c in map(chr, range(0xE000, 0xF8FF)) if c not in text)

    def _escape(self, text: str, mark: str) -> str:
        """The text with each special token's spelling broken by a mark behind its first character."""
        for spelling in sorted(self._special, key=len, reverse=True):
            text = text.replace(spelling, spelling[0] + mark + spelling[1:])
        return text

    def _pieces(self, whole: str, mark: str, opens: bool) -> tuple[int, ...]:
        """The template's special tokens as such, the text between them as text, without the marks."""
        ids = list(self.tokenizer.encode("", opens=True)) if opens else []
        pattern = "|".join(map(re.escape, sorted(self._special, key=len, reverse=True)))
        pieces = re.split(f"({pattern})", whole)
        for i, piece in enumerate(pieces):
            if i % 2:
                ids.append(self._special[piece][0])
                continue
            if i and self._special[pieces[i - 1]][1].rstrip:
                piece = piece.lstrip()
            if i + 1 < len(pieces) and self._special[pieces[i + 1]][1].lstrip:
                piece = piece.rstrip()
            ids += self.tokenizer.encode(piece.replace(mark, "")) if piece else ()
        return tuple(ids)


def find_template(name: str, tokenizer: Tokenizer) -> Template:
    """`chat` (the tokenizer's own), `no`, `r1`, `qwen_math`, or a text of one's own in which `{prompt}` stands once."""
    if name == "chat":
        return Template(name, chat_template(tokenizer), tokenizer)
    if name in PLAIN:
        return Template(name, PLAIN[name], tokenizer)
    if name.count(_PLACE) == 1:
        return Template("of its own", name, tokenizer)
    near = get_close_matches(name, ["chat", *PLAIN], n=1, cutoff=0.5)
    fix = f"did you mean {near[0]}, or" if near else f"take chat, {', '.join(PLAIN)}, or"
    raise Usage(f"no template is called {name!r}", fix=f"{fix} a text in which {_PLACE} stands once{'?' * len(near)}")


def closed(tokenizer: Tokenizer, answer: str) -> tuple[int, ...]:
    """The ids of an answer that somebody wrote, and the token that ends it: the tokenizer's `eos_token` where that ends
    answers, else the lowest that does."""
    named = _config(tokenizer).get("eos_token")
    spelling = named.get("content") if isinstance(named, dict) else named
    end = tokenizer.fast.token_to_id(spelling) if isinstance(spelling, str) else None
    return (*tokenizer.encode(answer), end if end in tokenizer.eos else min(tokenizer.eos))


def conversation_turn(tokenizer: Tokenizer, frame: tuple[Ids, Ids], said: Ids, words: str) -> tuple[Ids, Ids, Ids]:
    """What an environment's words add behind what stands there: the template's ids, the words' own, the template's.

    `frame` is the template's `between`. An end token that the model has written is not written again; words that open a
    conversation, behind which the model has said nothing yet, stand as they are. BadData for words without tokens.
    """
    ids, (before, after) = tokenizer.encode(words), frame
    if not said:
        return (), ids, ()
    if said[-1] in tokenizer.eos and before[:1] == said[-1:]:
        before = before[1:]
    return before, ids, after


def chat_template(tokenizer: Tokenizer) -> str:
    """The Jinja source in chat_template.jinja or tokenizer_config.json; `BadData` where there is none."""
    beside = dict(tokenizer.beside)
    if "chat_template.jinja" in beside:
        try:
            return beside["chat_template.jinja"].decode()
        except UnicodeDecodeError as error:
            raise BadData("chat_template.jinja is no UTF-8", evidence=str(error), fix="fetch it again") from error
    found = _config(tokenizer).get("chat_template")
    if isinstance(found, list):  # several by name
        found = next((t.get("template") for t in found if isinstance(t, dict) and t.get("name") == "default"), None)
    if not isinstance(found, str):
        fix = "say --template no, r1 or qwen_math, or take a model that was trained to chat"
        what = "this model's tokenizer has no chat template"
        raise BadData(what, evidence="none in chat_template.jinja or tokenizer_config.json", fix=fix)
    return found


def _config(tokenizer: Tokenizer) -> dict[str, Any]:
    return json_object(dict(tokenizer.beside).get("tokenizer_config.json", b"{}"), "tokenizer_config.json")


def _alone(asked: str | Messages) -> str:
    """The words of a problem that is a text, or a single message."""
    if isinstance(asked, str):
        return asked
    if len(asked) == 1:
        return str(asked[0].get("content", ""))
    fix = "say --template chat"
    raise BadData("a plain template takes one text, and this prompt is a conversation", fix=fix)


def _escaped(value: Any, escape: Any, mark: str) -> Any:
    """A message with all its text escaped, however deep it lies."""
    if isinstance(value, str):
        return escape(value, mark)
    if isinstance(value, Mapping):
        return {k: _escaped(v, escape, mark) for k, v in value.items()}
    return [_escaped(v, escape, mark) for v in value] if isinstance(value, list | tuple) else value


def _rendered(source: str, messages: list[Any], tokenizer: Tokenizer) -> str:
    """The conversation as the template writes it, with the opening of an answer.

    As transformers renders it, but for the clock (`strftime_now`), which would make equal runs differ: templates that
    ask for it have a fixed date for its absence.
    """
    config = _config(tokenizer)
    names = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
    values = {n: v.get("content") if isinstance(v := config.get(n), dict) else v for n in names}
    tokens = {n: v for n, v in values.items() if isinstance(v, str)}
    asked = {"messages": messages, "tools": None, "documents": None, "add_generation_prompt": True}
    return render(source, asked | tokens)
