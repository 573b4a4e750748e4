"""The verifiers `text` (equality up to case, punctuation and articles) and `choice` (the letter of an option)."""

from typing import Any, cast, get_args

from groupwise.core import Usage
from groupwise.data import Outcome, Prompt, Sample, Verdict, verdicts_have
from groupwise.data.verdicts import unverifiable
from groupwise.verifiers.math.extract import LONGEST, Extraction, Place, Which, extract_answer
from groupwise.verifiers.option_letter import OptionLetter
from groupwise.verifiers.plain_text import plain_text

SHORT = 100
"""A text with fewer characters than this, and no marked answer, can name an option as a whole."""


@verdicts_have()
class Text:
    """Right if the answer equals the gold text, or one of a list, up to case, punctuation and articles.

    Both are compared in SQuAD's normal form (Rajpurkar et al., arXiv:1606.05250), except that signs of a number or a
    formula stay: 1.5 is not 15 (`plain_text`). `case`, `punctuation` and `articles` make each of them count. The answer
    is the whole text, or the part that `place` extracts, as in `math`.
    """

    expects = "text, a number, or a list of them"

    def __init__(
        self, *, case: bool = False, punctuation: bool = False, articles: bool = False, place: str = "whole"
    ) -> None:
        one_of("text", "place", place, ("whole", *get_args(Place)))
        self.case, self.punctuation, self.articles, self.place = case, punctuation, articles, place

    async def __call__(self, prompt: Prompt, sample: Sample) -> Verdict:
        if not self.fits(gold := prompt.row.get("answer")):
            return unverifiable(f"the gold answer {str(gold)[:80]!r} is not {self.expects}")
        answer = (
            sample.text if self.place == "whole" else extract_answer(sample.text, "last", cast(Place, self.place)).text
        )
        normal = self.normal(answer)
        if not normal:
            return Verdict(Outcome.malformed, feedback="the answer is empty")
        golds = {self.normal(str(g)) for g in (gold if isinstance(gold, list) else [gold])}
        return Verdict(Outcome(normal in golds), answer=normal[:200])

    def normal(self, text: str) -> str:
        """The text in the form in which it is compared with the gold text (`plain_text`)."""
        return plain_text(text, case=self.case, punctuation=self.punctuation, articles=self.articles)

    def fits(self, gold: Any) -> bool:
        """Whether answers can be compared with this gold answer."""
        golds = gold if isinstance(gold, list) else [gold]
        plain = all(isinstance(g, str | int | float) and not isinstance(g, bool) for g in golds)
        return bool(golds) and plain and all(self.normal(str(g)) for g in golds)


@verdicts_have()
class Choice:
    """Right if the answer names the gold letter: `B`, `(b)`, `B. because it floats`, `option B`.

    `options` are the letters; a gold number is an index from 0. `answer` and `place` extract the answer as in `math`,
    but an answer line counts to its end. A text without a box or an answer line, and with fewer than `SHORT`
    characters, is an answer as a whole. An answer that names no letter, or several, is malformed.
    """

    expects = "one of the options' letters, or its number from 0"

    def __init__(self, *, options: str = "ABCD", answer: str = "last", place: str = "either") -> None:
        if len(options) < 2 or len(set(options.upper())) < len(options) or not options.isalnum():
            raise Usage(
                f"choice(options={options!r}) is not a list of letters",
                fix="write two letters or more, each once: options='ABCDE'",
            )
        one_of("choice", "answer", answer, get_args(Which))
        one_of("choice", "place", place, get_args(Place))
        self.options, self.answer, self.place = options.upper(), answer, place
        self._letter = OptionLetter(self.options)

    async def __call__(self, prompt: Prompt, sample: Sample) -> Verdict:
        if not self.fits(gold := prompt.row.get("answer")):
            return unverifiable(f"the gold answer {str(gold)[:80]!r} is not {self.expects}")
        extracted = extract_answer(sample.text, cast(Which, self.answer), cast(Place, self.place))
        letter = self._letter_of(sample.text, extracted)
        if not letter:
            reason = f"not one letter in {extracted.text[:80]!r}" if extracted.text else extracted.rule
            return Verdict(Outcome.malformed, feedback=f"no answer: {reason}")
        return Verdict(Outcome(letter == self.gold_letter(gold)), answer=letter)

    def _letter_of(self, text: str, extracted: Extraction) -> str:
        """The letter of the extracted answer, else of the whole text if it is short; empty for none or several."""
        if extracted.text and extracted.paragraph:
            line, _, below = extracted.paragraph.partition("\n")
            return self._letter.named(line, below)
        if extracted.text:
            return self._letter.named(extracted.text) if len(extracted.text) <= LONGEST else ""
        return self._letter.named(text) if extracted.rule.startswith("no ") and len(text) < SHORT else ""

    def gold_letter(self, gold: Any) -> str:
        """The letter of a gold answer; empty if it names no option."""
        if isinstance(gold, int) and not isinstance(gold, bool):
            return self.options[gold] if 0 <= gold < len(self.options) else ""
        return self._letter.named(gold) if isinstance(gold, str) else ""

    def fits(self, gold: Any) -> bool:
        """Whether this gold answer names an option."""
        return bool(self.gold_letter(gold))


def one_of(verifier: str, field: str, value: str, known: tuple[str, ...]) -> None:
    """`Usage` if a field's value is not one of the known ones."""
    if value not in known:
        raise Usage(f"{verifier}({field}={value!r}) is not a known value", fix=f"take {', '.join(map(repr, known))}")
