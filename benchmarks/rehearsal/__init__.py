"""A step of the learner on many ranks without GPUs: the exchanges and the memory of each rank, beside the plan's."""
