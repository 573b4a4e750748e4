"""A tool server that speaks MCP over standard input and output. Needs `pip install 'groupwise[mcp]'`."""

import math
import re

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("arithmetic", log_level="ERROR")
EXPRESSION = re.compile(r"\d+([-+*]\d+)*")


@server.tool()
def calculate(expression: str) -> str:
    """Compute sums, differences and products of whole numbers exactly, such as 34*58+91."""
    text = expression.replace(" ", "")
    if len(text) > 200 or not EXPRESSION.fullmatch(text):
        raise ToolError("not an expression of whole numbers with + - *")
    return str(sum(math.prod(map(int, term.split("*"))) for term in text.replace("-", "+-").split("+")))


if __name__ == "__main__":
    server.run()
