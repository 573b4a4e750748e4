"""HiLL: the policy also learns to write hints for problems that it fails."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from groupwise.advantages import Standardised
from groupwise.data import Draw, Outcome, Role, Rollout, Sample, Sampler, Strategy, Verdict
from groupwise.methods.method import Method
from groupwise.methods.reference import ExpectedEffect, PaperDifference, PaperReference
from groupwise.objective import Clip, Objective, token_mean
from groupwise.rollout import AUTO, ModelDependentDefault, check_wording, text_of
from groupwise.rollout.gather_coroutines import together
from groupwise.rollout.strategies.multi_round import attempts, context_of, is_correct, none_correct, with_role

__all__ = ["HintWriter", "hill"]

SHORT = 2
"""An answer of at most this many characters may be in a hint by chance: it counts only after one of PHRASES."""


PHRASES = ("= ", "equals ", "is ", "answer is ", "answer: ", "result is ", "value is ", "equal to ", "#")
"""Phrases before a stated answer; the packaged tasks use the last one."""


SOURCE = "Andree-9/HiLL, verl/trainer/ppo/hinter_utils.py, 857078e"
"""Where the prose is from."""


ASKED = ModelDependentDefault(
    "{draft};{solution};{problem}",
    """\
You are a Pedagogical Hint Generator for a Mathematical Reasoner.
TASK: GENERATE A MINIMAL HINT

OBJECTIVE
The Reasoner failed the Original Question. Your goal is to generate a minimal but useful hint that helps the Reasoner \
find the correct logical path.
CRITICAL: Provide a strategic nudge, not a solution. The Reasoner must still perform the deduction themselves.

INPUTS
1) Original Question:
{problem}

2) Reasoner's Failed Attempt:
{draft}

3) Ground Truth Solution (Hidden from Reasoner; For Your Reference Only):
{solution}

GUIDELINES
1. Analyze the failure to identify the missing insight or misconception.
2. Provide a conceptual pointer (e.g., a relevant theorem, a structural property, an alternative representation, or an \
intermediate goal).
3. Do not reveal the final answer or any specific numerical values, formulas with substituted numbers, or computed \
intermediate steps.

OUTPUT FORMAT (Follow strictly)
<analysis>
[Briefly identify the logic breakdown and the necessary insight.]
</analysis>

