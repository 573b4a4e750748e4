# Made by tools/front_doors.py from the `__all__` of each file.
from groupwise.advantages.credit import ReturnsToGo as ReturnsToGo
from groupwise.advantages.credit import WhitenedTokens as WhitenedTokens
from groupwise.advantages.credit import every_token as every_token
from groupwise.advantages.gae import GAE as GAE
from groupwise.advantages.group import Standardised as Standardised
from groupwise.advantages.group import Whitened as Whitened
from groupwise.advantages.group import centred as centred
from groupwise.advantages.group import leave_one_out as leave_one_out
