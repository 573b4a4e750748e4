"""MASA: Meta-Awareness via Self-Alignment."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from groupwise.advantages import Standardised
from groupwise.core import BadData
from groupwise.data import Draw, Finish, Ids, Outcome, Role, Rollout, Sample, Sampler, Strategy, Verdict, verdicts_have
from groupwise.methods.method import Method
from groupwise.methods.reference import ExpectedEffect, PaperDifference, PaperReference
from groupwise.objective import DualClip, GatedSurrogate, Objective, log_likelihood, token_mean, written_tokens
from groupwise.rollout import AUTO, ModelDependentDefault, check_wording
from groupwise.rollout.gather_coroutines import together
from groupwise.rollout.strategies.multi_round import attempts, context_of, graded, is_correct, is_graded

__all__ = ["MetaPredictions", "masa"]

OF = 8
"""A predicted pass rate is written as a number of correct answers among this many."""


KEYS = {"pass_rate": int, "solution_length": int, "math_notion": list}
"""The keys of a prediction in JSON, as in the code of MASA, and the types of their values."""


SHORT = re.compile(r"(\d{1,9});(\d{1,9})")


FLAT_OBJECT = re.compile(r"\{[^{}]*\}")


MOST_NOTIONS = 64
"""The most notions (named concepts) that are read from one prediction: each is searched in all answers."""


LARGEST = 10**9
"""The largest absolute value of a predicted number: a text can contain integers that are too large for a float."""


@dataclass(frozen=True, slots=True)
class ParsedPrediction:
    """A prediction that was read from a text.

    A number that cannot be read is None; `predicted_notions` may be empty.
    """

    predicted_correct_of_eight: int | None = None
    predicted_length: int | None = None
    predicted_notions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupStatistics:
    """Facts about a group of answers, to grade predictions: pass rate, token lengths of the correct ones, texts."""

    pass_rate: float | None
    """The pass rate of the answers; None if no answer could be graded."""
    correct_lengths: tuple[int, ...]
    correct_texts: tuple[str, ...]
    incorrect_texts: tuple[str, ...]

    @classmethod
    def of(cls, answers: Sequence[Sample]) -> "GroupStatistics":
        outcomes = graded(answers)
        correct = [s for s in answers if is_correct(s)]
        return cls(
            pass_rate=sum(outcomes) / len(outcomes) if outcomes else None,
            correct_lengths=tuple(len(s.tokens) for s in correct),
            correct_texts=tuple(s.text.lower() for s in correct),
            incorrect_texts=tuple(s.text.lower() for s in answers if is_graded(s) and not is_correct(s)),
        )


def predicted(text: str) -> ParsedPrediction:
    """Read a prediction: the text is `rate;length`, or its last `{...}` without inner braces is JSON.

    >>> predicted('I think {"pass_rate": 3, "solution_length": 40, "math_notion": ["Angles"]}')
    ParsedPrediction(predicted_correct_of_eight=3, predicted_length=40, predicted_notions=('Angles',))
    >>> predicted("3;40").predicted_length, predicted("{[").predicted_correct_of_eight
    (40, None)
    """
    if short := SHORT.fullmatch(text):
        return ParsedPrediction(int(short[1]), int(short[2]))
    data = _json_object(text)
    notions = tuple(x for x in data.get("math_notion", ())[:MOST_NOTIONS] if isinstance(x, str))
    return ParsedPrediction(_bounded(data.get("pass_rate")), _bounded(data.get("solution_length")), notions)


def _bounded(value: int | None) -> int | None:
    return None if value is None else max(-LARGEST, min(value, LARGEST))


def _json_object(text: str) -> Mapping[str, Any]:
    """Read the last `{...}` of a text as JSON: the `KEYS` with values of the right type; empty if it cannot be read."""
    try:
        data = json.loads((FLAT_OBJECT.findall(text) or ["{}"])[-1])
    except (ValueError, RecursionError):
        return {}
    return {key: data[key] for key, kind in KEYS.items() if type(data.get(key)) is kind}


def agreement(prediction: ParsedPrediction, found: GroupStatistics, problem: str) -> Verdict:
    """Grade a prediction by the mean of three subscores from 0 to 1: `length`, `rate` and `notions`. MASA.

    `length` is 1 if the predicted length lies strictly between the shortest and the longest correct answer. `rate` is
    `0.01^|p - predicted / 8|`. `notions` is the share of predicted notions that occur in more correct answers than in
    others; notions in the problem's text do not count. A part that the text does not say is 0. The verdict is
    unverifiable if no answer could be graded.

    >>> found = GroupStatistics(0.5, (900, 1500, 1200, 700), (), ())
    >>> predicted = ParsedPrediction(predicted_correct_of_eight=8, predicted_length=1000)
    >>> round(agreement(predicted, found, "").subscores["rate"], 6)
    0.1
    """
    if found.pass_rate is None:
        return Verdict(Outcome.unverifiable, cause="the answers that it predicts could not be graded")
    length = -1 if prediction.predicted_length is None else prediction.predicted_length
    parts = {
        "length": float(min(found.correct_lengths, default=0) < length < max(found.correct_lengths, default=0)),
        "rate": 0.0
        if prediction.predicted_correct_of_eight is None
        else 0.01 ** abs(found.pass_rate - prediction.predicted_correct_of_eight / OF),
        "notions": _notions(prediction.predicted_notions, found, problem.lower()),
    }
    return Verdict(Outcome.scored, score=sum(parts.values()) / 3, subscores=parts)


def _notions(notions: Sequence[str], found: GroupStatistics, problem: str) -> float:
    words = [w for w in dict.fromkeys(singular(notion.strip().lower()) for notion in notions) if w not in problem]
    more = [
        sum(w in text for text in found.correct_texts) > sum(w in text for text in found.incorrect_texts) for w in words
    ]
    return sum(more) / len(more) if more else 0.0


def singular(word: str) -> str:
    """The singular of a regular English plural.

    >>> [singular(word) for word in ("identities", "boxes", "angles", "series", "class")]
    ['identity', 'box', 'angle', 'series', 'class']
    """
    if word == "series" or word.endswith("ss"):
        return word
    if word.endswith("ies"):
        return f"{word[:-3]}y"
    return word[:-2] if re.search("(ch|sh|x|z|o)es$", word) else word.removesuffix("s")


def corrected(text: str, found: GroupStatistics) -> str:
    """A prediction's text with the true pass rate and length; empty if it is unreadable, or no answer is correct.

    The length is the mean over the correct answers. Text after the JSON object is left out.

    >>> corrected('so {"pass_rate": 7, "math_notion": ["sum"]}', GroupStatistics(0.5, (20, 30), (), ()))
    'so {"pass_rate": 4, "solution_length": 25, "math_notion": ["sum"]}'
    """
    if not found.correct_lengths or found.pass_rate is None:
        return ""
    rate, length = round(OF * found.pass_rate), round(sum(found.correct_lengths) / len(found.correct_lengths))
    if SHORT.fullmatch(text):
        return f"{rate};{length}"
    if not (data := _json_object(text)):
        return ""
    start = [match.start() for match in FLAT_OBJECT.finditer(text)][-1]
    values = {"pass_rate": rate, "solution_length": length, "math_notion": list(predicted(text).predicted_notions)}
    return text[:start] + json.dumps({key: values[key] for key in KEYS if key in data or key != "math_notion"})


PREDICTED = ModelDependentDefault(
    "{problem}=",
    "Think step-by-step between <meta> and </meta>, ensuring comprehensive and detailed reasoning especially for "
    "determining the pass_rate and solution_length values. For each component (math_notion, pass_rate, "
    "solution_length), provide a comprehensive illustration or example during your reasoning in the <meta> section to "
    "clarify how each value is decided. When determining math_notion, ensure that the notions listed do not directly "
    "include the notions already written in the problem statement. After </meta>, return a JSON object with three "
    "keys:\n- math_notion (list[str])\n- pass_rate (integer from 0 to 8)\n- solution_length (integer, in tokens)\n\n"
    "Problem: {problem}",
    "akatigre/MASA-RL, masa_train/masa_rl_dataset.py, 80b3cfa, without its bounds of the length",
)
"""The prompt for a prediction."""


@verdicts_have("length", "rate", "notions")
@dataclass(frozen=True, slots=True)
class MetaPredictions(Strategy):
    """Samples answers, and `prediction_count` predictions of their pass rate and length, in a separate role. MASA.

    A prediction answers the prompt in `prompt_template` with the number of correct answers of eight, the length of a
    correct answer, and the notions that occur in correct answers. Its score is the mean of three agreements with the
    answers (`agreement`). arXiv:2510.03259.

    With `predictive_gating`, a prompt is skipped if the predictions expect no correct answer or only such. With a
    `length_cutoff_factor`, an answer of this multiple of the mean predicted length ends there, and is wrong. With
    `min_rewrite_agreement`, the prediction with the best notions, if their agreement is at least this, is written again
    with the true numbers, with the role `min_rewrite_agreement`.
    """

    roles: ClassVar[tuple[Role, ...]] = (
        Role("prediction", "for each prompt"),
        Role(
            "expert",
            "where a prediction has good notions, and `min_rewrite_agreement` > 0",
            alone_in_group=True,
            is_demonstration=True,
        ),
    )
    model_dependent_defaults: ClassVar[dict[str, ModelDependentDefault]] = {"prompt_template": PREDICTED}

    prediction_count: int = 16
    prompt_template: str = AUTO
    predictive_gating: bool = False
    length_cutoff_factor: float = 0.0
    min_rewrite_agreement: float = 0.0

    def __post_init__(self) -> None:
        check_wording(self.prompt_template, ("problem",))
        if self.prediction_count < 1 or self.length_cutoff_factor < 0 or not 0 <= self.min_rewrite_agreement <= 1:
            raise ValueError(
                f"{self}: needs prediction_count >= 1, length_cutoff_factor >= 0 and 0 <= min_rewrite_agreement <= 1"
            )

    async def __call__(self, draw: Draw, sampler: Sampler) -> Rollout:
        problem = draw.prompt.text
        if not (context := context_of(sampler, self.prompt_template, {"problem": problem})):
            return Rollout(draw, tuple(await attempts(sampler, draw.prompt.token_ids, draw.n)))
        predictions = await sampler.sample(context, self.prediction_count, role="prediction")
        read = [predicted(s.text) for s in predictions]
        rates = [p.predicted_correct_of_eight for p in read if p.predicted_correct_of_eight is not None]
        if self.predictive_gating and rates and round(sum(rates) / len(rates)) in (0, OF):
            return Rollout(draw, tuple(predictions), selected=(False,) * self.prediction_count, cause="predicted")
        answers = await self._answers(
            draw, sampler, [p.predicted_length for p in read if p.predicted_length is not None]
        )
        statistics = GroupStatistics.of(answers)
        judged = [s.with_verdict(agreement(p, statistics, problem)) for s, p in zip(predictions, read)]
        return Rollout(draw, (*answers, *judged, *self._expert(judged, statistics, context, sampler)))

    async def _answers(self, draw: Draw, sampler: Sampler, lengths: Sequence[int]) -> list[Sample]:
        """Sample and grade the answers. An answer that the limit by `length_cutoff_factor` cuts is wrong."""
        if not (self.length_cutoff_factor and lengths):
            return await attempts(sampler, draw.prompt.token_ids, draw.n)
        limit = max(1, int(self.length_cutoff_factor * sum(lengths) / len(lengths)))
        starts = sampler.start(draw.prompt.token_ids, draw.n)
        answers = await together(sampler.extend(s, limit=limit) for s in starts)
        whole = iter(await sampler.verify([s for s in answers if s.finish is not None]))
        return [next(whole) if s.finish is not None else _ended(s) for s in answers]

    def _expert(
        self, predictions: Sequence[Sample], statistics: GroupStatistics, context: Ids, sampler: Sampler
    ) -> tuple[Sample, ...]:
        """The prediction with the highest subscore `notions`, rewritten with the true numbers as a training target.

        Empty if the part is below `min_rewrite_agreement`, if the text is too long, or has a character without a token.
        """
        best = max(predictions, key=_notions_in)
        if (
            not self.min_rewrite_agreement
            or _notions_in(best) < self.min_rewrite_agreement
            or not (text := corrected(best.text, statistics))
        ):
            return ()
        (start,) = sampler.start(context, role="expert")
        try:
            target = sampler.write(start, text)
        except BadData:
            return ()
        return (target.with_verdict(Verdict(Outcome.correct)),) if len(target.tokens) <= start.limit else ()


def _ended(answer: Sample) -> Sample:
    return answer.with_finish(Finish.length).with_verdict(Verdict(Outcome.wrong))


def _notions_in(prediction: Sample) -> float:
    return prediction.verdict.subscores.get("notions", 0.0) if prediction.verdict else 0.0


def masa(
    *,
    group_size: int = 16,
    prediction_count: int = 16,
    prompt_template: str = "auto",
    predictive_gating: bool = False,
    length_cutoff_factor: float = 0.0,
    min_rewrite_agreement: float = 0.0,
    minibatches: int = 1,
) -> Method:
    """GRPO on answers and on predictions about them, which are rewarded for agreement with the answers.

    The paper argues that reasoning models predict poorly how often they succeed, how long a solution is and which
    notions it needs. MASA samples predictions of these beside the answers, and rewards each prediction for its
    agreement with the group of answers. The rules of `predictive_gating` and `length_cutoff_factor` are our reading.

    Args:
        group_size: answers per prompt.
        prediction_count: predictions per prompt, at least 1.
        prompt_template: prompt for a prediction, with `{problem}`; `auto`: by the model.
        predictive_gating: whether to skip prompts for which the predictions expect only correct or no correct answers.
        length_cutoff_factor: multiple of the mean predicted length at which an answer is cut; 0 turns this off.
        min_rewrite_agreement: agreement from which a corrected prediction is learned, up to 1; 0 turns this off.
        minibatches: optimizer steps per iteration.
    """
    predictions = (prediction_count, prompt_template, predictive_gating, length_cutoff_factor)
    clip = DualClip(0.2, 0.28, 10.0)
    surrogate = (
        GatedSurrogate(written_tokens, selected_surrogate=log_likelihood, other_surrogate=clip)
        if min_rewrite_agreement
        else clip
    )
    return Method(
        group_size=group_size,
        strategy=MetaPredictions(*predictions, min_rewrite_agreement),
        trained_roles=("answer", "prediction", *(("expert",) if min_rewrite_agreement else ())),
        advantage=(Standardised(),),
        objective=Objective(surrogate=surrogate, aggregate=token_mean),
        minibatches=minibatches,
    )


REFERENCE = PaperReference(
    paper="Meta-Awareness Enhances Reasoning Models: Self-Alignment Reinforcement Learning",
    arxiv="2510.03259",
    evidence="code read",
    code="akatigre/MASA-RL@fad5726e5570e6eefdecc35dc7be5db42c909e93:verl/utils/reward_score/meta_cog.py",
    parent="dapo",
    formula="""\