<hint>
[Your concise hint — 1 to 3 sentences maximum.]
</hint>
""",
    SOURCE,
)
"""The prompt for a hint."""


@dataclass(frozen=True, slots=True)
class HintWriter(Strategy):
    """If no answer is correct, the policy writes hints. Answers with the most helpful one replace the group.

    The prompt of a hint has the problem, its solution, and one wrong answer. A hint is tried with a group of `draw.n`
    answers. Its score is `helpfulness` of the group, or `refused_score` if it is empty, states the answer or leaves no
    room. If no score is above 0, the first group stays. Hints have the role `hint`, and their group is scored by these
    numbers. The other answers get the role `tried`. With `hint_start` and `hint_end`, as in prose, only the text
    between them is the hint. Without a solution or an answer in the row, the group stays. HiLL, arXiv:2604.00698.
    """

    roles: ClassVar[tuple[Role, ...]] = (
        Role("hint", "where no answer is correct", in_failed_rollouts="often"),
        Role("tried", "where no answer is correct", in_failed_rollouts="often"),
    )
    column_type: ClassVar[str] = "text"
    column_optional: ClassVar[bool] = True
    model_dependent_defaults: ClassVar[dict[str, ModelDependentDefault]] = {
        "hint_start": ModelDependentDefault("", "<hint>", SOURCE),
        "hint_end": ModelDependentDefault("", "</hint>", SOURCE),
        "hint_template": ASKED,
        "hinted_prompt_template": ModelDependentDefault("{problem}{hint}{problem}", "{problem}\n\n{hint}", SOURCE),
    }
    scores_answers: ClassVar[bool] = True

    hint_count: int = 4
    reliance_temperature: float = 0.3
    refused_score: float = -0.2
    score_form: Literal["mixed", "variance"] = "mixed"
    answer_column: str = "answer"
    solution_column: str = "solution"
    hint_start: str = AUTO
    hint_end: str = AUTO
    hint_template: str = AUTO
    hinted_prompt_template: str = AUTO

    def __post_init__(self) -> None:
        check_wording(self.hint_template, ("problem", "solution", "draft"))
        check_wording(self.hinted_prompt_template, ("problem", "hint"))
        if self.hint_count < 1 or self.reliance_temperature <= 0:
            raise ValueError(f"{self}: needs hint_count >= 1 and reliance_temperature > 0")

    @property
    def row_columns(self) -> tuple[str, ...]:
        """The columns of the data rows that it reads."""
        return self.answer_column, self.solution_column

    async def __call__(self, draw: Draw, sampler: Sampler) -> Rollout:
        group = await attempts(sampler, draw.prompt.token_ids, draw.n)
        solution, answer = (text_of(draw, column, self) for column in (self.solution_column, self.answer_column))
        if not (none_correct(group) and solution and answer):
            return Rollout(draw, tuple(group))
        draft = sampler.random(0).choice(group).text
        values = {"problem": draw.prompt.text, "solution": solution, "draft": draft}
        if not (context := context_of(sampler, self.hint_template, values)):
            return Rollout(draw, tuple(group))
        hints = await sampler.sample(context, self.hint_count, group=1, role="hint")
        groups = await together(self._tried(draw, sampler, self._hint(s.text)) for s in hints)
        scores = await together(self._score(draw, sampler, tried) for tried in groups)
        graded = [s.with_verdict(Verdict(Outcome.scored, score=x)) for s, x in zip(hints, scores)]
        best = groups[scores.index(max(scores))] if max(scores) > 0 else group
        tried = (s for one in (group, *groups) if one is not best for s in one)
        return Rollout(draw, (*with_role(tried, "tried"), *best, *graded))

    def _hint(self, text: str) -> str:
        """The hint in a text of the policy; empty if the text lacks `hint_start` or `hint_end`."""
        if not self.hint_start:
            return text.strip()
        _, _, rest = text.partition(self.hint_start)
        if not self.hint_end:
            return rest.strip()
        hint, closed, _ = rest.partition(self.hint_end)
        return hint.strip() if closed else ""

    async def _tried(self, draw: Draw, sampler: Sampler, hint: str) -> list[Sample]:
        """Sample a group of answers with this hint; none if it is empty, states the answer or leaves no room."""
        if not hint or states(hint, text_of(draw, self.answer_column, self)):
            return []
        context = context_of(sampler, self.hinted_prompt_template, {"problem": draw.prompt.text, "hint": hint})
        return await attempts(sampler, context, draw.n) if context else []

    async def _score(self, draw: Draw, sampler: Sampler, group: list[Sample]) -> float:
        if not group:
            return self.refused_score
        correct, temperature = [s for s in group if is_correct(s)], sampler.sampling.temperature or 1.0
        plain = await together(sampler.score(draw.prompt.token_ids, s, temperature=temperature) for s in correct)
        reliance = [(math.fsum(logp) - math.fsum(s.logp)) / max(len(logp), 1) for logp, s in zip(plain, correct)]
        return helpfulness(len(correct), len(group), reliance, self.reliance_temperature, self.score_form)


def helpfulness(
    correct: int, n: int, reliance: Sequence[float], temperature: float, form: Literal["mixed", "variance"] = "mixed"
) -> float:
    """A hint's reward: `(1 - p^n - (1 - p)^n) exp(min(D, 0) / T)`, p the pass rate with it; 0 if p is 0 or 1.

    The first factor is the chance that a group of n is mixed; `variance` is `p (1 - p)`. D is the mean reliance of the
    correct answers on the hint: their log-prob per token without it, less that with it. T is `reliance_temperature`.

    >>> round(helpfulness(2, 8, [-0.12, -0.12], 0.3), 6)
    0.603202
    """
    if not 0 < correct < n:
        return 0.0
    p = correct / n
    signal = 1 - p**n - (1 - p) ** n if form == "mixed" else p * (1 - p)
    return signal * math.exp(min(math.fsum(reliance) / correct, 0.0) / temperature)


def states(hint: str, answer: str) -> bool:
    r"""Whether a hint states the answer: a short answer counts only in `\boxed` or after a phrase such as "is".

    >>> states("consider 2 variables", "2"), states("the result is 2", "2"), states(r"so \frac{1}{3}", r"\frac{1}{3}")
    (False, True, True)
    """
    text, gold = hint.lower(), answer.strip().lower()
    if not gold:
        return False
    if len(gold) > SHORT:
        return gold in text
    return f"\\boxed{{{gold}}}" in text or any(f"{phrase}{gold}" in text for phrase in PHRASES)


def hill(
    *,
    group_size: int = 8,
    hint_count: int = 4,
    reliance_temperature: float = 0.3,
    score_form: Literal["mixed", "variance"] = "mixed",
    hint_template: str = "auto",
    hinted_prompt_template: str = "auto",
    low: float = 0.2,
    high: float = 0.28,
    minibatches: int = 2,
) -> Method:
    """GRPO; one policy answers, and writes hints for failed problems. Both are trained, hints by how much they help.

    Fixed hints do not follow the policy, and a hint that gives away key steps can yield answers that are unlikely
    without it. HiLL trains the writing of hints too, and rewards hints that make a group mixed and its correct answers
    likely without the hint. Here one policy has both roles.

    Args:
        group_size: answers per prompt, and per hint, G.
        hint_count: hints per failed problem, M.
        reliance_temperature: scale of the log-prob difference D in a hint's reward, above 0, T.
        score_form: first factor of a hint's reward: `mixed`, the chance of a mixed group, or `variance`, p (1 - p).
        hint_template: prompt for a hint, with `{problem}`, `{solution}` and `{draft}`; `auto`: by the model.
        hinted_prompt_template: hinted prompt, with `{problem}` and `{hint}`; `auto`: by the model.
        low: distance of the lower clip bound from 1.
        high: distance of the upper clip bound from 1.
        minibatches: optimizer steps per iteration.
    """
    return Method(
        group_size=group_size,
        strategy=HintWriter(
            hint_count, reliance_temperature, score_form=score_form, hint_template=hint_template,
            hinted_prompt_template=hinted_prompt_template,
        ),
        trained_roles=("answer", "hint"),
        advantage=(Standardised(),),
        objective=Objective(surrogate=Clip(low, high), aggregate=token_mean),
        minibatches=minibatches,
    )  # fmt: skip


REFERENCE = PaperReference(
    paper="Learning to Hint for Reinforcement Learning",
    arxiv="2604.00698",
    evidence="code read",
    code="Andree-9/HiLL@195d94ebee446504db6477606914d5c87fc13c30:verl/trainer/ppo/hinter_utils.py",
    parent="grpo",
    formula="""\
