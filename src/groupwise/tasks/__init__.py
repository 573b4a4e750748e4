"""Where problems come from, and what counts as right."""

from groupwise.tasks.alphabet import END, blank_tokenizer, calculator_tokenizer
from groupwise.tasks.big_sums import BigSums
from groupwise.tasks.calculator import Calculator, calculator_answer, demonstrations
from groupwise.tasks.code import CodeVerifier
from groupwise.tasks.countdown import Countdown
from groupwise.tasks.environments import user_environment
from groupwise.tasks.facts import SourceStats
from groupwise.tasks.judge import grade_function
from groupwise.tasks.judge_access import JudgeAccess
from groupwise.tasks.mathematics import Math
from groupwise.tasks.mixture import Each, Mixture
from groupwise.tasks.names import find_task, takes_columns, usual_template, usual_verifier
from groupwise.tasks.problems import Problems
from groupwise.tasks.sandbox import Limits, Program, Execution, Sandbox, sandbox_trial
from groupwise.tasks.shown import Demonstration, read_demonstrations
from groupwise.tasks.tools import Call, Hermes, Lost, Malformed, PythonBlock, Tools, calculator_tools, python_tools
from groupwise.tasks.verifier_names import find_verifier, own_names, verifier_names
from groupwise.tasks.verifiers import exact, last_number

__all__ = [
    "END",
    "BigSums",
    "Limits",
    "Calculator",
    "Call",
    "CodeVerifier",
    "Countdown",
    "Demonstration",
    "Each",
    "SourceStats",
    "Hermes",
    "JudgeAccess",
    "Lost",
    "Malformed",
    "Math",
    "Mixture",
    "Problems",
    "Program",
    "PythonBlock",
    "Execution",
    "Sandbox",
    "Tools",
    "blank_tokenizer",
    "calculator_answer",
    "calculator_tokenizer",
    "calculator_tools",
    "demonstrations",
    "exact",
    "find_task",
    "find_verifier",
    "grade_function",
    "last_number",
    "own_names",
    "user_environment",
    "python_tools",
    "read_demonstrations",
    "sandbox_trial",
    "takes_columns",
    "usual_template",
    "usual_verifier",
    "verifier_names",
]
