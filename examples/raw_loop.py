"""Reinforcement learning with verifiable rewards in one file, to be read from top to bottom.

Nothing here comes from Groupwise's loop, engine or learner: only its values (a batch, an objective and its parts), a
decoder, and random numbers named by what they are for. It computes what the library computes, the slow and plain way:
a full forward for every token, one padless batch for every step. A test holds the losses of both equal.

    python examples/raw_loop.py
"""

import asyncio

import torch

from groupwise.advantages import Standardised, every_token
from groupwise.data import Batch, Draw, Finish, Prompt, Rollout, Sample, pack
from groupwise.models import (
    Decoder,
    Purpose,
    Shared,
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

# What a method is: how verdicts become rewards, rewards advantages, and a batch one scalar. This one is close to DAPO.
SHAPING, ADVANTAGE = Correctness(right=1.0, wrong=-1.0), Standardised()
OBJECTIVE = Objective(surrogate=Clip(low=0.2, high=0.28), aggregate=token_mean)


@torch.no_grad()
def sample(model: Decoder, tokenizer: Tokenizer, draws: list[Draw]) -> list[Rollout]:
    """`GROUP` answers to every drawn prompt, token by token, each from the whole text before it.

    A token is the inverse CDF at a number named by the seed, the draw, the sample and the place: no generator is
    advanced, so an answer is the same whatever is sampled beside it.
    """
    answers = [[Sample(context=d.prompt.context, stream=(i,), limit=MAX_TOKENS) for i in range(GROUP)] for d in draws]
    for t in range(MAX_TOKENS):
        live = [(d, i) for d, group in enumerate(answers) for i, s in enumerate(group) if s.finish is None]
        if not live:
            break
        now = [answers[d][i] for d, i in live]
        layout = Shared.of([s.context for s in now], [(*s.tokens, 0) for s in now])  # 0: the token to be chosen
        last = layout.source[torch.arange(t, (t + 1) * len(now), t + 1)]
        law = logprobs(model.head(model(layout.tokens, layout)[last]))
        u = uniform((SEED, Purpose.SAMPLE), [draws[d].id for d, _ in live], [i for _, i in live], t)
        for (d, i), token, logp in zip(live, choose(law, torch.from_numpy(u)).tolist(), law):
            finish = Finish.stop if token in tokenizer.eos else Finish.length if t + 1 == MAX_TOKENS else None
            answers[d][i] = answers[d][i].with_tokens((token,), (0,), (float(logp[token]),)).with_finish(finish)
    finished = [tuple(judged(d.prompt, s, tokenizer) for s in group) for d, group in zip(draws, answers)]
    return [Rollout(draw, group) for draw, group in zip(draws, finished)]


def judged(prompt: Prompt, answer: Sample, tokenizer: Tokenizer) -> Sample:
    """The finished answer with its text and its verdict. Text is read off the tokens, never the other way."""
    answer = answer.with_text(*tokenizer.decode_with_ends(answer.tokens))
    return answer.with_verdict(asyncio.run(calculator_answer(prompt, answer)))


def forward(model: Decoder, batch: Batch) -> torch.Tensor:
    """Log-prob of every token of the batch, in the graph. Equal contexts are forwarded once."""
    layout = Shared.of([s.context for s in batch.samples], [s.tokens for s in batch.samples])
    law = logprobs(model.head(model(layout.tokens, layout)[layout.source]))
    return law.gather(-1, layout.target[:, None])[:, 0]


def credited(batch: Batch) -> Batch:
    """Verdict to reward, reward to a number a sample, that to a number a token."""
    reward = SHAPING(torch.zeros_like(batch.score), batch)
    batch = batch.having(reward=reward)
    return batch.having(advantage=every_token(ADVANTAGE(reward, batch), batch))


def main(iterations: int = ITERATIONS, lr: float = 1e-4) -> list[float]:
    """Train, tell, and return the loss of every step."""
    torch.set_num_threads(1)
    home = find_model("calculator")
    model, tokenizer = read_model(home), read_tokenizer(home)
    task = Calculator(tokenizer.encode)
    order = permutation((SEED, Purpose.CURRICULUM), 0, 0, len(task))
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0)
    losses: list[float] = []

    for iteration in range(iterations):
        # Draw, sample, judge.
        numbers = range(iteration * PROMPTS, (iteration + 1) * PROMPTS)
        rollouts = sample(model, tokenizer, [Draw(n, task[int(order[n])], GROUP) for n in numbers])

        # One batch of the trainable tokens, with the log-probs before the update and an advantage a token.
        batch = pack(rollouts)
        with torch.no_grad():
            batch = batch.having(logp_old=forward(model, batch))
        batch = credited(batch)

        # Minibatches of whole groups, in a keyed order.
        deal = permutation((SEED, Purpose.SHUFFLE), iteration, 0, PROMPTS).tolist()
        size = PROMPTS // MINIBATCHES
        for first in range(0, PROMPTS, size):
            prompts = set(deal[first : first + size])
            mine = [i for i, group in enumerate(batch.groups.index.tolist()) if group in prompts]
            step = OBJECTIVE.prepare(batch.take(mine))  # every divisor, from the whole step
            loss = OBJECTIVE(step.having(logp=forward(model, step)))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(float(loss.detach()))

        assert batch.reward is not None
        print(f"{iteration + 1:>3}  right {batch.score.mean():.3f}  loss {losses[-1]:+.4f}", flush=True)
    return losses


if __name__ == "__main__":
    main()
