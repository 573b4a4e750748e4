"""The studies of the atlas: the stated effect of each published method, and ablations that taught something."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from groupwise.certificates.studies import MORE_SEEDS, SEEDS, StudyRun, StudyRunResult, compare, trials_of
from groupwise.methods import ExpectedEffect, published, reference_of


@dataclass(frozen=True, slots=True)
class Study:
    """An effect of a method. `lesson` says what an ablation taught; it is empty for a stated effect."""

    method: str
    effect: ExpectedEffect
    lesson: str = ""


NO_KL = "method.objective.penalties = []"
COORDINATE = (
    "method.denoise.steps = 10",
    'method.filter = "everything"',
    "method.objective.surrogate.low = 2e-6",
    "method.objective.surrogate.high = 2e-6",
    'method.shaping = [{kind = "SubscoreReward", subscore = "alignment"}]',
)
"""A reward that can be hacked: a coordinate of the point, which grows with the distance from the centre."""
PAIRS = (
    'method.shaping = [{kind = "SubscoreReward", subscore = "wins"}]',
    'method.strategy.judge = {kind = "HigherScore", subscore = "alignment", tie_margin = 0.5}',
)
TREE = ("method.denoise.steps = 20", "sampling.max_tokens = 20", "method.group_size = 16")
ABLATIONS = (
    Study(
        "s_grpo",
        ExpectedEffect(
            metric="eval/accuracy_greedy",
            direction="down",
            task="wordy_sums",
            parent="s_grpo",
            min_difference=0.05,
            runs_matched_by="steps",
            settings=("iterations = 10", "evaluate.problems = 64", NO_KL),
            own_settings=("method.objective.aggregate = sequence_mean",),
        ),
        "The shared prefix of the exits cancels under token_mean only, so a mean over sequences should lose accuracy.",
    ),
    Study(
        "graph_grpo",
        ExpectedEffect(
            metric="eval/accuracy",
            direction="down",
            task="edges",
            parent="graph_grpo",
            min_difference=0.03,
            runs_matched_by="steps",
            own_settings=("method.credit.action_text = 1",),
        ),
        "With credit for present edges alone, no gradient holds the absent ones, so graphs should collapse.",
    ),
    Study(
        "branch_grpo",
        ExpectedEffect(
            metric="eval/accuracy_greedy",
            direction="down",
            task="rings",
            parent="branch_grpo",
            min_difference=0.05,
            runs_matched_by="tokens",
            settings=TREE,
            own_settings=("method.strategy = Independent",),
        ),
        "If the tree is the cause, independent answers with the same noise and clip range should lose accuracy.",
    ),
    Study(
        "branch_grpo",
        ExpectedEffect(
            metric="eval/accuracy_greedy",
            direction="down",
            task="rings",
            parent="branch_grpo",
            min_difference=0.05,
            runs_matched_by="tokens",
            settings=TREE,
            own_settings=("method.strategy.noise_scale = 1.0",),
        ),
        "If the wider noise at splits is the cause, a tree without it should lose accuracy.",
    ),
    Study(
        "pref_grpo",
        ExpectedEffect(
            metric="eval/accuracy_greedy",
            direction="up",
            task="rings",
            parent="grpo_guard",
            min_difference=0.1,
            runs_matched_by="steps",
            settings=("iterations = 40", *COORDINATE),
            own_settings=PAIRS,
        ),
        "If pairs prevent the hack of a reward and not only delay it, accuracy should be higher after 40 iterations, "
        "too.",
    ),
)


def studies(names: Iterable[str] = ()) -> list[Study]:
    """The studies of some published methods, or of all, in display order; ablations come last."""
    chosen = set(names) or {method.__name__ for method in published}
    effects = ((method.__name__, reference_of(method).expected_effect) for method in published)
    stated = [Study(name, effect) for name, effect in effects if effect is not None and name in chosen]
    return [*stated, *(study for study in ABLATIONS if study.method in chosen)]


def unread_trials(results: Mapping[StudyRun, StudyRunResult]) -> list[StudyRun]:
    """The stored runs that no study reads, with any seed: a study's settings have changed since, or it is gone."""
    seeds = (*SEEDS, *MORE_SEEDS)
    read = {trial for study in studies() for seed in seeds for trial in trials_of(study.method, study.effect, seed)}
    return [trial for trial in results if trial not in read]


def needed_trials(chosen: Iterable[Study], results: Mapping[StudyRun, StudyRunResult]) -> dict[StudyRun, set[str]]:
    """The runs of studies in order, each once, with the metrics that are read from it.

    A study has the first seeds, and the further ones if these leave its effect open.
    """
    needed: dict[StudyRun, set[str]] = {}
    for study in chosen:
        for seed in seeds_of(study, results):
            for trial in reversed(trials_of(study.method, study.effect, seed)):
                needed.setdefault(trial, set()).add(study.effect.metric)
    return needed


def seeds_of(study: Study, results: Mapping[StudyRun, StudyRunResult]) -> Iterator[int]:
    """The seeds that a study needs, as far as its results say."""
    yield from SEEDS
    comparison = compare(study.method, study.effect, results)
    if comparison is not None and (comparison.is_open or len(comparison.differences) > len(SEEDS)):
        yield from MORE_SEEDS
