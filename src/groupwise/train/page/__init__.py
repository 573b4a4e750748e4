"""The report page: reading a run directory (`read`, `rollouts`), judging it (`signs`), and the files that draw it."""
