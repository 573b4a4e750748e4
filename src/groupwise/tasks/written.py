"""Verifiers of what is written: a text up to its dress, and a letter among options."""

import re
import string
import unicodedata
from typing import Any, cast, get_args

from groupwise.data import Outcome, Prompt, Sample, Usage, Verdict
from groupwise.tasks.judge import unverifiable
from groupwise.tasks.mathematics.extract import Place, Which, find_answer
from groupwise.tasks.mathematics.tidy import bare

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_FONT = re.compile(r"\\(?:text|textbf|textrm|mathrm|mathbf)\s*\{([^{}]*)\}")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


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
        return Verdict(Outcome(said in wanted), said=said[:200])

    def normal(self, text: str) -> str:
        """The text without what does not count.

        >>> Text().normal("  The  Eiffel-Tower. "), Text(case=True, articles=True).normal("The End")
        ('eiffeltower', 'The End')
        """
        text = unicodedata.normalize("NFKC", text)
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
    """Right if the letter that the answer names is the gold one: `B`, `(b)`, `B. because`, `option B`.

    `options` are the letters; a gold number counts them from 0. `answer` and `place` find the answer as in `math`;
    a text that is nothing but such a letter is an answer too. One that names no letter is malformed.
    """

    expects = "one of the options' letters, or its number from 0"

    def __init__(self, *, options: str = "ABCD", answer: str = "last", place: str = "either") -> None:
        if len(options) < 2 or len(set(options.upper())) < len(options) or not options.isalnum():
            raise Usage(f"choice(options={options!r})", fix="two letters or more, each once, as in options='ABCDE'")
        one_of("choice", "answer", answer, get_args(Which))
        one_of("choice", "place", place, get_args(Place))
        self.options, self.answer, self.place = options.upper(), answer, place
        letter = f"[{self.options}]"
        # Behind the letter anything may stand, but another one.
        self._letter = re.compile(
            rf"(?:(?:option|choice|answer)\s*)?(?:\(\s*({letter})\s*\)|({letter})(?=[.:)]|$)[.:)]?)"
            r"(?!\s*(?:(?:or|and)\b|[,/&(]))(?!\w).*",
            re.IGNORECASE | re.DOTALL,
        )

    async def __call__(self, prompt: Prompt, sample: Sample) -> Verdict:
        if not self.fits(gold := prompt.given.get("answer")):
            return unverifiable(f"the gold answer {str(gold)[:80]!r} is not {self.expects}")
        found = find_answer(sample.text, cast(Which, self.answer), cast(Place, self.place))
        said = self.letter(found.text) or (self.letter(sample.text) if len(sample.text) < 100 else "")
        if not said:
            why = f"no letter in {found.text[:80]!r}" if found.text else found.rule
            return Verdict(Outcome.malformed, feedback=f"no answer: {why}")
        return Verdict(Outcome(said == self.wanted(gold)), said=said)

    def letter(self, text: str) -> str:
        """The letter that a text names; empty where it names none.

        >>> [Choice().letter(x) for x in ("(b)", r"\\textbf{B.} 12", "option c", "A dog", "A or B", "E")]
        ['B', 'B', 'C', '', '', '']
        """
        found = self._letter.fullmatch(bare(_FONT.sub(r"\1", text).replace("\\ ", " ")))
        return (found[1] or found[2]).upper() if found else ""

    def wanted(self, gold: Any) -> str:
        """The letter of a gold answer; empty where it is none."""
        if isinstance(gold, int) and not isinstance(gold, bool):
            return self.options[gold] if 0 <= gold < len(self.options) else ""
        return self.letter(gold) if isinstance(gold, str) else ""

    def fits(self, gold: Any) -> bool:
        """Whether this gold answer names an option."""
        return bool(self.wanted(gold))


def one_of(verifier: str, field: str, value: str, known: tuple[str, ...]) -> None:
    """`Usage` where a field has a value that it cannot have."""
    if value not in known:
        raise Usage(f"{verifier}({field}={value!r})", fix=f"take {', '.join(map(repr, known))}")
