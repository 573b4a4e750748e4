"""M-GRPO: a main agent and its helpers; main agents are compared with each other, and helpers with helpers."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from groupwise.advantages import Standardised
from groupwise.data import (
    Advantage,
    Batch,
    Draw,
    Finish,
    Outcome,
    ReplyWithCounts,
    Role,
    Rollout,
    Sample,
    Sampler,
    Segments,
    Shaping,
    Strategy,
    Verdict,
)
from groupwise.methods.method import Method
from groupwise.methods.reference import ExpectedEffect, PaperDifference, PaperReference
from groupwise.objective import Clip, Objective, group_mean
from groupwise.rewards import Correctness
from groupwise.rollout import AUTO, ConversationState, ModelDependentDefault, check_wording, fill, judged
from groupwise.rollout.gather_coroutines import together
from groupwise.rollout.prompt_template import UNWORDED
from groupwise.rollout.strategies.multi_round import context_of

__all__ = ["ConsecutiveGroupsAdvantage", "Delegating", "SetWrongAnswerReward", "m_grpo"]


@dataclass(frozen=True, slots=True)
class ConsecutiveGroupsAdvantage(Advantage):
    """Applies an advantage to groups of `group_size` consecutive samples of one role, across prompts.

    The helpers' queue in M-GRPO's released code, arXiv:2511.13288. Samples of other roles have their own groups. The
    last group of an iteration may be smaller.
    """

    group_relative: ClassVar[bool] = True

    role: str = "helper"
    group_size: int = 8
    advantage: Advantage = Standardised()  # noqa: RUF009

    def __post_init__(self) -> None:
        if self.group_size < 2:
            raise ValueError(f"{self}: needs group_size >= 2: advantages compare the samples of a group")

    def __call__(self, x: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " s"]:
        queued = torch.tensor([s.role == self.role for s in b.samples], dtype=torch.bool, device=x.device)
        position = torch.arange(int(queued.sum()), device=x.device)
        index = b.groups.index.clone()
        index[queued] = b.groups.count + position // self.group_size
        return self.advantage(
            x, b.having(groups=Segments(index, b.groups.count + -(-len(position) // self.group_size)))
        )


@dataclass(frozen=True, slots=True)
class SetWrongAnswerReward(Shaping):
    """Replaces the reward of a readable wrong answer by `reward`; a malformed answer keeps its reward.

    The reward for a valid format in M-GRPO's released code, arXiv:2511.13288.

    >>> from groupwise.data import rollout_of, pack
    >>> batch = pack([rollout_of([1.0, 0.0])])
    >>> SetWrongAnswerReward(0.1)(batch.verdict_score, batch).tolist()
    [1.0, 0.1]
    """

    reward: float

    def __call__(self, reward: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " s"]:
        return torch.where(b.outcome == Outcome.wrong, self.reward, reward)


PROBLEM = "{problem}"


TAGS = "our wording, with the tags of AQ-MedAI/MrlX, MrlX-DeepResearch/agent_co_train, 82aabc0"


TEXTS = {
    "main_template": ModelDependentDefault(
        PROBLEM,
        "{problem}\n\nYou can leave parts of the work to a helper. To ask it, end your turn with the task, complete in "
        "itself, between <tool_call> and </tool_call>. Its result comes back between <tool_response> and "
        "</tool_response>. Make one call at a time. When you know the answer, write it without another call.",
        TAGS,
    ),
    "request_start": ModelDependentDefault("", "<tool_call>", TAGS),
    "request_end": ModelDependentDefault("=", "</tool_call>", TAGS),
    "helper_template": ModelDependentDefault(
        "{request}",
        "{request}\n\nSolve this task step by step, and write its result between <result> and </result>.",
        TAGS,
    ),
    "result_start": ModelDependentDefault("#", "<result>", TAGS),
    "result_end": ModelDependentDefault("", "</result>", TAGS),
    "result_template": ModelDependentDefault("{result};", "<tool_response>\n{result}\n</tool_response>", TAGS),
}
"""The texts between the two agents. In the packaged form a turn is itself the helper's prompt."""


