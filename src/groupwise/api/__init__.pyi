# Made by tools/front_doors.py from the `__all__` of each file.
from groupwise.api.run import Report as Report
from groupwise.api.run import Run as Run
from groupwise.api.train import resume as resume
from groupwise.api.train import train as train
