# Made by tools/front_doors.py from the `__all__` of each file.
from groupwise.verifiers.code import CodeVerifier as CodeVerifier
from groupwise.verifiers.countdown import Countdown as Countdown
from groupwise.verifiers.flipping import Flipping as Flipping
from groupwise.verifiers.flow_states import quilt_patches as quilt_patches
from groupwise.verifiers.flow_states import ring_direction as ring_direction
from groupwise.verifiers.functions import grade_function as grade_function
from groupwise.verifiers.glyphs import GlyphVerifier as GlyphVerifier
from groupwise.verifiers.hackable import Hackable as Hackable
from groupwise.verifiers.numbers import exact as exact
from groupwise.verifiers.numbers import last_number as last_number
from groupwise.verifiers.proof_steps import ProofSteps as ProofSteps
from groupwise.verifiers.registry import find_verifier as find_verifier
from groupwise.verifiers.registry import user_functions as user_functions
from groupwise.verifiers.registry import verifier_names as verifier_names
from groupwise.verifiers.spanning_graph import SpanningGraph as SpanningGraph
from groupwise.verifiers.sum_proposal import SumProposal as SumProposal
from groupwise.verifiers.sum_steps import SumSteps as SumSteps
