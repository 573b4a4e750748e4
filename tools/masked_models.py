"""Train the packaged masked models: prediction of masked cells of data that are often wrong.

`make flow` runs `python -m tools.masked_models DIRECTORY`. Equal settings give equal bits on one thread of one machine.
No held-out problem is in the data.
"""

import sys
from pathlib import Path

import torch
from torch import Tensor

from groupwise.models import MaskedPolicy, MaskedShape, Tokenizer, write_model
from groupwise.models.masked.unmasking_schedule import MOST_UNMASKING_STEPS
from groupwise.tasks import BEAD_COLOURS, BEAD_PATTERNS, END, STRING_LENGTH, masked_tokenizer
from groupwise.tasks.beads import bead_split

WORDS = (*BEAD_PATTERNS, *BEAD_COLOURS)
WRONG = 0.25
"""The share of colours that are random."""
ROWS, STEPS, RATE = 256, 1500, 2e-3


def strings(words: Tensor) -> Tensor:
    """Random strings of beads for problems; a share `WRONG` of the colours is another one. [n, 3] words to [n, 8]."""
    n, half, colours = len(words), STRING_LENGTH // 2, len(BEAD_COLOURS)
    pair = words[:, 1:] - len(BEAD_PATTERNS)
    pair = torch.where(torch.rand(n, 2) < WRONG, torch.randint(colours, (n, 2)), pair)
    first = pair.gather(1, torch.randint(2, (n, half)))
    return torch.cat([first, torch.where(words[:, :1] == 0, first.flip(1), first)], 1)


def train() -> tuple[MaskedPolicy, Tokenizer]:
    """The policy after all steps, and its tokenizer."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    symbols = len(BEAD_COLOURS)
    table = torch.tensor([[WORDS.index(word) for word in problem.split()] for problem in bead_split()[0]])
    shape = MaskedShape(
        vocabulary_size=MOST_UNMASKING_STEPS + 1 + 2 * symbols + len(WORDS), layers=2, cells=STRING_LENGTH,
        symbols=symbols,
        prompt_vocabulary=len(WORDS), prompt_length=table.shape[1], width=48, heads=4,
    )  # fmt: skip
    policy = MaskedPolicy(shape)
    optimizer = torch.optim.AdamW(policy.predictor.parameters(), lr=RATE)
    for step in range(STEPS):
        optimizer.param_groups[0]["lr"] = RATE * (1 - step / STEPS)
        words = table[torch.randint(len(table), (ROWS,))]
        data = strings(words)
        hidden = torch.rand(ROWS, STRING_LENGTH) < torch.rand(ROWS, 1)
        logits = policy.predictor(data.masked_fill(hidden, symbols), words + shape.first_word)
        loss = torch.nn.functional.cross_entropy(logits[hidden], data[hidden])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    fast = masked_tokenizer([name[0] for name in BEAD_COLOURS], WORDS, MOST_UNMASKING_STEPS)
    return policy, Tokenizer.of(fast, [fast.get_vocab()[END]])


if __name__ == "__main__":
    trained, tokenizer = train()
    write_model(trained, Path(sys.argv[1]) / "beads", tokenizer=tokenizer)
