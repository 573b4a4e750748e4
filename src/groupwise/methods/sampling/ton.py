"""TON: Think or Not."""

from groupwise.advantages import Standardised
from groupwise.learner import InitialPolicy
from groupwise.methods.effect_settings import LARGE_GROUPS
from groupwise.methods.method import Method
from groupwise.methods.reference import ExpectedEffect, PaperDifference, PaperReference
from groupwise.objective import KL, Objective, policy_gradient, sequence_mean
from groupwise.rewards import AddSubscore, AddWellFormed, Correctness

__all__ = ["ton"]


def ton(*, group_size: int = 8, form: str = "", kl: float = 0.04) -> Method:
    """GRPO with a reward for the form of an answer, after a warm start in which half of the thoughts were left out.

    GRPO on vision-language models can make every answer contain a full thought, also for easy inputs. TON first learns
    from demonstrations in which some thoughts are empty, so that GRPO can then learn when to skip the thought. The
    recipe sets this warm start, and the KL weight is our reading.

    Args:
        group_size: answers per prompt.
        form: subscore of the verdict that rewards the form; empty rewards a readable final answer.
        kl: weight of the KL penalty to the initial policy, beta.
    """
    return Method(
        group_size=group_size,
        shaping=(Correctness(), AddSubscore(form) if form else AddWellFormed()),
        advantage=(Standardised(eps=1e-4),),
        models=(("reference", InitialPolicy()),),
        objective=Objective(surrogate=policy_gradient, penalties=(KL(kl),), aggregate=sequence_mean),
    )


REFERENCE = PaperReference(
    paper="Think or Not? Selective Reasoning via Reinforcement Learning for Vision-Language Models",
    arxiv="2505.16854",
    evidence="code read",
    code="kokolerk/TON@22102c281b004cd1c286c368c578ced5b37c4572:src/r1-v/src/open_r1/trainer/grpo_trainer.py",
    parent="grpo",
    formula="""\
warm start on (x, T, y): the target is T y with probability 1 - d, else y with an empty thought; drawn once per pair
J = mean_i 1/|o_i| sum_t { exp(log pi - sg[log pi]) A_i - beta k3_t },  A_i = (r_i - mean(r)) / (std(r) + 1e-4)
r_i = 1[correct] + 1[form]; an empty thought has the form""",
    differences=(
        PaperDifference("warm start", "supervised", "in another framework", "the recipe's warm_start.drop_thoughts"),
        PaperDifference("share d of dropped thoughts", "0.5 and others", "0.5", "the recipe's: mixed_sums has 0.5"),
        PaperDifference(
            "thoughts of the demonstrations", "written by the base model", "data of the user", "of the user"
        ),
        PaperDifference(
            "form", "tags of thought and answer", "a regular expression", "an answer was found; form = PART"
        ),
        PaperDifference("correctness", "by task: number, point on a screen", "so", "the verifier's outcome"),
        PaperDifference(
            "value of the objective", "with the ratio 1", "with the ratio 1", "A log pi: the same gradient"
        ),
        PaperDifference("length or skipping", "no term", "no term", "no term"),
        PaperDifference("KL coefficient", "not obtained", "the trainer's default", "0.04 (inferred)"),
        PaperDifference("group size, updates per sampling", "8; 1", "8; 1", "8; 1"),
    ),
    proof_tests=(
        "tests/golden/test_methods.py::test_whole_path[ton]",
        "tests/golden/test_budgets.py::test_ton_advantages",
        "tests/tasks/test_dropped_thoughts.py::test_each_thought_is_dropped_once_for_all",
    ),
    expected_effect=ExpectedEffect(
        metric="completions/mean_length",
        direction="down",
        task="wordy_sums",
        parent="grpo",
        min_difference=2.0,
        runs_matched_by="iterations",
        settings=(*LARGE_GROUPS, "warm_start.drop_thoughts = 0.5", 'warm_start.thought_marks = ["", "#"]'),
        kept="eval/accuracy",
    ),
)