@dataclass(frozen=True, slots=True)
class Delegating(Strategy):
    """`draw.n` conversations of a main agent with a helper: the same policy in both roles. M-GRPO, arXiv:2511.13288.

    The main agent's prompt is `main_template`. A turn that ends in `request_end` is a request: its text, or the part
    after its last `request_start`, is put into `helper_template`, the helper's prompt. The text after the last
    `result_start` of the answer, up to `result_end`, in `result_template`, continues the conversation. The helper's
    answers have the role `helper` and are one group. Each has the verdict of its main agent, but is malformed without a
    marker or an end. With `helpers_per_main`, each main agent that asked has as many helpers in training: some are
    dropped or copied at random. 0 keeps all. The count `max_helper_calls` is that of all helpers.
    """

    model_dependent_defaults: ClassVar[dict[str, ModelDependentDefault]] = TEXTS

    max_helper_calls: int = 4
    helpers_per_main: int = 0
    main_template: str = AUTO
    request_start: str = AUTO
    request_end: str = AUTO
    helper_template: str = AUTO
    result_start: str = AUTO
    result_end: str = AUTO
    result_template: str = AUTO

    def __post_init__(self) -> None:
        for text, name in (
            (self.main_template, "problem"),
            (self.helper_template, "request"),
            (self.result_template, "result"),
        ):
            check_wording(text, (name,))
        if self.max_helper_calls < 1 or self.helpers_per_main < 0 or not (self.request_end and self.result_start):
            raise ValueError(
                f"{self}: needs max_helper_calls >= 1, helpers_per_main >= 0, and texts in request_end and result_start"
            )

    @property
    def roles(self) -> tuple[Role, ...]:
        """The roles of its samples besides answers."""
        return (Role("helper", f"where a turn of the main agent ends in {self.request_end!r} (request_end)"),)

    async def __call__(self, draw: Draw, sampler: Sampler) -> Rollout:
        assert AUTO not in (self.request_end, self.result_start), UNWORDED
        plain = draw.prompt.token_ids
        told = (
            plain
            if self.main_template == PROBLEM
            else context_of(sampler, self.main_template, {"problem": draw.prompt.text}) or plain
        )
        starts = sampler.start(told, draw.n)
        helpers: list[list[Sample]] = [[] for _ in starts]
        dialogues = await together(self._conversation(sampler, *pair) for pair in zip(starts, helpers))
        mains = await judged(dialogues, sampler)
        trained = [
            replace(self._graded(helper, main), parent=i)
            for i, (main, answers) in enumerate(zip(mains, helpers))
            for helper in (
                aligned(answers, self.helpers_per_main, sampler.random(i)) if self.helpers_per_main else answers
            )
        ]
        return Rollout(draw, (*mains, *trained))

    async def _conversation(self, sampler: Sampler, start: Sample, answers: list[Sample]) -> ConversationState:
        """Generate the conversation of one main agent. The helper's answers are added to `answers`."""
        dialogue = ConversationState(start)
        while not dialogue.has_ended:
            dialogue = await dialogue.turn_after(
                await self._reply(sampler, answers, dialogue.sample), sampler, self.max_helper_calls + 1
            )
        return dialogue

    async def _reply(self, sampler: Sampler, answers: list[Sample], sample: Sample) -> ReplyWithCounts | None:
        """The helper's result, if the main agent's last turn asks for one and may (`max_helper_calls`); else None."""
        turn = sample.last_turn.text
        if not turn.endswith(self.request_end) or len(answers) == self.max_helper_calls:
            return None
        request = (
            turn.removesuffix(self.request_end).rpartition(self.request_start)[2].strip()
            if self.request_start
            else turn
        )
        if not (context := context_of(sampler, self.helper_template, {"request": request})):
            return None
        (start,) = sampler.start(context, role="helper")
        helper = await sampler.extend(replace(start, stream=(*sample.stream, len(answers))))
        answers.append(helper)
        _, marker, result = helper.text.rpartition(self.result_start)
        if self.result_end:
            result = result.partition(self.result_end)[0].strip()
        return ReplyWithCounts(fill(self.result_template, {"result": result if marker else ""}), calls=1)

    def _graded(self, helper: Sample, main: Sample) -> Sample:
        """A helper's answer with the verdict of its main agent, or malformed."""
        assert main.verdict is not None, "the main agents are judged"
        outcome = main.verdict.outcome
        if outcome is Outcome.malformed:
            outcome = Outcome.wrong
        if helper.finish is not Finish.stop or self.result_start not in helper.text:
            outcome = Outcome.malformed
        score = main.verdict.score if outcome is main.verdict.outcome else None
        return helper.with_verdict(Verdict(outcome, score, cause=main.verdict.cause))


