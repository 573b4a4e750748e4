"""ReST-GRPO: the part of ReST-RL that trains the policy."""

from groupwise.advantages import Standardised
from groupwise.methods.method import Method
from groupwise.methods.reference import Difference, Effect, Reference
from groupwise.objective import Clip, Objective, token_mean
from groupwise.rewards import AddFinished, Score
from groupwise.rollout import Survey, Surveyed

__all__ = ["rest_rl"]


def rest_rl(
    *,
    group_size: int = 8,
    samples: int = 5,
    spread: float = 0.05,
    best: float = 0.9,
    share: float = 0.5,
    decay: float = 0.95,
    line: str = "\n",
    finished: float = 1e-3,
    clip: float = 0.2,
    minibatches: int = 1,
) -> Method:
    """GRPO on prompts whose answers differ in score, and on beginnings of their best answers (ReST-GRPO)."""
    return Method(
        group_size=group_size,
        curriculum=Survey(samples, spread, best, share, decay, line),
        strategy=Surveyed(),
        refill=1,
        shaping=(Score(), AddFinished(finished)),
        advantage=(Standardised(eps=1e-4),),
        objective=Objective(surrogate=Clip(clip, clip), aggregate=token_mean),
        minibatches=minibatches,
    )


REFERENCE = Reference(
    paper="ReST-RL: Achieving Accurate Code Reasoning of LLMs with Optimized Self-Training and Decoding",
    arxiv="2508.19576",
    label="code read",
    code="THUDM/ReST-RL@b86959b4981601ecfa6e31b7cac7f004e9cef014:experiment/collect_grpo_data.py",
    parent="grpo",
    formula="""\
n answers to q; q is left out if std(r_1, ..., r_n) < 0.05
if max r >= 0.9: the first k lines of the best answer, for ceil(m / 2) of its m lines, P(k) proportional to 0.95^(k-1)
GRPO's objective from q and from q with such a beginning; R = r + 0.001 [finished]""",
    differences=(
        Difference("survey", "of the whole data, before training", "the same", "of the prompts of each iteration"),
        Difference(
            "prompts of an iteration",
            "of the surveyed set",
            "the same",
            "what its survey finds: few or none where all are solved or failed",
        ),
        Difference("answers of the survey", "not read", "5 in the README", "5; not trained"),
        Difference("std, best reward", "0.05; 0.9", "0.05; 0.9", "0.05; 0.9"),
        Difference("beginnings, decay", "0.5; 0.95", "0.5; 0.95, with replacement", "0.5; 0.95, with replacement"),
        Difference("whole answer as a beginning", "not read", "possible", "no: nothing is left to write"),
        Difference("end of a line", "a line break", "a line break", "line; the tokens up to one that contains it"),
        Difference("trailing text", "not read", "-1e-6 per character", "none: generation ends at the stop"),
        Difference("finished answer", "not read", "0.001", "0.001"),
        Difference("KL, aggregate, eps", "not read", "TRL 0.18.2: none, token mean, 1e-4 (recalled)", "the same"),
        Difference("search with a value model", "VM-MCTS at test time", "released", "not offered"),
        Difference("group size, clip range, minibatches", "8; not read", "8; TRL: 0.2", "8, 0.2 and 1"),
    ),
    proofs=(
        "tests/golden/test_methods.py::test_whole_path[rest_rl]",
        "tests/golden/test_memory.py::test_a_survey_finds_spread_prompts",
        "tests/golden/test_memory.py::test_beginnings_are_continued_and_not_trained",
    ),
    effect=Effect(
        metric="frac_reward_zero_std",
        direction="down",
        task="hinted_sums",
        parent="grpo",
        least=0.1,
        matched="steps",
        settings=("method.objective.penalties = []",),
        own_settings=("method.curriculum.line = ;",),
    ),
    finding="On hinted_sums the beginning of a correct chain nearly decides its end: 36 of 74 groups that continued "
    "one were all right, and so without signal (one seed). Of 47 groups of whole prompts, which the survey "
    "had found mixed with five answers, 15 were all wrong. Accuracy ends at 0.41, that of GRPO at 0.69. The "
    "paper's lines are lines of code.",
)
