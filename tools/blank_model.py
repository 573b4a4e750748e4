"""How the directory of `blank` is made: a shape and a tokenizer, without weights.

`python -m tools.blank_model DIRECTORY` is what `make blank` runs.
"""

import sys
from pathlib import Path

from groupwise.models import Shape, Tokenizer, write_fresh
from groupwise.tasks import END, blank_tokenizer


def write_blank(path: Path) -> None:
    """The shape of the packaged `calculator`, for longer texts in more characters."""
    fast = blank_tokenizer()
    shape = Shape(
        vocabulary=fast.get_vocab_size(),
        width=96,
        layers=2,
        heads=4,
        kv_heads=2,
        head_dim=24,
        inner=256,
        positions=256,
        family="qwen3",
        qk_norm=True,
        tied=True,
    )
    write_fresh(shape, path, tokenizer=Tokenizer.of(fast, [fast.get_vocab()[END]]))


if __name__ == "__main__":
    write_blank(Path(sys.argv[1]))
