"""What rank 0 sends: python -m benchmarks.rank_messages. Bytes, sends in a row, and CPU seconds to write and to read.

A step with its old log-probs: 512 answers of 500 tokens, four characters for each token. Ranks are objects of this
process: no byte crosses a network. The first line is a list of all rollouts as JSON, for comparison.
"""

import json
import time
from dataclasses import replace

import torch
from tests.learner.mailed_ranks import mailed
from tests.learner.small import rollouts

from groupwise.cluster.rank_messages import read_message
from groupwise.data import Draw, Entropy, Logp, Prompt, Sample, pack
from groupwise.data.rollout_json import to_json
from groupwise.learner.microbatch_sharing import MicrobatchSharing

PROMPTS, GROUP, TOKENS, LANES = 64, 8, 500, 64
SIZES = (2, 4, 64)


def main() -> None:
    """Print one line for each number of ranks."""
    found = [
        replace(rollout, samples=tuple(map(with_text, rollout.samples)))
        for rollout in rollouts([[TOKENS] * GROUP] * PROMPTS, limit=TOKENS, context=100)
    ]
    b = pack(found)
    n = b.tokens
    start = time.process_time()
    plain = [to_json(replace(rollout, draw=Draw(rollout.draw.id, Prompt("", ()), GROUP))) for rollout in found]
    text = json.dumps(plain)
    seconds = time.process_time() - start
    print(f"{n:,} tokens as JSON: {len(text) / n:.1f} bytes per token, {1e6 * seconds / n:.2f} s per million to write")
    measured = b.having(logp_old=torch.rand(n), measures={Entropy(): torch.rand(n)})
    prepared = measured.having(
        advantage=torch.rand(n).double(), weight=torch.ones(n).double(), loss_share=torch.full((n,), 1 / n).double()
    )
    count = len(b) // LANES
    microbatches = [range(i, i + count) for i in range(0, len(b), count)]
    for size in SIZES:
        ranks = mailed(size, LANES)
        ends = [MicrobatchSharing(rank, torch.nn.Linear(1, 1)) for rank in ranks]
        start = time.process_time()
        for batch, do in ((b, "measures"), (prepared, "step")):
            ends[0].hand_out(batch, microbatches, do=do)
        wrote, start = time.process_time() - start, time.process_time()
        for rank, end in zip(ranks[1:], ends[1:]):
            for _ in range(2):
                end.received(*read_message(rank.receive() or b""), [Logp("policy"), Entropy()], {})
        read = (time.process_time() - start) / (size - 1)
        row, sent = len(ranks[0].sent) // 2, sum(ranks[0].sent)
        print(
            f"{size} ranks: {row} sends in a row, {sent / n:.1f} bytes per token in both messages, "
            f"{1e6 * wrote / n:.2f} s per million to write, {1e6 * read / n:.2f} to read a rank's own"
        )


def with_text(sample: Sample) -> Sample:
    """A sample with four characters for each token, as texts have them."""
    count = len(sample.tokens)
    return replace(sample, text="word" * count, token_ends=tuple(range(4, 4 * count + 4, 4)))


if __name__ == "__main__":
    main()
