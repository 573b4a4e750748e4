"""The map of certificates has each method once below its parent, and a mark for each of its parts."""

import re
from dataclasses import replace

from groupwise.certificates.map import branches, map_page
from tests.certificates.test_certificate import NAMES, PLANTED, Text, certificate

CHAIN = [certificate(name) for name in ("grpo", "gspo", "gspo_token")]


def test_each_method_is_below_the_one_that_it_changes() -> None:
    tree = branches([CHAIN[0]], CHAIN)
    assert re.findall(r'href="(\w+)\.html"', tree) == ["grpo", "gspo", "gspo_token"]
    assert tree.count("<details") == tree.count("</details>") == 2
    orphans = map_page(CHAIN[1:])  # without grpo, gspo is a root
    assert re.findall(r'href="(\w+)\.html"', orphans) == ["gspo", "gspo_token"] * 2


def test_all_methods_are_in_the_tree_and_in_the_table_with_their_parts() -> None:
    certificates = [certificate(name) for name in NAMES]
    page = map_page(certificates)
    assert sorted(re.findall(r'href="(\w+)\.html"', page)) == sorted(NAMES * 2)
    assert page.count("●") == sum(len(parts) for c in certificates for parts in c.parts.values())
    assert f"{len(NAMES)} of {len(NAMES)} methods passed" in Text(page).text


def test_a_method_has_its_parts_in_its_row() -> None:
    row = map_page(CHAIN).partition("<tbody>")[2].split("\n")[2]
    assert set(re.findall(r'title="(\w+)">●', row)) == {part for parts in CHAIN[2].parts.values() for part in parts}
    assert {"Clip", "sequence_ratio_per_token", "group_mean"} <= set(re.findall(r'title="(\w+)">●', row))


def test_no_text_of_the_map_is_markup() -> None:
    quoted = f'">{PLANTED}'
    planted = replace(CHAIN[0], name=quoted, summary=quoted, family=PLANTED, label=PLANTED, parts={PLANTED: (quoted,)})
    page = Text(map_page([planted]))
    assert page.text.count(PLANTED) == 6 and not {"script", "img"} & set(page.tags)


def test_a_method_that_failed_is_marked() -> None:
    failed = replace(CHAIN[0], proofs=(replace(CHAIN[0].proofs[0], result="failed"),))
    page = map_page([failed, *CHAIN[1:]])
    assert "2 of 3 methods passed" in page and page.count(">failed<") == 1
