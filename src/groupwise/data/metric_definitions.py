"""The table of all metrics of a run: names, meanings, whether higher is better, and bounds for warnings."""

import re
from dataclasses import dataclass, replace
from typing import Literal

from groupwise.data.logprob_gap import GAP, LARGEST_GAP

__all__ = [
    "ACCURACY",
    "ACCURACY_GREEDY",
    "CLIPPED",
    "ENTROPY",
    "ENTROPY_SHARE",
    "ENTROPY_WINDOW",
    "EVAL_LOSS",
    "EVAL_PAIR_ACCURACY",
    "EVAL_TOKEN_ACCURACY",
    "GRAD_NORM",
    "INTERVALS",
    "LOSS",
    "MEAN_LENGTH",
    "METRICS",
    "NO_SIGNAL",
    "PASSED_BYTES",
    "QUESTIONS",
    "REWARD",
    "SCORE",
    "SCORE_GREEDY",
    "SECONDS",
    "SEND_SECONDS",
    "SENT_BYTES",
    "SPEED",
    "STALENESS_MAX",
    "STALENESS_MEAN",
    "TOKENS_PER_SECOND",
    "TRAINED_TOKENS",
    "TRUNCATED",
    "UNVERIFIABLE",
    "UNVERIFIABLE_HELD_OUT",
    "VERSIONS",
    "ZERO_LOSS",
    "Metric",
    "find_metric",
    "metric_bound",
]

LEARNING = "Is it learning?"
SIGNAL = "Is there signal?"
STEP = "Is the step sane?"
COLLAPSE = "Is it collapsing?"
LENGTH = "Is length gaming?"
CONVERSATIONS = "How do conversations go?"
ENGINES = "Are the two engines one policy?"
SPEED = "Is it fast?"
QUESTIONS = (LEARNING, SIGNAL, STEP, COLLAPSE, LENGTH, CONVERSATIONS, ENGINES, SPEED)
"""The questions that metrics answer, in the order of the report and of docs/notation.md."""

ACCURACY, ACCURACY_GREEDY = "eval/accuracy", "eval/accuracy_greedy"
SCORE, SCORE_GREEDY = "eval/score", "eval/score_greedy"
EVAL_LOSS, EVAL_TOKEN_ACCURACY = "eval/loss", "eval/mean_token_accuracy"
EVAL_PAIR_ACCURACY = "eval/rewards/accuracies"
CLIPPED = "clip_ratio/region_mean"
SENT_BYTES, PASSED_BYTES, SEND_SECONDS = "engine/sent_bytes", "engine/passed_bytes", "engine/send_seconds"
REWARD, LOSS, GRAD_NORM, ENTROPY = "reward", "loss", "grad_norm", "entropy"
MEAN_LENGTH, TRAINED_TOKENS = "completions/mean_length", "num_tokens"
NO_SIGNAL, TRUNCATED = "frac_reward_zero_std", "completions/clipped_ratio"
ENTROPY_SHARE, ENTROPY_WINDOW = 0.2, 20
"""Entropy has collapsed if it falls to this fraction of its maximum over this many iterations."""
UNVERIFIABLE, UNVERIFIABLE_HELD_OUT = "outcome/unverifiable", "eval/unverifiable"
SECONDS, TOKENS_PER_SECOND, ZERO_LOSS = "seconds", "tokens_per_second", "loss_zero_by_construction"
STALENESS_MEAN, STALENESS_MAX, VERSIONS = "staleness/mean", "staleness/max", "staleness/versions"
INTERVALS = {
    ACCURACY_GREEDY: ("eval/low_greedy", "eval/high_greedy"),
    ACCURACY: ("eval/low", "eval/high"),
    SCORE_GREEDY: ("eval/score_low_greedy", "eval/score_high_greedy"),
    SCORE: ("eval/score_low", "eval/score_high"),
}
"""For each held-out metric, the metrics of the lower and the upper end of its 95 % interval over problems."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric of a run, or a family of metrics whose names contain a placeholder such as `<cause>`.

    `better` is the direction of improvement, empty if there is none. The report warns about values above
    `warning_threshold`.

    >>> find_metric("rollout/dropped/mixed_outcomes").name
    'rollout/dropped/<cause>'
    """

    name: str
    meaning: str
    better: Literal["", "higher", "lower"] = ""
    warning_threshold: float | None = None
    question: str = ""

    def matches(self, name: str) -> bool:
        """Whether this is the metric `name`. A placeholder matches any text."""
        return re.fullmatch(re.sub("<[^>]+>", ".+", re.escape(self.name)), name) is not None


