"""The threat model names the words that the command line needs, and no other."""

import re

from groupwise.__main__ import parser
from groupwise.config.reading import SWITCHES
from tests.docs.test_pages import HOME


def test_the_threat_model_names_each_word_of_trust_as_it_is_typed() -> None:
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", (HOME / "docs/threats.md").read_text()))
    _, commands = parser()
    assert {f"--{switch.replace('_', '-')}" for switch in SWITCHES} <= named
    assert named <= set(commands["train"]._option_string_actions)
