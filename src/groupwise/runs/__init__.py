"""What a run leaves on disk: checkpoints, logs, the replay log, trackers."""
