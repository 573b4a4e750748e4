# Made by tools/front_doors.py from the `__all__` of each file.
from groupwise.api.evaluate import Evaluation as Evaluation
from groupwise.api.evaluate import evaluate as evaluate
from groupwise.api.evaluate import sample as sample
from groupwise.api.export import export as export
from groupwise.api.methods import list_methods as list_methods
from groupwise.api.methods import load_method as load_method
from groupwise.api.metric_values import MetricValues as MetricValues
from groupwise.api.notebook import LiveTable as LiveTable
from groupwise.api.notebook import cell_output as cell_output
from groupwise.api.notebook import live_table as live_table
from groupwise.api.python_messages import from_python as from_python
from groupwise.api.run import Report as Report
from groupwise.api.run import Run as Run
from groupwise.api.train import resume as resume
from groupwise.api.train import train as train
