"""The threat model names each option of trust, and no other option."""

import re

from groupwise.commands.parsing import parser
from groupwise.config.recipe_errors import SWITCHES
from tests.docs.test_pages import HOME


def test_the_threat_model_names_each_option_of_trust() -> None:
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", (HOME / "docs/threats.md").read_text()))
    _, commands = parser()
    assert {*SWITCHES.values()} <= named
    assert named <= set(commands["train"]._option_string_actions)
