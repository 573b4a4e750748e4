"""The setting of rollouts: engine, verifier, environment, deadlines and length limit, for all prompts of a run."""

from collections.abc import Callable
from dataclasses import dataclass

from groupwise.data import Engine, Environment, EnvironmentReplyLog, Ids, Sampling, Verifier
from groupwise.models import Tokenizer
from groupwise.rollout.agents.runner import AgentRunner

__all__ = ["RolloutSetting"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RolloutSetting:
    """Engine, verifier, environment and limits. Training and evaluation differ in `sampling` and `denoising_steps`.

    `rollout_deadline` bounds a whole rollout, from its start to its last verdict. `verdict_deadline` bounds each
    verdict and each call through `Sampler.outside`. Both are in seconds. `create_environment` creates an environment
    for each sample, if the strategy uses one; `agent_runner` runs the recipe's agent. `environment_reply_log` records
    observations and episodes. `observation_frame_ids` holds the tokens that the chat template writes before and after
    an observation. `encode_prompt` encodes prompts that a strategy writes; it gets a draw's `pictures`.
    `max_positions` is the most tokens of a sequence of the model; None for no bound. `denoising_steps` is the number of
    denoising steps of a flow policy, if not its own. Scored answers are correct from `correct_threshold` on; None if
    scores are not outcomes.
    """

    engine: Engine
    verifier: Verifier
    tokenizer: Tokenizer
    sampling: Sampling
    seed: int
    rollout_deadline: float = 600.0
    verdict_deadline: float = 60.0
    create_environment: Callable[[], Environment] | None = None
    agent_runner: AgentRunner | None = None
    environment_reply_log: EnvironmentReplyLog | None = None
    observation_frame_ids: tuple[Ids, Ids] = ((), ())
    encode_prompt: Callable[..., Ids] | None = None
    max_positions: int | None = None
    correct_threshold: float | None = None
    denoising_steps: int | None = None
