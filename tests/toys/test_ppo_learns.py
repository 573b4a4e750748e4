"""PPO with a critic, built as a value, learns the toy task without groups; its critic explains the returns."""

from pathlib import Path

from groupwise.advantages import WhitenedTokens
from groupwise.learner import AdamW, ValueModel
from groupwise.methods import GAE, Method
from tests.toys.echo import ToyRun, rate

PPO = Method(
    group_size=1,
    credit=WhitenedTokens(GAE()),
    models=(("critic", ValueModel(optimizer=AdamW(lr=2e-2))),),
    minibatches=2,
    epochs=2,
)


def test_ppo_learns_and_its_critic_explains_the_returns(tmp_path: Path) -> None:
    lines = ToyRun(PPO, tmp_path, prompts=16, iterations=9, lr=0.02).go()
    assert rate(lines[1:4]) < 0.5 and rate(lines[-2:]) > rate(lines[1:4]) + 0.3
    explained = [line["value/critic/explained_variance"] for line in lines[1:]]
    assert explained[0] == 0 and max(explained) > 0.5, explained
    assert all(line["value/critic/loss"] > 0 for line in lines[1:])
