"""Shapes and types are checked in tests only: every annotation of the package is enforced here."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"

from tests import checked

checked.install()

import torch  # noqa: E402
from hypothesis import settings  # noqa: E402

settings.register_profile("quiet", deadline=None, derandomize=True, database=None)
settings.load_profile("quiet")
torch.set_num_threads(1)
