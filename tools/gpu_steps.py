"""Count the work of one decoding step on a GPU, on the pretended one: with pages, and with the layout of a CPU.

python -m tools.gpu_steps

A model of 28 layers in bfloat16, prompts of 300 tokens, 8 answers to each. The tables of docs/gpu.md are this output.
"""

from collections.abc import Callable
from contextlib import ExitStack

import torch
from pytest import MonkeyPatch
from tests.pretended_gpu import Counts, counted, pretended_gpu
from tests.rollout.fakes import decoder, generate, prompt_of, request, without_end_token

from groupwise.data import Sampling
from groupwise.engines import NativeEngine, PagedEngine
from groupwise.engines.native.paged_batch import PagedBatch
from groupwise.engines.native.running_batch import RunningBatch

LAYERS, PROMPT, GROUP, STEPS = 28, 300, 8, 3
CASES = {
    "8 rows, 1 prompt": (1, Sampling()),
    "64 rows, 8 prompts": (8, Sampling()),
    "96 rows, 12 prompts": (12, Sampling()),
    "256 rows, 32 prompts": (32, Sampling()),
    "8 rows, top-p 0.9": (1, Sampling(top_p=0.9)),
}


def step(build: Callable[..., NativeEngine], batch: type, prompts: int, sampling: Sampling) -> Counts:
    """The counts of the third step of an engine."""
    counts: list[Counts] = []
    decode = batch.decode

    def call(self: PagedBatch | RunningBatch):
        with counted() as one:
            counts.append(one)
            return decode(self)

    with ExitStack() as stack:
        stack.enter_context(MonkeyPatch.context()).setattr(batch, "decode", call)
        device = stack.enter_context(pretended_gpu())
        model = decoder(torch.bfloat16, layers=LAYERS, vocabulary_size=4096, qk_norm=False, qkv_bias=True, head_dim=16)
        engine = build(model.to(device), without_end_token(), seed=1, max_num_seqs=prompts * GROUP)
        requests = [
            request(i // GROUP, context=prompt_of(i // GROUP, PROMPT), stream=(i,), limit=STEPS + 1, sampling=sampling)
            for i in range(prompts * GROUP)
        ]
        generate(engine, requests)
    return counts[STEPS - 1]


if __name__ == "__main__":
    print("| a step of | kernels, waits: as on a CPU | kernels, waits: with pages |")
    print("|---|---|---|")
    for name, (prompts, sampling) in CASES.items():
        before = step(NativeEngine, RunningBatch, prompts, sampling)
        after = step(PagedEngine, PagedBatch, prompts, sampling)
        print(f"| {name} | {before.kernels:,}, {before.waits} | {after.kernels:,}, {after.waits} |", flush=True)
