# Made by tools/front_doors.py from the `__all__` of each file.
from groupwise.advantages.credit import WhitenedTokens as WhitenedTokens
from groupwise.advantages.credit import every_token as every_token
from groupwise.advantages.group import Bounded as Bounded
from groupwise.advantages.group import Standardised as Standardised
from groupwise.advantages.group import Whitened as Whitened
from groupwise.advantages.group import centred as centred
from groupwise.advantages.subscore_advantages import AgainstSubscore as AgainstSubscore
from groupwise.advantages.subscore_advantages import EachStandardised as EachStandardised
from groupwise.advantages.subscore_advantages import Lagrangian as Lagrangian
