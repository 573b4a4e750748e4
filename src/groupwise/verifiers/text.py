"""Verifiers of what is written: a text up to its dress, and a letter among options."""

import re
import string
import unicodedata
from typing import Any, cast, get_args

from groupwise.data import Outcome, Prompt, Sample, Usage, Verdict
from groupwise.data.verdicts import unverifiable
from groupwise.verifiers.math.extract import LONGEST, Found, Place, Which, find_answer
from groupwise.verifiers.option_letter import OptionLetter

MARKS = 30
"""Combining marks on one character: Unicode's own bound for texts of all languages (UAX #15, stream-safe text)."""

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
SHORT = 100
"""Characters of a text that may be an answer as a whole: it has fewer."""


class Text:
    """Right if the answer is the gold text, or one of a list of them, without case, punctuation and articles.

    The normal form of SQuAD (Rajpurkar et al., arXiv:1606.05250), after Unicode's NFKC; `case`, `punctuation` and
    `articles` say what does count. The answer is the whole text, or what `place` finds as in `math`.
    """

    expects = "text, a number, or a list of them"

    def __init__(
        self, *, case: bool = False, punctuation: bool = False, articles: bool = False, place: str = "whole"
    ) -> None:
        one_of("text", "place", place, ("whole", *get_args(Place)))
        self.case, self.punctuation, self.articles, self.place = case, punctuation, articles, place

    async def __call__(self, prompt: Prompt, sample: Sample) -> Verdict:
        if not self.fits(gold := prompt.given.get("answer")):
            return unverifiable(f"the gold answer {str(gold)[:80]!r} is not {self.expects}")
        answer = (
            sample.text if self.place == "whole" else find_answer(sample.text, "last", cast(Place, self.place)).text
        )
        said = self.normal(answer)
        if not said:
            return Verdict(Outcome.malformed, feedback="nothing is said")
        wanted = {self.normal(str(g)) for g in (gold if isinstance(gold, list) else [gold])}
        return Verdict(Outcome(said in wanted), answer=said[:200])

    def normal(self, text: str) -> str:
        """The text without what does not count.

        >>> Text().normal("  The  Eiffel-Tower. "), Text(case=True, articles=True).normal("The End")
        ('eiffeltower', 'The End')
        """
        text = unicodedata.normalize("NFKC", _few_marks(text))
        text = text if self.case else text.casefold()
        text = text if self.punctuation else text.translate(_PUNCTUATION)
        bared = text if self.articles else _ARTICLES.sub(" ", text)
        return " ".join(bared.split()) or " ".join(text.split())  # an answer may be "A"

    def fits(self, gold: Any) -> bool:
        """Whether answers can be compared with this gold answer."""
        several = gold if isinstance(gold, list) else [gold]
        plain = all(isinstance(g, str | int | float) and not isinstance(g, bool) for g in several)
        return bool(several) and plain and all(self.normal(str(g)) for g in several)


class Choice:
    """Right if the letter that the answer names is the gold one: `B`, `(b)`, `B. because it floats`, `option B`.

    `options` are the letters; a gold number counts them from 0. `answer` and `place` find the answer as in `math`, but
    an answer line is read to its end. A text without a box or an answer line may be such a letter itself, up to `SHORT`
    characters. An answer that names no letter, or several, is malformed.
    """

    expects = "one of the options' letters, or its number from 0"

    def __init__(self, *, options: str = "ABCD", answer: str = "last", place: str = "either") -> None:
        if len(options) < 2 or len(set(options.upper())) < len(options) or not options.isalnum():
            raise Usage(f"choice(options={options!r})", fix="two letters or more, each once, as in options='ABCDE'")
        one_of("choice", "answer", answer, get_args(Which))
        one_of("choice", "place", place, get_args(Place))
        self.options, self.answer, self.place = options.upper(), answer, place
        self._letter = OptionLetter(self.options)

    async def __call__(self, prompt: Prompt, sample: Sample) -> Verdict:
        if not self.fits(gold := prompt.given.get("answer")):
            return unverifiable(f"the gold answer {str(gold)[:80]!r} is not {self.expects}")
        found = find_answer(sample.text, cast(Which, self.answer), cast(Place, self.place))
        letter = self._found(sample.text, found)
        if not letter:
            why = f"not one letter in {found.text[:80]!r}" if found.text else found.rule
            return Verdict(Outcome.malformed, feedback=f"no answer: {why}")
        return Verdict(Outcome(letter == self.wanted(gold)), answer=letter)

    def _found(self, text: str, found: Found) -> str:
        """The letter of an answer; of the whole text where no answer was found in it."""
        if found.text and found.paragraph:
            line, _, below = found.paragraph.partition("\n")
            return self._letter.named(line, below)
        if found.text:
            return self._letter.named(found.text) if len(found.text) <= LONGEST else ""
        return self._letter.named(text) if found.rule.startswith("no ") and len(text) < SHORT else ""

    def wanted(self, gold: Any) -> str:
        """The letter of a gold answer; empty where it is none."""
        if isinstance(gold, int) and not isinstance(gold, bool):
            return self.options[gold] if 0 <= gold < len(self.options) else ""
        return self._letter.named(gold) if isinstance(gold, str) else ""

    def fits(self, gold: Any) -> bool:
        """Whether this gold answer names an option."""
        return bool(self.wanted(gold))


def _few_marks(text: str) -> str:
    """The text with at most `MARKS` combining marks in a row: to sort them takes time that grows with their square.

    >>> len(_few_marks("e" + "\u0301" * 100))
    31
    """
    if text.isascii():
        return text
    kept, marks = [], 0
    for c in text:
        marks = marks + 1 if unicodedata.combining(c) else 0
        if marks <= MARKS:
            kept.append(c)
    return "".join(kept)


def one_of(verifier: str, field: str, value: str, known: tuple[str, ...]) -> None:
    """`Usage` where a field has a value that it cannot have."""
    if value not in known:
        raise Usage(f"{verifier}({field}={value!r})", fix=f"take {', '.join(map(repr, known))}")
