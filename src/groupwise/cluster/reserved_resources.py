"""Resources of a node that a process outside Ray uses: an idle actor holds them in Ray's accounts."""

import os


class ReservedResources:
    """An actor that holds the CPUs and the GPU of another process of its node. Its module imports no torch."""

    def gpu(self) -> str:
        """The GPU that Ray gave it, as in `CUDA_VISIBLE_DEVICES`; empty for none."""
        return os.environ.get("CUDA_VISIBLE_DEVICES", "")
