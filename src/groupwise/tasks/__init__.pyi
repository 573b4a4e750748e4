# Made by tools/front_doors.py from the `__all__` of each file.
from groupwise.tasks.alphabet import END as END
from groupwise.tasks.alphabet import blank_tokenizer as blank_tokenizer
from groupwise.tasks.alphabet import calculator_tokenizer as calculator_tokenizer
from groupwise.tasks.big_sums import BigSums as BigSums
from groupwise.tasks.calculator import Calculator as Calculator
from groupwise.tasks.calculator import calculator_answer as calculator_answer
from groupwise.tasks.calculator import demonstrations as demonstrations
from groupwise.tasks.demonstrations import Demonstration as Demonstration
from groupwise.tasks.demonstrations import read_demonstrations as read_demonstrations
from groupwise.tasks.mixture import Each as Each
from groupwise.tasks.mixture import Mixture as Mixture
from groupwise.tasks.problems import Problems as Problems
from groupwise.tasks.registry import find_task as find_task
from groupwise.tasks.registry import takes_columns as takes_columns
from groupwise.tasks.registry import usual_template as usual_template
from groupwise.tasks.registry import usual_verifier as usual_verifier
from groupwise.tasks.source_stats import SourceStats as SourceStats
