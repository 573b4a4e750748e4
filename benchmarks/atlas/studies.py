"""The studies of the atlas: the stated effect of each published method, ablations, and effects as stated before."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from groupwise import methods
from groupwise.certificates.effect_comparisons import compare
from groupwise.certificates.effect_plans import FIRST_SEED, Results, pair_of, plan_of, sides_of, tuning_metric
from groupwise.certificates.studies import StudyRun
from groupwise.evaluation.seed_verdicts import LOOKS
from groupwise.methods import ExpectedEffect, published, reference_of
from groupwise.methods.effect_settings import LARGE_GROUPS


@dataclass(frozen=True, slots=True)
class Study:
    """An effect of a method. `lesson` says why there is an ablation, or an earlier statement; else it is empty."""

    method: str
    effect: ExpectedEffect
    lesson: str = ""


FIRST_METHODS = (
    "grpo", "dr_grpo", "dapo", "gspo", "cispo", "rloo", "reinforce_pp", "ppo", "gmpo", "sapo",
    "train_inference_mismatch", "knapsack_rl", "scaf_grpo", "flow_grpo", "diffusion_nft",
)  # fmt: skip
"""The methods with the whole plan, in the order in which they are measured, before all others."""
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
LEAVE_ONE_OUT = {
    "clip-higher": ("method.objective.surrogate.high = 0.2",),
    "dynamic sampling": ("method.filter = everything", "method.max_refills = 0"),
    "the token mean": ("method.objective.aggregate = sequence_mean",),
    "the punishment of overlong answers": (
        'method.shaping = [{kind = "Correctness", correct_reward = 1.0, wrong_reward = -1.0}]',
    ),
}
"""DAPO's techniques, and what undoes each."""
SHORT_BUDGET = "sampling.max_tokens = 30"
"""A budget that cuts answers of hinted_sums with all their steps, so that the punishment acts."""
TREE = ("method.denoise.steps = 20", "sampling.max_tokens = 20", "method.group_size = 16")


def without(technique: str) -> Study:
    """DAPO without one of its techniques: each is a part of the method where its absence costs accuracy."""
    budget = (SHORT_BUDGET,) if "overlong" in technique else ()
    effect = ExpectedEffect(
        metric="eval/accuracy",
        direction="down",
        task="hinted_sums",
        parent="dapo",
        min_difference=0.03,
        runs_matched_by="tokens",
        settings=("method.minibatches = 8", "method.epochs = 2", NO_KL, *budget),
        own_settings=LEAVE_ONE_OUT[technique],
        acted="completions/clipped_ratio" if budget else "",
        acted_least=0.2 if budget else 0.0,
    )
    return Study("dapo", effect, f"If {technique} is a part of DAPO's gain, accuracy is lower without it.")


ABLATIONS = (
    *map(without, LEAVE_ONE_OUT),
    Study(
        "s_grpo",
        ExpectedEffect(
            metric="eval/accuracy_greedy",
            direction="down",
            task="wordy_sums",
            parent="s_grpo",
            min_difference=0.05,
            runs_matched_by="iterations",
            settings=(*LARGE_GROUPS, "evaluate.problems = 64"),
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
            runs_matched_by="iterations",
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
            own_settings=("method.strategy = Independent", 'method.trained_roles = ["answer"]'),
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
            runs_matched_by="iterations",
            settings=("iterations = 40", *COORDINATE),
            own_settings=PAIRS,
            acted="eval/accuracy_greedy",
            acted_least=0.05,
            acted_in="parent",
        ),
        "If pairs prevent the hack of a reward and not only delay it, accuracy should be higher after 40 iterations, "
        "too.",
    ),
)


def restated(method: str, why: str, **then: Any) -> Study:
    """An effect as it was stated before it was stated again, for other fresh seeds."""
    effect = reference_of(getattr(methods, method)).expected_effect
    assert effect is not None
    return Study(method, replace(effect, first_seed=FIRST_SEED, **then), why)


