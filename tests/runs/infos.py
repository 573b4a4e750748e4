"""A minimal run.json for tests."""

from groupwise.runs.run_info import RunInfo

INFO = RunInfo(
    name="small", command="", versions={}, model="m", task="t", method={}, seed=0, iterations=1, user_files={}, data=(),
    recipe="", model_file_hashes={}, template_hashes={},
)  # fmt: skip
