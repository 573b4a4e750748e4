"""A minimal run.json for tests."""

from groupwise.runs.run_info import RunInfo

INFO = RunInfo(
    name="small", command="", versions={}, model="m", task="t", method={}, seed=0, iterations=1, use={}, data=(),
    recipe="", files={}, templates={},
)  # fmt: skip
