"""Shapes and types are checked in tests only: every annotation of the package is enforced here."""

import os
import sys

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # else every process compiles every test and module again
sys.dont_write_bytecode = False

from tests import checked  # noqa: E402

checked.install()

import torch  # noqa: E402
from hypothesis import Phase, settings  # noqa: E402

settings.register_profile("quiet", deadline=None, derandomize=True, database=None)
settings.load_profile("quiet")
settings.register_profile("unshrunk", settings.get_profile("quiet"), phases=[Phase.explicit, Phase.generate])
"""For `tools.breaks`: a test that fails does not search for its smallest example, which takes minutes."""
torch.set_num_threads(1)
