"""Control tokens: ids that a template or the model may write, and text never becomes."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain

import tokenizers
from tokenizers import pre_tokenizers

from groupwise.core import BadData

ROUNDS = 4
"""After this many rounds of breaks in single spellings, a break follows each character of the text."""
PRIVATE = (range(0xE000, 0xF900), range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))
"""Unicode's private-use characters, from which the marks of breaks are taken."""
UNASSIGNED = "\U0010fffe"
"""A character that no vocabulary has."""

_FORM = re.compile(r"<[|｜].+[|｜]>", re.DOTALL)
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")
"""A token for one byte of a character."""
_WRITTEN = re.compile(r"<[^<>\s]+>|\[[^\[\]\s]+\]")


@dataclass(frozen=True, slots=True, eq=False)
class ControlTokens:
    """The control tokens of a tokenizer, by their spelling, and an encoding of text that contains none of them.

    They are the end tokens; all added tokens that are special or have the form `<|...|>`; and the other tokens that a
    template contains: added ones (Qwen's `<think>`), and pieces of the vocabulary in angle or square brackets. White
    space and single characters are text, except as end tokens.

    A text that would become one is split after the token's first character, and its parts are encoded apart. This
    depends on the ids, not on the spelling, so it holds for BPE, Unigram, WordPiece, WordLevel and after any
    normalizer. `unk_ids` are ids that replace unknown characters: these stay.
    """

    ids_by_spelling: dict[str, int]
    control_ids: frozenset[int]
    unk_ids: frozenset[int]
    _splitting: Callable[[tokenizers.Tokenizer, str], tokenizers.Tokenizer] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_splitting", lru_cache(4)(_splitting))

    @classmethod
    def of(cls, fast: tokenizers.Tokenizer, ends: frozenset[int], templates: Iterable[str]) -> "ControlTokens":
        """The control tokens of a tokenizer with these end tokens and templates."""
        templates = tuple(templates)
        spellings = {
            text: i
            for i, token in fast.get_added_tokens_decoder().items()
            if (text := token.content)
            and not _BYTE.fullmatch(text)
            and (token.special or _FORM.fullmatch(text) or (_is_name(text) and any(text in t for t in templates)))
        }
        for text in chain.from_iterable(map(_WRITTEN.findall, templates)):
            if _is_name(text) and (i := fast.token_to_id(text)) is not None:
                spellings[text] = i
        spellings |= {text: i for i in ends if (text := fast.id_to_token(i))}
        try:
            unknown = frozenset(fast.encode(UNASSIGNED, add_special_tokens=False).ids)
        except Exception:  # the library raises nothing narrower; such a tokenizer refuses unknown characters
            unknown = frozenset()
        return cls(spellings, ends | frozenset(spellings.values()), unknown - ends)

    def hide(self, fast: tokenizers.Tokenizer) -> None:
        """Change a tokenizer so that it does not search text for added tokens that are control tokens."""
        added = [
            t for t in fast.get_added_tokens_decoder().values() if t.content in self.ids_by_spelling and not t.special
        ]
        flags = ("single_word", "lstrip", "rstrip", "normalized")
        fast.add_special_tokens(
            [tokenizers.AddedToken(t.content, special=True, **{f: getattr(t, f) for f in flags}) for t in added]
        )
        fast.encode_special_tokens = True

    def encode(self, fast: tokenizers.Tokenizer, text: str, *, left: str = "", right: str = "") -> tokenizers.Encoding:
        """Encode `left + text + right`. No control token comes from `text`, not even from a part of it.

        BadData for a character that the tokenizer can only encode as a control token.
        """
        return self._apart(fast, text, "", left, right)[1]

    def broken(self, fast: tokenizers.Tokenizer, text: str, mark: str) -> str:
        """The text with `mark` in each spelling of a control token. It must not contain `mark`.

        A text with a character that has no token, such as a role that the template does not write, is read by letters.
        """
        try:
            return self._apart(fast, text, mark, "", "")[0]
        except BadData:
            raise
        except Exception:  # the library raises nothing narrower
            for spelling in sorted(filter(_is_name, self.ids_by_spelling), key=len, reverse=True):
                text = text.replace(spelling, spelling[0] + mark + spelling[1:])
            return text

    def encode_marked(self, fast: tokenizers.Tokenizer, text: str, mark: str) -> tokenizers.Encoding:
        """Encode the parts between the marks apart. The marks get no token."""
        fast = self._splitting(fast, mark) if mark and mark in text else fast
        return fast.encode(text, add_special_tokens=False)

    def _apart(
        self, fast: tokenizers.Tokenizer, text: str, mark: str, left: str, right: str
    ) -> tuple[str, tokenizers.Encoding]:
        """The text with its marks, and the encoding of `left + text + right`."""
        breaks: list[int] = []
        for trial in range(ROUNDS + 2):
            encoding = self.encode_marked(fast, left + text + right, mark)
            breaks = self._breaks(encoding, left, text, right)
            if not breaks:
                return text, encoding
            mark = mark or unused_character(left + text + right)
            if trial < ROUNDS:
                for i in reversed(breaks):
                    text = text[:i] + mark + text[i:]
            else:
                text = mark + mark.join(text.replace(mark, "")) + mark
        piece = text[: breaks[0]].replace(mark, "")[-1:]
        fix = "remove it from the text, or give the model another end token (eos_token_id in generation_config.json)"
        what = f"the model's tokenizer can only encode the character {piece!r} of a text as a control token"
        raise BadData(what, evidence=f"control tokens: {', '.join(map(repr, list(self.ids_by_spelling)[:8]))}", fix=fix)

    def _breaks(self, encoding: tokenizers.Encoding, left: str, text: str, right: str) -> list[int]:
        """The indices in `text` that must be broken, each after the first character of a control token."""
        if self.control_ids.isdisjoint(encoding.ids):
            return []
        names = {i: spelling for spelling, i in self.ids_by_spelling.items()}
        whole, start, end, breaks = left + text + right, len(left), len(left) + len(text), set[int]()
        for token, (a, b) in zip(encoding.ids, encoding.offsets, strict=True):
            if token not in self.control_ids or b <= start or a >= end:
                continue
            found = whole.find(names.get(token, ""), a, b)  # an added token may include the white space before it
            if token not in self.unk_ids or found >= 0:
                breaks.add(max(max(a, found) + 1, start) - start)
        return sorted(breaks)


