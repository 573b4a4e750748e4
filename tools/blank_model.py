"""Write the directory of the model `blank`: a shape and a tokenizer, without weights.

`make blank` runs `python -m tools.blank_model DIRECTORY`.
"""

import sys
from pathlib import Path

from groupwise.models import DecoderShape, Tokenizer, write_fresh
from groupwise.tasks import END, blank_tokenizer


def write_blank(path: Path) -> None:
    """Write the shape of the packaged `calculator`, with a longer context and more characters."""
    fast = blank_tokenizer()
    shape = DecoderShape(
        vocabulary_size=fast.get_vocab_size(),
        hidden_size=96,
        layers=2,
        heads=4,
        kv_heads=2,
        head_dim=32,
        mlp_width=256,
        max_positions=256,
        model_family="qwen3",
        qk_norm=True,
        tied_embeddings=True,
    )
    write_fresh(shape, path, tokenizer=Tokenizer.of(fast, [fast.get_vocab()[END]]))


if __name__ == "__main__":
    write_blank(Path(sys.argv[1]))
