# Made by tools/front_doors.py from the `__all__` of each file.
from groupwise.verifiers.code import CodeVerifier as CodeVerifier
from groupwise.verifiers.countdown import Countdown as Countdown
from groupwise.verifiers.functions import grade_function as grade_function
from groupwise.verifiers.numbers import exact as exact
from groupwise.verifiers.numbers import last_number as last_number
from groupwise.verifiers.registry import find_verifier as find_verifier
from groupwise.verifiers.registry import user_functions as user_functions
from groupwise.verifiers.registry import verifier_names as verifier_names