r = 1/3 ( 1[min L < n < max L] + 0.01^|p - d/8| + share of notions in more correct answers than in others )
n, d: predicted length and number of correct answers of 8; L: lengths of correct answers; p: their share
A = z-score among the answers, and among the predictions; one loss over both""",
    differences=(
        PaperDifference(
            "prompt of a prediction", "meta tags, then JSON", "so", "words; JSON or RATE;LENGTH in the answer"
        ),
        PaperDifference(
            "notions of the problem", "dropped", "those of the whole prompt", "those of the problem's text"
        ),
        PaperDifference("case of a notion", "not specified", "counts", "does not count"),
        PaperDifference("an unreadable prediction", "not specified", "0 in each part, as a bad one", "the same"),
        PaperDifference(
            "experts: when", "interleaved phases", "on a full store", "min_rewrite_agreement = 0.2: in the step's loss"
        ),
        PaperDifference("experts: length", "the true one", "sum of correct / all answers", "mean of correct answers"),
        PaperDifference("experts: rate", "the true one", "a share", "of 8, as in a prediction; default: 0, no experts"),
        PaperDifference(
            "gate and early end", "not obtained", "not released", "mean rounds to 0 or 8; length_cutoff_factor = 2"
        ),
        PaperDifference("gate and early end by default", "a variant", "not released", "neither: 0"),
        PaperDifference("notions as hints", "a variant", "one prediction in the prompt", "not offered"),
        PaperDifference("group size, predictions", "16, 16", "16, 16", "16, 16"),
        PaperDifference("clip range", "0.2 and 0.28", "0.2 and 0.28, dual clip 10", "0.2 and 0.28, dual clip 10"),
        PaperDifference("minibatches", "1", "1", "1"),
    ),
    proof_tests=(
        "tests/golden/test_methods.py::test_whole_path[masa]",
        "tests/golden/test_methods.py::test_whole_path[masa with ratios up to 20]",
        "tests/golden/test_budgets.py::test_agreement",
        "tests/golden/test_budgets.py::test_predictions_are_a_group_of_their_own",
    ),
    expected_effect=ExpectedEffect(
        metric="eval/accuracy_greedy",
        direction="up",
        task="hinted_sums",
        parent="dapo",
        min_difference=0.02,
        runs_matched_by="iterations",
    ),
)
