"""FreshPER: stored answers are trained again, by their reward and their age."""

from groupwise.advantages import WhitenedTokens
from groupwise.methods.method import Method
from groupwise.methods.reference import Difference, Effect, Reference
from groupwise.objective import Clip, DualClip, Objective, ScaledByPart
from groupwise.rollout import FreshReplay, Replayed

__all__ = ["freshness_per"]


def freshness_per(
    *,
    group_size: int = 1,
    replays: int = 1,
    capacity: int = 4096,
    life: float = 500.0,
    alpha: float = 0.6,
    beta: float = 0.4,
    centre: float = 0.0,
    clip: float = 0.2,
    dual: bool = False,
    minibatches: int = 1,
) -> Method:
    """REINFORCE++ without KL; iterations of new answers take turns with stored ones, drawn by score and freshness."""
    surrogate = DualClip(clip, clip, cap=1 + 2 * clip) if dual else Clip(clip, clip)
    return Method(
        group_size=group_size,
        curriculum=FreshReplay(replays, capacity, life, alpha, beta, centre),
        strategy=Replayed(),
        credit=WhitenedTokens(ddof=0),
        objective=Objective(surrogate=surrogate, aggregate=ScaledByPart("replay")),
        minibatches=minibatches,
        proximal="sampled",
    )


REFERENCE = Reference(
    paper="Freshness-Aware Prioritized Experience Replay for LLM/VLM Reinforcement Learning",
    arxiv="2604.16918",
    label="code read",
    code=(
        "Vision-CAIR/Freshness-Aware-PER@dbb91df453bdb2f2d70e92cc23582cfac0d39b66:"
        "roll/agentic/replay_buffer/priority_functions.py"
    ),
    parent="reinforce_pp",
    formula="""\
e_i = max(p_i exp(-age_i / tau), 1e-8), p_i = |R_i| + 1e-6; P(i) = e_i^alpha / sum_j e_j^alpha
v_i = (N P(i))^-beta / max_j (N P(j))^-beta
J = mean over tokens of v_i min[ r_t A_t, clip(r_t, 1 - eps, 1 + eps) A_t ],  r_t = pi / mu, mu as stored""",
    differences=(
        Difference("tau, alpha", "500 (1000 for one task); 0.6", "configured; 0.6", "500; 0.6"),
        Difference("beta", "0.4, annealed to 1", "0.4, constant", "0.4, constant"),
        Difference("replays", "K per iteration, after its update", "1", "1: a separate iteration"),
        Difference("capacity", "50,000", "100,000", "4096: checkpoints have all stored answers"),
        Difference("age", "in training steps", "in training steps", "in iterations of new answers"),
        Difference("mu", "of the behaviour policy", "of the learner at that time", "of the engine"),
        Difference(
            "reward in the priority",
            "of the trajectory",
            "the last token's score",
            "the verdict's score, less centre = 0",
        ),
        Difference(
            "new answers", "first with the largest priority", "the same, until the refresh", "their own priority"
        ),
        Difference(
            "backbone", "REINFORCE++", "whitened, clipped at 0.2", "REINFORCE++ without KL, per answer; not clipped"
        ),
        Difference("dual clip", "not read", "optional, 1 + 2 clip", "dual = true"),
        Difference("group size, clip range, minibatches", "not read", "configured", "1, 0.2 and 1"),
    ),
    proofs=(
        "tests/golden/test_methods.py::test_whole_path[freshness_per]",
        "tests/golden/test_memory.py::test_priorities_fall_with_age",
        "tests/golden/test_memory.py::test_stored_answers_are_drawn_again",
    ),
    effect=Effect(
        metric="eval/accuracy",
        direction="up",
        task="hinted_sums",
        parent="reinforce_pp",
        least=0.02,
        matched="tokens",
        settings=("prompts = 64", "method.minibatches = 1"),
        own_settings=("method.curriculum.centre = 0.5",),
    ),
    finding="With scores of 0 and 1 and the paper's priority, all replayed answers were correct on hinted_sums (one "
    "seed), so their whitened advantages are 0. With curriculum.centre = 0.5, right and wrong answers are drawn alike. "
    "The effect's own setting was chosen after this run, before the runs that measure the effect.",
)
