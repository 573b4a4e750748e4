# Made by tools/front_doors.py from the `__all__` of each file.
from groupwise.sandbox.sandbox import ExecutionInput as ExecutionInput
from groupwise.sandbox.sandbox import ExecutionLimits as ExecutionLimits
from groupwise.sandbox.sandbox import ExecutionResult as ExecutionResult
from groupwise.sandbox.sandbox import Sandbox as Sandbox
from groupwise.sandbox.sandbox import sandbox_trial as sandbox_trial
