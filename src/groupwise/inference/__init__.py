"""Uses of a trained model: open it from a run or a directory, evaluate it."""
