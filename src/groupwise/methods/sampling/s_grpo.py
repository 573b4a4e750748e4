"""S-GRPO: reasoning is cut at several places to answer early, and earlier correct answers get more reward."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from groupwise.advantages import centred
from groupwise.data import (
    TEMPLATE,
    Batch,
    Draw,
    Finish,
    NeededMeasure,
    Outcome,
    Rollout,
    Sampler,
    Shaping,
    Strategy,
    Subscore,
    verdicts_have,
)
from groupwise.methods.effect_settings import LARGE_GROUPS
from groupwise.methods.method import Method
from groupwise.methods.reference import ExpectedEffect, PaperDifference, PaperReference
from groupwise.objective import Clip, Objective, token_mean
from groupwise.rollout import AUTO, ModelDependentDefault
from groupwise.rollout.gather_coroutines import together
from groupwise.rollout.prompt_template import UNWORDED

__all__ = ["EarlyExitReward", "EarlyExits", "s_grpo"]


@dataclass(frozen=True, slots=True)
class EarlyExitReward(Shaping):
    """Rewards a correct answer by `decay_base ** rank`; rank 0 is the group's correct answer with the earliest exit.

    Creates the reward. The strategy `EarlyExits` writes the subscore `exit`. S-GRPO, arXiv:2505.07686.
    """

    needs: ClassVar[frozenset[NeededMeasure]] = frozenset({Subscore("exit")})

    decay_base: float = 0.5

    def __call__(self, reward: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " s"]:
        correct, exit_length, g = b.outcome == Outcome.correct, b[Subscore("exit")], b.groups.index
        earlier = (g[:, None] == g) & correct & (exit_length < exit_length[:, None])
        rank = earlier.sum(1).to(reward.dtype)
        return torch.where(correct, self.decay_base**rank, 0.0)


@verdicts_have("exit")
@dataclass(frozen=True, slots=True)
class EarlyExits(Strategy):
    """One answer, and up to `draw.n - 1` copies, cut at random points of the reasoning, that answer at once. S-GRPO.

    The thought ends before the first `thinking_end`; the text `answer_inducer` follows each cut, untrained. Samples are
    in the order of their cuts, the whole answer last, and their subscore `exit` is the rank from 0. arXiv:2505.07686.
    """

    model_dependent_defaults: ClassVar[dict[str, ModelDependentDefault]] = {
        "answer_inducer": ModelDependentDefault(
            "#",
            "Time is limited, stop thinking and start answering.\n</think>\n\n",
            "arXiv:2505.07686, as others quote it",
        ),
        "thinking_end": ModelDependentDefault("#", "</think>", "arXiv:2505.07686, as others quote it"),
    }

    answer_inducer: str = AUTO
    thinking_end: str = AUTO

    async def __call__(self, draw: Draw, sampler: Sampler) -> Rollout:
        assert AUTO not in (self.answer_inducer, self.thinking_end), UNWORDED
        (whole,) = await sampler.sample(draw.prompt.token_ids, 1)
        at = whole.text.find(self.thinking_end)
        thought = sum(end <= (len(whole.text) if at < 0 else at) for end in whole.token_ends)
        ids = sampler.ids(self.answer_inducer, control=True)
        cuts = sorted(sampler.random(0).sample(range(1, thought + 1), min(draw.n - 1, thought)))
        forks = [whole.fork(cut, i).insert(ids, TEMPLATE) for i, cut in enumerate(cuts)]
        exits = await together(sampler.extend(s) for s in forks if len(s.tokens) < s.limit)
        answers = await sampler.verify([*exits, whole if whole.finish else whole.with_finish(Finish.length)])
        return Rollout(draw, tuple(s.add_subscores({"exit": float(i)}) for i, s in enumerate(answers)))


def s_grpo(
    *,
    group_size: int = 8,
    answer_inducer: str = "auto",
    thinking_end: str = "auto",
    decay_base: float = 0.5,
    clip: float = 0.2,
    minibatches: int = 1,
) -> Method:
    """One reasoning, cut at several places to answer early. The earliest correct answer has the highest reward.

    Rewards for the final answer alone can let reasoning models think long after they could answer. S-GRPO cuts one
    reasoning at several places, asks for an answer at each, and gives later correct answers less reward. The mask of
    the inserted text and the numbers are our reading.

    Args:
        group_size: answers from one reasoning: m early ones and the whole one.
        answer_inducer: text after a cut that asks for the answer, not trained; `auto`: by the model.
        thinking_end: text that ends the reasoning; `auto`: by the model.
        decay_base: factor of the reward for each earlier correct answer; the paper's is 1/2.
        clip: distance of both clip bounds from 1.
        minibatches: optimizer steps per iteration.
    """
    return Method(
        group_size=group_size,
        strategy=EarlyExits(answer_inducer, thinking_end),
        shaping=(EarlyExitReward(decay_base),),
        advantage=(centred,),
        objective=Objective(surrogate=Clip(clip, clip), aggregate=token_mean),
        minibatches=minibatches,
    )


REFERENCE = PaperReference(
    paper="S-GRPO: Early Exit via Reinforcement Learning in Reasoning Models",
    arxiv="2505.07686",
    evidence="our reading",
    parent="grpo",
    formula="""\
O_i = thought up to a drawn place, inducer, answer, for m places; O_0 = the whole answer
R_i = 2^-(K_i - 1) if correct, K_i the number of correct answers up to exit i; A_i = R_i - mean(R)""",
    differences=(
        PaperDifference("aggregate", "sequences", "not found", "token_mean: only then do shared prefixes cancel"),
        PaperDifference("std", "none (recalled)", "not found", "none"),
        PaperDifference("mask", "not specified", "not found", "the inducer (inferred)"),
        PaperDifference("places", "distinct, drawn", "not found", "distinct, drawn"),
        PaperDifference(
            "exits, base, clip range", "not obtained", "not found", "7 of a group of 8; 0.5; 0.2 (inferred)"
        ),
        PaperDifference("minibatches", "not obtained", "not found", "1 (inferred)"),
    ),
    proof_tests=(
        "tests/golden/test_methods.py::test_whole_path[s_grpo]",
        "tests/golden/test_rollout.py::test_early_exits",
        "tests/golden/test_rollout.py::test_exit_rewards",
    ),
    expected_effect=ExpectedEffect(
        metric="eval/mean_length",
        direction="down",
        task="wordy_sums",
        parent="grpo",
        min_difference=2.0,
        runs_matched_by="iterations",
        settings=LARGE_GROUPS,
        kept="eval/accuracy",
    ),
)
