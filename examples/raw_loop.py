"""Reinforcement learning with verifiable rewards in one file. Read it from top to bottom.

It uses Groupwise's values (a batch, an objective and its parts), decoder and keyed random numbers, but not its loop,
engine or learner. It computes the same numbers in the slow and plain way: a full forward for each token, and one batch
for each step. A test compares its losses with the library's.

    python examples/raw_loop.py
"""

import asyncio

import torch

from groupwise.advantages import Standardised, every_token
from groupwise.data import Batch, Draw, Finish, Prompt, Rollout, Sample, pack
from groupwise.models import (
    Decoder,
    PrefixPacking,
    RandomPurpose,
    Tokenizer,
    choose,
    find_model,
    logprobs,
    permutation,
    read_model,
    read_tokenizer,
    uniform,
)
from groupwise.objective import Clip, Objective, token_mean
from groupwise.rewards import Correctness
from groupwise.tasks import Calculator, calculator_answer

SEED, ITERATIONS, PROMPTS, GROUP, MINIBATCHES, MAX_TOKENS = 0, 10, 16, 8, 2, 48

# The method: verdicts to rewards, rewards to advantages, a batch to one scalar. This one is close to DAPO.
SHAPING, ADVANTAGE = Correctness(correct_reward=1.0, wrong_reward=-1.0), Standardised()
OBJECTIVE = Objective(surrogate=Clip(low=0.2, high=0.28), aggregate=token_mean)


@torch.no_grad()
def sample(model: Decoder, tokenizer: Tokenizer, draws: list[Draw]) -> list[Rollout]:
    """`GROUP` samples for each draw. Each token needs a forward of the whole text before it.

    A token is the inverse CDF at a random number whose key is the seed, the draw, the sample and the position. There is
    no generator, so other rows cannot change a sample.
    """
    groups = [[Sample(context=d.prompt.token_ids, stream=(i,), limit=MAX_TOKENS) for i in range(GROUP)] for d in draws]
    for t in range(MAX_TOKENS):
        live = [(d, i) for d, group in enumerate(groups) for i, s in enumerate(group) if s.finish is None]
        if not live:
            break
        rows = [groups[d][i] for d, i in live]
        layout = PrefixPacking.of(
            [s.context for s in rows], [(*s.tokens, 0) for s in rows]
        )  # 0: a place for the new token
        last = layout.predicting_indices[torch.arange(t, (t + 1) * len(rows), t + 1)]
        logp = logprobs(model.head(model(layout.tokens, layout)[last]))
        u = uniform((SEED, RandomPurpose.SAMPLE), [draws[d].id for d, _ in live], [i for _, i in live], t)
        for (d, i), token, row in zip(live, choose(logp, torch.from_numpy(u)).tolist(), logp):
            finish = Finish.stop if token in tokenizer.eos_ids else Finish.length if t + 1 == MAX_TOKENS else None
            groups[d][i] = groups[d][i].with_tokens((token,), (0,), (float(row[token]),)).with_finish(finish)
    return [
        Rollout(draw, tuple(verified(draw.prompt, sample, tokenizer) for sample in group))
        for draw, group in zip(draws, groups)
    ]


def verified(prompt: Prompt, sample: Sample, tokenizer: Tokenizer) -> Sample:
    """The finished sample with its text and its verdict. Tokens are decoded to text, and never encoded again."""
    sample = sample.with_text(*tokenizer.decode_with_ends(sample.tokens))
    return sample.with_verdict(asyncio.run(calculator_answer(prompt, sample)))


def forward(model: Decoder, batch: Batch) -> torch.Tensor:
    """Log-prob of each token of the batch, in the graph. Equal contexts are forwarded once."""
    layout = PrefixPacking.of([s.context for s in batch.samples], [s.tokens for s in batch.samples])
    logp = logprobs(model.head(model(layout.tokens, layout)[layout.predicting_indices]))
    return logp.gather(-1, layout.target_tokens[:, None])[:, 0]


def with_advantage(batch: Batch) -> Batch:
    """Verdicts to rewards, rewards to one number per sample, then one per token."""
    reward = SHAPING(torch.zeros_like(batch.verdict_score), batch)
    batch = batch.having(reward=reward)
    return batch.having(advantage=every_token(ADVANTAGE(reward, batch), batch))


def main(iterations: int = ITERATIONS, lr: float = 1e-4) -> list[float]:
    """Train, print a line per iteration, and return the loss of each step."""
    torch.set_num_threads(1)
    home = find_model("calculator")
    model, tokenizer = read_model(home), read_tokenizer(home)
    task = Calculator().build(tokenizer.encode)
    order = permutation((SEED, RandomPurpose.CURRICULUM), 0, 0, len(task))
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0)
    losses: list[float] = []

    for iteration in range(iterations):
        # Draw, sample, verify.
        numbers = range(iteration * PROMPTS, (iteration + 1) * PROMPTS)
        rollouts = sample(model, tokenizer, [Draw(n, task[int(order[n])], GROUP) for n in numbers])

        # One batch of the trainable tokens, with the log-probs before the update and one advantage per token.
        batch = pack(rollouts)
        with torch.no_grad():
            batch = batch.having(logp_old=forward(model, batch))
        batch = with_advantage(batch)

        # Minibatches of whole groups, in a keyed order.
        shuffled = permutation((SEED, RandomPurpose.SHUFFLE), iteration, 0, PROMPTS).tolist()
        size = PROMPTS // MINIBATCHES
        for first in range(0, PROMPTS, size):
            prompts = set(shuffled[first : first + size])
            samples = [i for i, group in enumerate(batch.groups.index.tolist()) if group in prompts]
            step = OBJECTIVE.prepare(batch.take(samples))  # computes every divisor, from the whole step
            loss = OBJECTIVE(step.having(logp=forward(model, step)))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(float(loss.detach()))

        assert batch.reward is not None
        print(f"{iteration + 1:>3}  correct {batch.verdict_score.mean():.3f}  loss {losses[-1]:+.4f}", flush=True)
    return losses


if __name__ == "__main__":
    main()
