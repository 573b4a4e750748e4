"""ReMax: the greedy answer's reward as baseline."""

from dataclasses import dataclass, replace
from typing import ClassVar

from groupwise.advantages import AgainstSubscore
from groupwise.data import Draw, Role, Rollout, Sampler, Strategy, VerdictContents
from groupwise.methods.method import Method
from groupwise.methods.reference import ExpectedEffect, PaperDifference, PaperReference
from groupwise.objective import Objective, policy_gradient, sequence_sum
from groupwise.rollout.gather_coroutines import together

__all__ = ["GreedyAnswerStrategy", "remax"]


@dataclass(frozen=True, slots=True)
class GreedyAnswerStrategy(Strategy):
    """Samples independent answers and a greedy one. The field `baseline_subscore` names the one with its score.

    The greedy answer has the role `greedy` and is not trained. ReMax, arXiv:2310.10505. An unverifiable greedy answer
    has the score 0.
    """

    roles: ClassVar[tuple[Role, ...]] = (Role("greedy", "for each prompt"),)

    baseline_subscore: str = "baseline"

    @property
    def contents(self) -> VerdictContents:
        """The part that it adds to verdicts."""
        return VerdictContents((self.baseline_subscore,))

    async def __call__(self, draw: Draw, sampler: Sampler) -> Rollout:
        greedy = replace(sampler.sampling, temperature=0.0)
        starts = sampler.start(draw.prompt.token_ids, draw.n)
        (start,) = sampler.start(draw.prompt.token_ids, role="greedy")
        requests = (*map(sampler.extend, starts), sampler.extend(start, sampling=greedy))
        *answers, best = await sampler.verify(await together(requests))
        assert best.verdict is not None, "verify returns a verdict for each sample"
        baseline = {self.baseline_subscore: best.verdict.value}
        return Rollout(draw, (*(answer.add_subscores(baseline) for answer in answers), best))


def remax(*, group_size: int = 1) -> Method:
    """One answer per prompt, with the reward of the greedy answer as baseline. One step, without a ratio.

    PPO's critic costs memory and time, and REINFORCE without a good baseline has a high variance. The reward of the
    greedy answer to the same prompt is a baseline that needs no training.

    Args:
        group_size: sampled answers per prompt beside the greedy one, at least 1.
    """
    return Method(
        group_size=group_size,
        strategy=GreedyAnswerStrategy("baseline"),
        advantage=(AgainstSubscore("baseline"),),
        objective=Objective(surrogate=policy_gradient, aggregate=sequence_sum),
    )


REFERENCE = PaperReference(
    paper=(
        "ReMax: A Simple, Effective, and Efficient Reinforcement Learning Method for Aligning Large Language Models"
    ),
    arxiv="2310.10505",
    evidence="code read",
    code="volcengine/verl@b178a3cd56f58b2d502255daba591e92833930a7:verl/trainer/ppo/core_algos.py",
    parent="reinforce",
    formula="""\
grad J = 1/N sum_i (R(x, y_i) - R(x, y_greedy)) grad log pi(y_i | x)""",
    differences=(
        PaperDifference("KL", "in the reward", "verl: optional", "none; SequenceKLInReward in shaping"),
        PaperDifference("aggregate", "sum over tokens", "verl: PPO's loss over tokens", "sequence_sum"),
        PaperDifference("group size", "1", "1", "1"),
    ),
    proof_tests=(
        "tests/golden/test_methods.py::test_whole_path[remax]",
        "tests/golden/test_start.py::test_greedy_baseline",
    ),
    expected_effect=ExpectedEffect(
        metric="eval/accuracy_greedy",
        direction="up",
        task="mixed_sums",
        parent="reinforce",
        min_difference=0.02,
        runs_matched_by="iterations",
        settings=("prompts = 64", "method.group_size = 1", "method.minibatches = 1"),
    ),
)