def aligned(answers: Sequence[Sample], size: int, random: Random) -> list[Sample]:
    """Exactly `size` answers: some are dropped or copied at random. Empty if there are none to copy."""
    if len(answers) >= size or not answers:
        return [answers[i] for i in sorted(random.sample(range(len(answers)), min(size, len(answers))))]
    streams = ((*answers[0].stream[:-1], k) for k in range(len(answers), size))
    return [*answers, *(replace(random.choice(answers), stream=stream) for stream in streams)]


def m_grpo(
    *,
    group_size: int = 8,
    max_calls: int = 4,
    align: Literal["per_query", "fifo"] = "per_query",
    wrong: float = 0.1,
    low: float = 0.2,
    high: float = 0.28,
    minibatches: int = 1,
) -> Method:
    """Main agents of a prompt are one group, their helpers another. A helper inherits its main agent's success.

    A main agent calls its helpers a variable number of times, so agents do not fit into one group of GRPO. Each role
    has its own groups, of a fixed size, and helpers get their main agent's outcome; the alignment to that size is our
    reading.

    Args:
        group_size: main agents per prompt.
        max_calls: largest number of calls by a main agent; "per_query" trains as many helpers of each.
        align: "per_query" (a prompt's helpers are a group) or "fifo" (8 helpers in a row, across prompts).
        wrong: reward of a readable wrong answer, 0.1 in the formula.
        low: distance of the lower clip bound from 1.
        high: distance of the upper clip bound from 1.
        minibatches: optimizer steps per iteration.
    """
    return Method(
        group_size=group_size,
        strategy=Delegating(max_calls, helpers_per_main=max_calls if align == "per_query" else 0),
        trained_roles=("answer", "helper"),
        shaping=(Correctness(), SetWrongAnswerReward(wrong)),
        advantage=(Standardised() if align == "per_query" else ConsecutiveGroupsAdvantage(),),
        objective=Objective(surrogate=Clip(low, high), aggregate=group_mean),
        minibatches=minibatches,
    )


REFERENCE = PaperReference(
    paper="Multi-Agent Deep Research: Training Multi-Agent Systems with M-GRPO",
    arxiv="2511.13288",
    evidence="code read earlier",
    parent="grpo",
    formula="""\
R_main = 1 correct, 0.1 wrong, 0 malformed;  R_helper = the same by its main agent's success, 0 if itself malformed
A = (R - mean) / std over the main agents of a prompt, and over its helpers; PPO's clip, no KL""",
    differences=(
        PaperDifference("policies", "two, on two servers", "two", "one policy in both roles"),
        PaperDifference("steps", "asynchronous", "each agent its own trainer", "one step; both roles weigh the same"),
        PaperDifference("main reward", "weighted format and correctness", "1, 0.1, 0", "1, 0.1, 0"),
        PaperDifference(
            "helper reward", "format, main outcome, expert", "format, main outcome: 1, 0.1, 0", "1, 0.1, 0"
        ),
        PaperDifference(
            "helpers of a main agent",
            "a fixed number: dropped or copied at random (recalled)",
            "a queue of all prompts, 8 in a row are a group",
            'align = "per_query", or "fifo" within an iteration',
        ),
        PaperDifference("most calls", "not obtained", "20 turns", "4 (inferred)"),
        PaperDifference("group size", "not obtained", "8", "8"),
        PaperDifference("clip range, KL", "not obtained", "0.2 and 0.28, 0", "0.2 and 0.28, none"),
        PaperDifference("minibatches", "not obtained", "1", "1"),
    ),
    proof_tests=(
        "tests/golden/test_methods.py::test_whole_path[m_grpo]",
        "tests/golden/test_agents.py::test_helpers_inherit_success",
        "tests/golden/test_agents.py::test_aligned_helpers",
        "tests/golden/test_agents.py::test_without_calls_it_is_one_agent",
        "tests/golden/test_agents.py::test_queue_of_helpers",
    ),
    expected_effect=ExpectedEffect(
        metric="eval/accuracy",
        direction="up",
        task="delegated_sums",
        parent="grpo",
        min_difference=0.05,
        runs_matched_by="iterations",
        settings=("evaluate.strategy = Delegating",),
    ),
)
