"""Files of a run directory: checkpoints, logs, the replay log, trackers."""
