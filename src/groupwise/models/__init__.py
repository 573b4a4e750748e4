"""What engine and learner share: the decoder, its checkpoints and tokenizer, the law of sampling, keyed randomness."""

from groupwise.models.decoder import Decoder, Shape
from groupwise.models.keyed import Key, Purpose, keyed_random, lineage, permutation, philox, uniform
from groupwise.models.layout import Shared
from groupwise.models.sampling import choose, log_law, truncated

__all__ = [
    "Decoder",
    "Key",
    "Purpose",
    "Shape",
    "Shared",
    "choose",
    "keyed_random",
    "lineage",
    "log_law",
    "permutation",
    "philox",
    "truncated",
    "uniform",
]
