"""Reinforcement-learning post-training of language models, in which every published method is a value."""

import os

# MKL chooses kernels by the number of rows, on some processors with other bits. Its strict mode gives a row the same
# bits whatever stands beside it. MKL reads this at its first product; a value that the user sets is kept.
os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")
