import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from hypothesis import settings

settings.register_profile("quiet", deadline=None, derandomize=True, database=None)
settings.load_profile("quiet")
torch.set_num_threads(1)
