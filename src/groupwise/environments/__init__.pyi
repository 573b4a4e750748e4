# Made by tools/front_doors.py from the `__all__` of each file.
from groupwise.environments.coin import CoinFlip as CoinFlip
from groupwise.environments.tool_call_formats import CALL_FORMATS as CALL_FORMATS
from groupwise.environments.tool_call_formats import CallFormat as CallFormat
from groupwise.environments.tool_call_formats import HermesCalls as HermesCalls
from groupwise.environments.tool_call_formats import LlamaCalls as LlamaCalls
from groupwise.environments.tool_call_formats import MistralCalls as MistralCalls
from groupwise.environments.tool_call_formats import UserCallFormat as UserCallFormat
from groupwise.environments.tool_call_formats import call_format as call_format
from groupwise.environments.tools import HermesFormat as HermesFormat
from groupwise.environments.tools import MalformedCall as MalformedCall
from groupwise.environments.tools import PythonBlockFormat as PythonBlockFormat
from groupwise.environments.tools import ToolCall as ToolCall
from groupwise.environments.tools import Tools as Tools
from groupwise.environments.tools import ToolUnavailable as ToolUnavailable
from groupwise.environments.tools import calculator_tools as calculator_tools
from groupwise.environments.tools import python_tools as python_tools
from groupwise.environments.user_environment import user_environment as user_environment
