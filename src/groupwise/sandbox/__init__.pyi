# Made by tools/front_doors.py from the `__all__` of each file.
from groupwise.sandbox.sandbox import Execution as Execution
from groupwise.sandbox.sandbox import Limits as Limits
from groupwise.sandbox.sandbox import Program as Program
from groupwise.sandbox.sandbox import Sandbox as Sandbox
from groupwise.sandbox.sandbox import sandbox_trial as sandbox_trial
