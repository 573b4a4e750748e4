"""The tools of examples/tools.toml: a shop that the model asks for prices."""

from groupwise.environments import HermesFormat, Tools

PRICES = {"apples": 12, "pears": 7, "plums": 30}


def price(thing: str) -> int:
    """The price of one piece, in cents.

    Args:
        thing: what to buy, such as "apples".
    """
    return PRICES[thing]


def shop() -> Tools:
    """An environment: `price` is called by name, in the format of Hermes and Qwen."""
    return Tools(HermesFormat(), {"price": price})
