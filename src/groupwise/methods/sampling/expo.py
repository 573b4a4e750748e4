"""ExPO: the policy learns its own explanation of a known answer."""

from dataclasses import dataclass
from typing import ClassVar

from groupwise.advantages import Standardised
from groupwise.data import Draw, Role, Rollout, Sampler, Strategy
from groupwise.learner import InitialPolicy
from groupwise.methods.method import Method
from groupwise.methods.reference import ExpectedEffect, PaperDifference, PaperReference
from groupwise.objective import KL, Clip, GatedSurrogate, Objective, group_mean, log_likelihood, written_tokens
from groupwise.rollout import AUTO, ModelDependentDefault, check_wording, text_of
from groupwise.rollout.strategies.multi_round import (
    as_written,
    attempts,
    context_of,
    is_correct,
    none_correct,
    with_role,
)

__all__ = ["ExplainGoldAnswer", "expo"]

EXPLAINED = ModelDependentDefault(
    "{problem}#{answer};{problem}",
    "{problem}\n\nThe correct final answer is: {answer}\n\n"
    "Explain step by step how to reach this answer. Write a complete solution that ends with this final answer, and do "
    "not mention that you were given it.",
)


@dataclass(frozen=True, slots=True)
class ExplainGoldAnswer(Strategy):
    """If no answer is correct, the policy explains the gold answer. A correct one is trained under the plain prompt.

    A correct explanation is a group of one, trained as a written answer with the role `explained`. With
    `explain_always`, the policy explains the gold answer of each prompt. A row without a gold answer has no
    explanation. ExPO, arXiv:2507.02834.
    """

    column_type: ClassVar[str] = "text"
    column_optional: ClassVar[bool] = True
    model_dependent_defaults: ClassVar[dict[str, ModelDependentDefault]] = {"explanation_prompt_template": EXPLAINED}

    answer_column: str = "answer"
    explain_always: bool = False
    explanation_prompt_template: str = AUTO

    def __post_init__(self) -> None:
        check_wording(self.explanation_prompt_template, ("problem", "answer"))

    @property
    def roles(self) -> tuple[Role, ...]:
        """The roles of its samples besides answers."""
        when, failed = ("for each prompt", "never") if self.explain_always else ("where no answer is correct", "always")
        explained = Role("explained", when, in_failed_rollouts=failed, alone_in_group=True, is_demonstration=True)
        return explained, Role("tried", f"{when}, and the explanation is wrong", in_failed_rollouts=failed)

    @property
    def row_columns(self) -> tuple[str, ...]:
        """The columns of the data rows that it reads."""
        return (self.answer_column,)

    async def __call__(self, draw: Draw, sampler: Sampler) -> Rollout:
        prompt = draw.prompt
        group = await attempts(sampler, prompt.token_ids, draw.n)
        answer = text_of(draw, self.answer_column, self)
        if not (answer and (self.explain_always or none_correct(group))):
            return Rollout(draw, tuple(group))
        values = {"problem": prompt.text, "answer": answer}
        if not (context := context_of(sampler, self.explanation_prompt_template, values)):
            return Rollout(draw, tuple(group))
        (own,) = await attempts(sampler, context, 1, group=1, role="explained")
        explanation = as_written(own, prompt.token_ids) if is_correct(own) else with_role([own], "tried")[0]
        return Rollout(draw, (*group, explanation))


def expo(
    *,
    group_size: int = 8,
    explain_always: bool = False,
    explanation_prompt_template: str = "auto",
    kl: float = 0.04,
    minibatches: int = 1,
) -> Method:
    """GRPO; if no answer is correct, the policy explains the known answer and is trained on its explanation.

    If no answer is correct, GRPO has no advantage to learn from, and the paper argues that expert solutions are too
    unlikely under the policy to teach it well. ExPO samples the policy's own explanation of the known answer, and
    raises its likelihood under the plain prompt. The weight of this term and the choice of prompts are our reading.

    Args:
        group_size: answers per prompt.
        explain_always: whether each prompt gets an explanation e, or only prompts without a correct answer.
        explanation_prompt_template: prompt for an explanation, with `{problem}` and `{answer}`; `auto`: by the model.
        kl: weight of the KL penalty to the initial policy.
        minibatches: optimizer steps per iteration.
    """
    surrogate = GatedSurrogate(written_tokens, selected_surrogate=log_likelihood, other_surrogate=Clip())
    return Method(
        group_size=group_size,
        strategy=ExplainGoldAnswer(
            explain_always=explain_always, explanation_prompt_template=explanation_prompt_template
        ),
        trained_roles=("answer", "explained"),
        advantage=(Standardised(),),
        models=(("reference", InitialPolicy()),),
        objective=Objective(surrogate=surrogate, penalties=(KL(kl),), aggregate=group_mean),
        minibatches=minibatches,
    )


REFERENCE = PaperReference(
    paper="ExPO: Unlocking Hard Reasoning with Self-Explanation-Guided Reinforcement Learning",
    arxiv="2507.02834",
    evidence="our reading",
    parent="grpo",
    formula="""\
J = P / (P + E) (GRPO's objective + 1/P sum over E explanations of mean_t log pi(e_t | q, e_<t)) for P prompts
e from pi_old(. | q, answer), where no answer of the group is correct""",
    differences=(
        PaperDifference(
            "weight of the explanation", "a coefficient, not obtained", "not found", "that of a group (inferred)"
        ),
        PaperDifference("divisor", "prompts P", "not found", "P and explanations E: both terms are times P / (P + E)"),
        PaperDifference(
            "when", "for hard prompts", "not found", "where no answer is correct; explain_always = true (inferred)"
        ),
        PaperDifference("wrong explanations", "not specified", "not found", "left out (inferred)"),
        PaperDifference("KL of the explanation", "not specified", "not found", "as of the others: 0.04"),
        PaperDifference("DPO form", "online pairs", "not found", "not offered"),
        PaperDifference("group size, minibatches", "not obtained", "not found", "8 and 1 (inferred)"),
    ),
    proof_tests=(
        "tests/golden/test_methods.py::test_whole_path[expo]",
        "tests/golden/test_rollout.py::test_an_explanation_is_learned",
        "tests/golden/test_rollout.py::test_expo_leaves_the_group_alone",
    ),
    expected_effect=ExpectedEffect(
        metric="eval/accuracy",
        direction="up",
        task="hinted_sums",
        parent="grpo",
        min_difference=0.05,
        runs_matched_by="iterations",
        acted="groups/all_wrong",
        acted_least=0.1,
        acted_in="parent",
    ),
)