def _conversation(name: str, meaning: str, better: Literal["", "lower"] = "") -> tuple[Metric, Metric]:
    """Declare a metric of conversations twice: for training, and for the held-out evaluation."""
    metric = Metric(name, meaning, better)
    return metric, replace(metric, name=f"eval/{name}", meaning=f"{meaning}; held-out conversations")


def _stored(name: str, meaning: str, better: Literal["", "higher"] = "") -> tuple[Metric, Metric]:
    """Declare a metric of stored answers twice: for the iteration's, and for those of held-out rows."""
    metric = Metric(name, f"{meaning}; stored answers", better)
    return metric, replace(metric, name=f"eval/{name}", meaning=f"{meaning}; held-out rows")


_BY_QUESTION: dict[str, tuple[Metric, ...]] = {
    "": (Metric("iteration", "finished iterations"), Metric("step", "optimizer steps that changed the weights")),
    LEARNING: (
        Metric(ACCURACY_GREEDY, "share of correct greedy answers to held-out problems", better="higher"),
        Metric(
            ACCURACY, "share of correct answers to held-out problems, with the sampling of training", better="higher"
        ),
        Metric(
            "eval/pass@<k>", "mean over held-out problems of pass@k, from `evaluate.samples` answers", better="higher"
        ),
        Metric(SCORE_GREEDY, "mean score of greedy answers to held-out problems, if verdicts carry one", "higher"),
        Metric(SCORE, "mean score of answers to held-out problems, with the sampling of training", "higher"),
        *(
            Metric(name, f"{end} end of the 95 % interval of `{figure}` over problems")
            for figure, names in INTERVALS.items()
            for end, name in zip(("lower", "upper"), names)
        ),
        Metric(EVAL_LOSS, "loss on the stored answers of held-out rows", better="lower"),
        Metric(
            EVAL_TOKEN_ACCURACY,
            "share of tokens that are the policy's likeliest; wanted answers of held-out rows",
            "higher",
        ),
        *_stored("rewards/accuracies", "share of pairs whose chosen answer has the larger implicit reward", "higher"),
        *_stored("rewards/margins", "mean difference of the implicit rewards of a pair", "higher"),
        *_stored("rewards/chosen", "mean implicit reward of chosen answers"),
        *_stored("rewards/rejected", "mean implicit reward of rejected answers"),
        Metric(REWARD, "mean reward of the trained samples", better="higher"),
        Metric("reward/min", "smallest reward of a trained sample"),
        Metric("reward/max", "largest reward of a trained sample"),
        Metric("outcome/correct", "share of correct samples in the batch", better="higher"),
        Metric("outcome/wrong", "share of wrong samples in the batch", better="lower"),
        Metric("outcome/malformed", "share of malformed samples in the batch", better="lower"),
        Metric(
            UNVERIFIABLE,
            "share of unverifiable samples among all samples with a verdict",
            better="lower",
            warning_threshold=0.01,
        ),
        Metric(UNVERIFIABLE_HELD_OUT, "share of unverifiable answers to held-out problems", better="lower"),
        Metric("outcome/scored", "share of samples with a score alone, neither correct nor wrong"),
        Metric("score/min", "smallest score of the batch's verdicts"),
        Metric("score/mean", "mean score of the batch's verdicts"),
        Metric("score/max", "largest score of the batch's verdicts"),
        Metric("subscores/<name>", "mean of a subscore over the batch"),
        Metric(
            "eval/accuracy/<column>=<value>", "accuracy on the held-out problems with this value (`evaluate.by_column`)"
        ),
        Metric(
            "eval/score/<column>=<value>", "mean score on the held-out problems with this value (`evaluate.by_column`)"
        ),
        Metric("eval/subscores/<name>", "mean of a subscore over held-out answers, without unverifiable ones"),
        Metric("eval/subscores_of_correct/<name>", "mean of a subscore over correct held-out answers"),
    ),
    SIGNAL: (
        Metric(NO_SIGNAL, "share of groups with equal rewards", better="lower", warning_threshold=0.7),
        Metric("groups/all_right", "share of groups whose verified samples are all correct"),
        Metric("groups/all_wrong", "share of groups whose verified samples are all wrong or malformed"),
        Metric("reward_std", "mean over groups of the standard deviation of rewards"),
        Metric("rollout/draws", "draws of the iteration, refills included; each has one rollout"),
        Metric("rollout/selected", "rollouts with a sample that the filter selected"),
        Metric("rollout/dropped", "rollouts without a selected sample"),
        Metric("rollout/dropped/<cause>", "dropped rollouts by cause: a filter, or `unverifiable`"),
        Metric(
            "rollout/missing",
            "prompts that the iteration lacks after all refill rounds",
            better="lower",
            warning_threshold=0,
        ),
        Metric("rollout/rounds", "sampling rounds: 1, and one for each refill"),
        Metric("rollout/answers", "samples with a verdict, selected or not"),
        Metric("rollout/roles/<role>", "samples of a role that the strategy makes, such as `refinement`"),
        Metric(
            "rollout/other_prompt",
            "answers that were sampled from another prompt than the problem's, such as one with a hint or a draft",
        ),
        Metric("rollout/written", "samples whose tokens are training targets, such as a rewritten answer"),
        Metric("rollout/fewest_answers", "answers to the prompt with the fewest"),
        Metric("rollout/most_answers", "answers to the prompt with the most"),
        Metric("curriculum/failures", "with `FailureBuffer`: failed attempts that wait to be drawn as prompts"),
        Metric("curriculum/recoveries", "with `FailureBuffer`: prompts of the iteration that are failed attempts"),
        Metric("curriculum/waiting", "with `ProposedProblemCurriculum`: proposed problems that wait to be drawn"),
        Metric(
            "curriculum/proposed", "with `ProposedProblemCurriculum`: prompts of the iteration that the policy proposed"
        ),
        Metric("curriculum/stored", "with `FreshnessReplay`: answers that may be drawn again"),
        Metric("curriculum/replayed", "with `FreshnessReplay`: draws of the iteration that are stored answers"),
        Metric(
            "curriculum/surveyed",
            "with `PromptSurveyCurriculum`: prompts of the iteration that were tested and not trained",
        ),
        Metric(
            "curriculum/training_starts",
            "with `PromptSurveyCurriculum`: draws of the iteration that continue a beginning of an answer",
        ),
        Metric("curriculum/hinted", "with `HintLevelCurriculum`: prompts of the iteration with a hint"),
        Metric("curriculum/known", "prompts whose pass rate the curriculum knows from earlier answers"),
        Metric("curriculum/<name>", "a number that a curriculum reports (`CurriculumWithMetrics`)"),
        Metric("rollout/unverifiable", "samples with the outcome unverifiable, selected or not", better="lower"),
    ),
    STEP: (
        Metric(LOSS, "mean loss of the steps"),
        Metric(ZERO_LOSS, "true if the loss is 0 for every policy: one step, centred advantages, ratios of exactly 1"),
        Metric(GRAD_NORM, "mean gradient norm of the steps before clipping"),
        Metric("grad_norm_clipped", "mean gradient norm of the steps after clipping"),
        Metric("clip_ratio/low_mean", "share of tokens clipped at the low side"),
        Metric("clip_ratio/high_mean", "share of tokens clipped at the high side"),
        Metric(CLIPPED, "share of clipped tokens"),
        Metric("ratio/min", "smallest ratio of the surrogate over tokens"),
        Metric("ratio/p01", "1 % percentile of the ratio"),
        Metric("ratio/p50", "median of the ratio"),
        Metric("ratio/p99", "99 % percentile of the ratio"),
        Metric("ratio/mean", "mean ratio"),
        Metric("ratio/max", "largest ratio"),
        Metric("advantage/min", "smallest advantage over tokens"),
        Metric("advantage/mean", "mean advantage over tokens"),
        Metric("advantage/max", "largest advantage over tokens"),
        Metric("advantage/std", "standard deviation of advantages over tokens"),
        Metric("value/<model>/loss", "mean loss of a value model over the steps"),
        Metric(
            "value/<model>/explained_variance",
            "share of the variance of returns over tokens that the values before the update explain; below 0 they are "
            "worse than a constant",
            better="higher",
        ),
        Metric("value/<model>/mean", "mean value over tokens, before the update"),
        Metric("value/<model>/return", "mean over tokens of the return that the value model learns"),
        Metric("value/<model>/grad_norm", "mean gradient norm of a value model before clipping"),
        Metric("routing/changed", "share of router choices that are not among the recorded ones"),
        Metric("routing/balance", "the balance loss without its coefficient; at even load the experts per token"),
        Metric(
            "method/<component>/<value>",
            "a value that a component of the method reports, see `notes` in add-a-method.md",
        ),
        Metric("state/<name>", "a number of a state of the method, before the iteration's update"),
        Metric("learning_rate", "learning rate of the last step"),
        Metric(
            "steps_skipped",
            "steps without a finite gradient or without a trained token",
            better="lower",
            warning_threshold=0,
        ),
    ),
    COLLAPSE: (
        Metric(ENTROPY, "mean entropy of the policy over tokens, in nats"),
        Metric("kl", "mean k3 estimate of the KL divergence from the reference model, in nats per token"),
        Metric("kl/k1", "mean k1 estimate of the same; may be negative"),
        Metric("kl/<model>/k1", "`kl/k1` from another model"),
        Metric("kl/<model>", "`kl` from another model"),
    ),
    LENGTH: (
        Metric(MEAN_LENGTH, "mean length of the batch's samples in tokens"),
        Metric("completions/min_length", "length of the shortest sample in tokens"),
        Metric("completions/max_length", "length of the longest sample in tokens"),
        Metric("completions/mean_length_correct", "mean length of correct samples in tokens"),
        Metric("completions/mean_length_wrong", "mean length of wrong samples in tokens"),
        Metric("completions/mean_length_malformed", "mean length of malformed samples in tokens"),
        Metric("completions/mean_length_scored", "mean length of scored samples in tokens"),
        Metric("completions/mean_length_unverifiable", "mean length of unverifiable samples in tokens"),
        Metric(TRUNCATED, "share of samples that end at the length limit", better="lower", warning_threshold=0.3),
        Metric("eval/mean_length", "mean length of held-out answers in tokens"),
        Metric("eval/truncated", "share of held-out answers that end at the length limit", better="lower"),
    ),
    CONVERSATIONS: (  # of all samples of an iteration, selected or not
        *_conversation("turns/mean", "mean number of model turns"),
        *_conversation("turns/max", "largest number of model turns"),
        *_conversation(
            "turns/environment_tokens",
            "share of the tokens that the model did not generate: the environment's and the template's",
        ),
        *_conversation(
            "counts/failed",
            "share of conversations that the environment aborted: it raised, timed out, or returned an "
            "invalid observation",
            better="lower",
        ),
        *_conversation("counts/calls", "tool calls per conversation"),
        *_conversation(
            "counts/malformed",
            "calls per conversation that reached no tool: unreadable, an unknown tool, wrong arguments",
            better="lower",
        ),
        *_conversation("counts/errors", "calls per conversation whose tool failed", better="lower"),
        *_conversation("counts/requests", "chat requests of an agent per conversation"),
        *_conversation("episodes/samples", "samples per run of an agent"),
        *_conversation("episodes/requests", "chat requests per run of an agent"),
        *_conversation("episodes/tokens", "sampled tokens per run of an agent"),
        *_conversation("counts/<name>", "a count of the environment or of the strategy, per conversation"),
    ),
    ENGINES: (  # the bound on the gap is `engine.max_logprob_diff` of the recipe
        Metric(
            f"{GAP}/mean", "mean difference between the engine's and the learner's log-prob of a token", better="lower"
        ),
        Metric(LARGEST_GAP, "largest such difference; the run stops above `engine.max_logprob_diff`", better="lower"),
        Metric(
            STALENESS_MEAN, "with `cluster.max_staleness`: mean age of the sampled tokens in versions of the weights"
        ),
        Metric(
            STALENESS_MAX,
            "with `cluster.max_staleness`: largest such age; it is at most that number unless old samples are replayed",
        ),
        Metric(VERSIONS, "with `cluster.max_staleness`: versions of the weights that sampled the iteration's tokens"),
    ),
    SPEED: (
        Metric(TRAINED_TOKENS, "tokens of the iteration's answers; of stored answers the trained ones"),
        Metric(TOKENS_PER_SECOND, "sampled tokens per second of the whole iteration", better="higher"),
        Metric(SECONDS, "wall-clock seconds of the iteration", better="lower"),
        Metric(
            f"{SECONDS}/sample", "seconds in which the learner waits for its own iteration's rollouts", better="lower"
        ),
        Metric(
            f"{SECONDS}/sleep",
            "with `engine.placement` colocated: seconds until the engines have freed their memory for the learner",
            better="lower",
        ),
        Metric(f"{SECONDS}/learn", "seconds of the learner's work", better="lower"),
        Metric(f"{SECONDS}/publish", "seconds until the engines have the new weights", better="lower"),
        Metric(f"{SECONDS}/evaluate", "seconds of the evaluation", better="lower"),
        Metric(
            f"{SECONDS}/wait",
            "with `cluster.max_staleness` 1: seconds in which the learner waits for the next iteration's rollouts",
            better="lower",
        ),
        Metric(
            f"{SECONDS}/engine_idle", "with `cluster.max_staleness`: seconds in which the engines wait", better="lower"
        ),
        Metric("engine/<index>/rows", "mean number of requests in an engine, while any engine has one"),
        Metric("engine/<index>/passes", "with `Speculative`: forward passes that generated tokens"),
        Metric(
            "engine/<index>/accepted",
            "with `Speculative`: generated tokens that a draft proposed; each saved its answer one pass",
            better="higher",
        ),
        Metric("engine/restarts", "engines in other processes that were lost and started again", better="lower"),
        Metric(SENT_BYTES, "bytes of weights sent to engines on other hosts, once to each host (NCCL: engine)"),
        Metric(PASSED_BYTES, "those of them that a host of engines sent to another one; the trainer sent the others"),
        Metric(SEND_SECONDS, "seconds of sending them, added over the hosts (NCCL: engines)", better="lower"),
        Metric("memory_mib", "largest resident memory of the process so far, in MiB", better="lower"),
        Metric("clock", "local time at the end of the iteration"),
    ),
}

METRICS = {
    metric.name: replace(metric, question=question) for question, metrics in _BY_QUESTION.items() for metric in metrics
}
"""All metrics that a run writes, by name."""


def find_metric(name: str) -> Metric | None:
    """The declared metric `name`; None if there is none.

    >>> find_metric("kl").meaning, find_metric("no/such")
    ('mean k3 estimate of the KL divergence from the reference model, in nats per token', None)
    """
    return METRICS.get(name) or next((metric for metric in METRICS.values() if metric.matches(name)), None)


def metric_bound(name: str) -> float:
    """The warning bound of a metric. KeyError for an undeclared metric, ValueError for one without a bound."""
    if (bound := METRICS[name].warning_threshold) is None:
        raise ValueError(f"the metric {name} has no warning bound")
    return bound
