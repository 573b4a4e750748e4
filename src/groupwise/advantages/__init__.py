"""Numbers to an advantage a sample, then a credit a token."""

from groupwise.advantages.credit import ReturnsToGo, WhitenedTokens, every_token
from groupwise.advantages.group import Standardised, Whitened, centred, leave_one_out

__all__ = [
    "ReturnsToGo",
    "Standardised",
    "Whitened",
    "WhitenedTokens",
    "centred",
    "every_token",
    "leave_one_out",
]