RESTATED = (
    *(
        restated(method, "Greedy accuracy leaves little room, sampled accuracy more.", metric="eval/accuracy_greedy")
        for method in ("ppo", "grpo", "rloo", "reinforce_pp")
    ),
    restated(
        "dagrpo",
        "It holds by construction: a written solution joins each group that is all wrong.",
        metric="frac_reward_zero_std",
        direction="down",
        min_difference=0.1,
        acted="",
        acted_least=0.0,
        acted_in="method",
    ),
)


def studies(names: Iterable[str] = ()) -> list[Study]:
    """The studies of some published methods, or of all, in display order; then ablations, then earlier statements."""
    chosen = set(names) or {method.__name__ for method in published}
    effects = ((method.__name__, reference_of(method).expected_effect) for method in published)
    stated = [Study(name, effect) for name, effect in effects if effect is not None and name in chosen]
    return [*stated, *(study for study in (*ABLATIONS, *RESTATED) if study.method in chosen)]


def unread_trials(results: Results) -> list[StudyRun]:
    """The stored runs that no study reads: its settings have changed since, or it is gone."""
    read = {run for study in studies() for run in [*grid_of(study, results), *fresh_runs(study, results)]}
    return [trial for trial in results if trial not in read]


def fresh_runs(study: Study, results: Results) -> Iterator[StudyRun]:
    """The runs of both sides on fresh seeds at every choice of their grids, also at those that are not the best now."""
    bases, first = plan_of(study.effect).bases, study.effect.first_seed
    for side in sides_of(study.method, study.effect):
        for settings in side.choices(results):
            yield from (side.run(seed, settings, seed % bases) for seed in range(first, first + max(LOOKS)))


def needed_trials(chosen: Iterable[Study], results: Results, first_seed: int | None = None) -> dict[StudyRun, set[str]]:
    """The runs of studies in order, each once, with the metrics that are read from it, as far as the results say.

    First the grids of both sides. Then fresh seeds up to the first look, and up to a further one while the effect is
    undecided. The figure of the mechanism is read from one side.
    """
    needed: dict[StudyRun, set[str]] = {}
    for study in chosen:
        effect = study.effect
        for run in grid_of(study, results):
            needed.setdefault(run, set()).add(tuning_metric(effect))
        figures = [{effect.acted} if effect.acted_in == side else set() for side in ("parent", "method")]
        read = {effect.metric, effect.kept, tuning_metric(effect)}
        for pair in compared_pairs(study, results, seeds_due(study, results, first_seed), first_seed):
            for run, figure in zip(reversed(pair), figures, strict=True):
                needed.setdefault(run, set()).update((read | figure) - {""})
    return needed


def grid_of(study: Study, results: Results) -> list[StudyRun]:
    """The runs on the tuning seeds as far as the results say, the parent's first."""
    own, parent = sides_of(study.method, study.effect)
    return [*parent.tuning_runs(results), *own.tuning_runs(results)]


def compared_pairs(
    study: Study, results: Results, seeds: int, first_seed: int | None = None
) -> Iterator[tuple[StudyRun, StudyRun]]:
    """The runs of both sides on fresh seeds, at the settings that the grids chose; none before these ran."""
    first = study.effect.first_seed if first_seed is None else first_seed
    pairs = (pair_of(study.method, study.effect, seed, results) for seed in range(first, first + seeds))
    return (pair for pair in pairs if pair is not None)


def seeds_due(study: Study, results: Results, first_seed: int | None = None) -> int:
    """The number of fresh seeds that a study needs: up to the look that decides it, or to the last of its plan."""
    comparison = compare(study.method, study.effect, results, first_seed)
    looks = plan_of(study.effect).looks
    if comparison is None:
        return looks[0]
    made = len(comparison.differences)
    is_open = comparison.verdict == "undecided" and not comparison.obstacle
    return next((look for look in looks if look > made), made) if is_open else made