def unused_character(text: str) -> str:
    """A private-use character that does not occur in a text. BadData if there is none."""
    used = set(text)
    unused = next((c for c in map(chr, chain(*PRIVATE)) if c not in used), None)
    if unused is None:
        raise BadData("a text contains all private-use characters of Unicode", fix="remove them from the text")
    return unused


def _is_name(spelling: str) -> bool:
    return len(spelling) > 1 and not spelling.isspace()


def _splitting(fast: tokenizers.Tokenizer, mark: str) -> tokenizers.Tokenizer:
    """A copy of a tokenizer that encodes the parts between marks apart, as pieces of one text."""
    copy = tokenizers.Tokenizer.from_str(fast.to_str())
    copy.encode_special_tokens = fast.encode_special_tokens
    before = copy.pre_tokenizer
    text = mark if copy.normalizer is None else copy.normalizer.normalize_str(mark)
    text = text if before is None else "".join(piece for piece, _ in before.pre_tokenize_str(text))
    seen = mark if mark in text else text[-len(mark.encode()) :]  # byte-level tokenizers map each byte to a character
    if seen:
        steps = [*([] if before is None else [before]), pre_tokenizers.Split(seen, behavior="removed")]
        copy.pre_tokenizer = pre_tokenizers.Sequence(steps)
    return copy
