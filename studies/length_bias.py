"""Length bias: does the division by an answer's length make wrong answers longer? Dr. GRPO, arXiv:2503.20783.

Stated before the runs. The coin's reward depends on a guess that no policy can improve, so the only thing that training
can change is how long the model talks after it has read `right` or `wrong`. The paper explains the bias by the factor
1/|o|: the tokens of a long wrong answer are pushed down less than those of a short one. So wrong answers should grow
with GRPO, with or without the division by the std, and should not with Dr. GRPO, nor with DAPO's token mean.

Compared: the mean length of wrong minus right answers over the last five iterations, within a seed. An arm shows the
bias if its 95 % interval over seeds lies above 0. One minibatch, so that no ratio is clipped. The learning rate and the
number of iterations were chosen with GRPO on seed 99, which is not among the seeds here.
"""

from studies.study import NO_KL, Arm, Study

WRONG, RIGHT = "completions/mean_length_wrong", "completions/mean_length_correct"
BASE = ("iterations = 25", "prompts = 16", "method.group_size = 16", "method.minibatches = 1",
        "evaluate.problems = 16", NO_KL)  # fmt: skip
CENTRED = 'method.advantage = ["centred"]'
TOKEN_MEAN = "method.objective.aggregate = token_mean"


def arm(label: str, method: str, *settings: str) -> Arm:
    return Arm(label=label, method=method, task="coin", settings=(*BASE, *settings))


COIN = {
    "grpo": arm("GRPO: 1/length and std", "grpo"),
    "no_std": arm("1/length, without std", "grpo", CENTRED),
    "token_mean": arm("token mean, with std", "grpo", TOKEN_MEAN),
    "dr_grpo": arm("Dr. GRPO: neither", "dr_grpo"),
}
METRICS = (WRONG, RIGHT, "outcome/correct", "completions/clipped_ratio")
STUDY = Study(page="docs/studies/length-bias.md", parts={"coin": COIN}, metrics=METRICS)
