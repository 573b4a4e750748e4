"""Reinforcement-learning post-training of language models, in which every published method is a value."""

import os

# MKL chooses kernels by the number of rows; on some processors this changes the bits of a row. In strict mode the bits
# of a row do not depend on the other rows. MKL reads the variable at its first product. A value of the user is kept.
os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")
