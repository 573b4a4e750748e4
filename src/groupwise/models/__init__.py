"""What engine and learner share: the decoder, its checkpoints and tokenizer, the law of sampling, keyed randomness."""

from groupwise.models.checkpoint import read_model, read_shape, weight_files, write_model
from groupwise.models.decoder import Decoder, Shape
from groupwise.models.files import find_model
from groupwise.models.keyed import Key, Purpose, keyed_random, lineage, permutation, philox, picks, uniform
from groupwise.models.layout import Shared
from groupwise.models.sampling import choose, log_law, truncated
from groupwise.models.templates import Messages, Template, find_template
from groupwise.models.tokenizer import Tokenizer, read_tokenizer

__all__ = [
    "Decoder",
    "Key",
    "Messages",
    "Purpose",
    "Shape",
    "Shared",
    "Template",
    "Tokenizer",
    "choose",
    "find_model",
    "find_template",
    "keyed_random",
    "lineage",
    "log_law",
    "permutation",
    "philox",
    "picks",
    "read_model",
    "read_shape",
    "read_tokenizer",
    "truncated",
    "uniform",
    "weight_files",
    "write_model",
]
