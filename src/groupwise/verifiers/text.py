"""The verifiers `Text` (equality up to case, punctuation and articles) and `OptionChoice` (the letter of an option)."""

from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Literal

from groupwise.core import check_types
from groupwise.data import Outcome, Prompt, Sample, Verdict, VerifierSettings, verdicts_have
from groupwise.data.verdicts import unverifiable
from groupwise.verifiers.extract_option_letter import OptionLetterExtractor
from groupwise.verifiers.math.box_denials import is_hypothetical
from groupwise.verifiers.math.extract_answer import LONGEST, ExtractedAnswer, Place, Which, extract_answer
from groupwise.verifiers.normalise_text import plain_text

__all__ = ["OptionChoice", "Text"]

SHORT = 100
"""A text with fewer characters than this, and no marked answer, can name an option as a whole."""


@verdicts_have()
@dataclass(frozen=True, slots=True, kw_only=True)
class Text(VerifierSettings):
    """Right if the answer equals the gold text, or one of a list, up to case, punctuation and articles.

    Both are compared in SQuAD's normal form (Rajpurkar et al., arXiv:1606.05250), except that signs of a number or a
    formula stay: 1.5 is not 15 (`plain_text`). `match_case`,
    `match_punctuation` and `match_articles` make each of them count. The answer
    is the whole text, or the part that `answer_location` extracts, as in `Math`.
    """

    gold_answer_format: ClassVar[str] = "text, a number, or a list of them"
    match_case: bool = False
    match_punctuation: bool = False
    match_articles: bool = False
    answer_location: Literal["whole", "either", "boxed", "line", "tag"] = "whole"

    def __post_init__(self) -> None:
        check_types(self)

    async def __call__(self, prompt: Prompt, sample: Sample) -> Verdict:
        if not self.fits(gold := prompt.row.get("answer")):
            return unverifiable(f"the gold answer {str(gold)[:80]!r} is not {self.gold_answer_format}")
        answer = sample.text
        if self.answer_location != "whole":
            answer = extract_answer(answer, "last", self.answer_location, is_hypothetical(prompt.text)).text
        normal = self.normal(answer)
        if not normal:
            return Verdict(Outcome.malformed, feedback="the answer is empty")
        golds = {self.normal(str(g)) for g in (gold if isinstance(gold, list) else [gold])}
        return Verdict(Outcome(normal in golds), answer=normal[:200])

    def normal(self, text: str) -> str:
        """The text in the form in which it is compared with the gold text (`plain_text`)."""
        return plain_text(text, case=self.match_case, punctuation=self.match_punctuation, articles=self.match_articles)

    def fits(self, gold: Any) -> bool:
        """Whether answers can be compared with this gold answer."""
        golds = gold if isinstance(gold, list) else [gold]
        plain = all(isinstance(g, str | int | float) and not isinstance(g, bool) for g in golds)
        return bool(golds) and plain and all(self.normal(str(g)) for g in golds)


@verdicts_have()
@dataclass(frozen=True, slots=True, kw_only=True)
class OptionChoice(VerifierSettings):
    """Right if the answer names the gold letter: `B`, `(b)`, `B. because it floats`, `option B`.

    `option_letters` are the letters; a gold number is an index from 0. `which_answer` and `answer_location` extract the
    answer as in `Math`, but an answer line counts to its end. A text without a box or an answer line, and with fewer
    than `SHORT` characters, is an answer as a whole. An answer that names no letter, or several, is malformed.
    """

    gold_answer_format: ClassVar[str] = "one of the options' letters, or its number from 0"
    option_letters: str = "ABCD"
    which_answer: Which = "last"
    answer_location: Place = "either"

    def __post_init__(self) -> None:
        check_types(self)
        if (
            len(self.option_letters) < 2
            or len(set(self.option_letters.upper())) < len(self.option_letters)
            or not self.option_letters.isalnum()
        ):
            raise ValueError(f"options is {self.option_letters!r}\nwrite two letters or more, each once: ABCDE")

    async def __call__(self, prompt: Prompt, sample: Sample) -> Verdict:
        if not self.fits(gold := prompt.row.get("answer")):
            return unverifiable(f"the gold answer {str(gold)[:80]!r} is not {self.gold_answer_format}")
        extracted = extract_answer(sample.text, self.which_answer, self.answer_location, is_hypothetical(prompt.text))
        letter = self._letter_of(sample.text, extracted)
        if not letter:
            reason = f"not one letter in {extracted.text[:80]!r}" if extracted.text else extracted.extraction_rule
            return Verdict(Outcome.malformed, feedback=f"no answer: {reason}")
        return Verdict(Outcome(letter == self.gold_letter(gold)), answer=letter)

    def _letter_of(self, text: str, extracted: ExtractedAnswer) -> str:
        """The letter of the extracted answer, else of the whole text if it is short; empty for none or several."""
        letter = option_letter(self.option_letters.upper())
        if extracted.text and extracted.answer_paragraph:
            line, _, below = extracted.answer_paragraph.partition("\n")
            return letter.named(line, below)
        if extracted.text:
            return letter.named(extracted.text) if len(extracted.text) <= LONGEST else ""
        return letter.named(text) if extracted.extraction_rule.startswith("no ") and len(text) < SHORT else ""

    def gold_letter(self, gold: Any) -> str:
        """The letter of a gold answer; empty if it names no option."""
        if isinstance(gold, int) and not isinstance(gold, bool):
            return self.option_letters[gold].upper() if 0 <= gold < len(self.option_letters) else ""
        return option_letter(self.option_letters.upper()).named(gold) if isinstance(gold, str) else ""

    def fits(self, gold: Any) -> bool:
        """Whether this gold answer names an option."""
        return bool(self.gold_letter(gold))


@cache
def option_letter(options: str) -> OptionLetterExtractor:
    """The patterns that read one of these letters, compiled once."""
    return OptionLetterExtractor(options)
