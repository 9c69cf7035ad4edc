"""Tools of the general purpose agent, made with the Python package `mcp`: tools.py PORT"""

import ast
import operator
import sys

from mcp.server import MCPServer

OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}
server = MCPServer("tools", log_level="WARNING")


def fibonacci(n):
    first, second = 0, 1
    for _ in range(min(n, 1000)):
        first, second = second, first + second
    return first


def value(node):
    """The value of a sum of whole numbers. Nothing is executed."""
    match node:
        case ast.Constant(value=int()):
            return node.value
        case ast.BinOp() if type(node.op) in OPERATORS:
            return OPERATORS[type(node.op)](value(node.left), value(node.right))
        case ast.Call(func=ast.Name(id="fibonacci"), args=[argument]):
            return fibonacci(value(argument))
    raise ValueError("only +, -, * and fibonacci(n)")


@server.tool()
def calculate(expression: str) -> str:
    """Calculates, for example 2+2 or fibonacci(10)."""
    return str(value(ast.parse(expression, mode="eval").body))


@server.tool()
def get_weather(city: str) -> str:
    """The weather in a city, today."""
    return f"{city}: sunny, 21.5 degrees, station 4711"


server.run("streamable-http", port=int(sys.argv[1]))