for q without a correct answer: hints h_1, ..., h_M from q, its solution and a wrong answer; G answers to q with h_j
R_j = (1 - p^G - (1 - p)^G) exp(min(D, 0) / T) for a pass rate p; 0 if p is 0 or 1; -0.2 for a refused hint
D = mean over correct answers [ mean_t log pi(y_t | q, y_<t) - mean_t log pi(y_t | q, h_j, y_<t) ]
the group of the best hint replaces that of q if R_j > 0; GRPO's objective for answers and for hints""",
    differences=(
        PaperDifference("policies", "two, of 7B and 4B", "two", "one policy in both roles; one loss over both"),
        PaperDifference("hints, temperature", "4; 0.3", "4; 0.3", "4; 0.3"),
        PaperDifference(
            "reward of a hint", "transfer-weighted", "four forms", "that form; score_form = variance: p (1 - p)"
        ),
        PaperDifference(
            "hint in the text", "in <hint> tags", "in <hint> tags", "in <hint> tags; with packaged models all of it"
        ),
        PaperDifference("stated answer", "not read", "phrases; text of 3 and more characters", "the same, and #ANSWER"),
        PaperDifference("clip range, KL", "not read", "0.2 and 0.28; none", "0.2 and 0.28; none"),
        PaperDifference("minibatches, group size", "not read", "2 and 8", "2 and 8"),
        PaperDifference(
            "log-probs for D", "of the policy", "of the learner", "of the engine, at the sampling temperature"
        ),
    ),
    proof_tests=(
        "tests/golden/test_methods.py::test_whole_path[hill]",
        "tests/golden/test_trees.py::test_a_hint_is_worth_the_signal_that_transfers",
        "tests/golden/test_trees.py::test_the_best_hint_replaces_the_group",
    ),
    expected_effect=ExpectedEffect(
        metric="groups/all_wrong",
        direction="down",
        task="hinted_sums",
        parent="grpo",
        min_difference=0.1,
        runs_matched_by="iterations",
        settings=("method.minibatches = 2", "method.objective.penalties = []"),
        acted="rollout/other_prompt",
        acted_least=1.0,
    ),
)
