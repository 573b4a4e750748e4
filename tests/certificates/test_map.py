"""The map of certificates has each method once below its parent, and a mark for each of its parts."""

import re
from dataclasses import replace

from groupwise.certificates.certificate import describe
from groupwise.certificates.certificate_page import content
from groupwise.certificates.method_lineage import changed, walk
from groupwise.certificates.methods_page import branches, map_page
from tests.certificates.test_certificate import NAMES, PLANTED, Text, certificate

CHAIN = [certificate(name) for name in ("grpo", "gspo", "gspo_token")]


def test_each_method_is_below_the_one_that_it_changes() -> None:
    tree = branches([CHAIN[0]], CHAIN)
    assert re.findall(r'href="#(\w+)"', tree) == ["grpo", "gspo", "gspo_token"]
    assert tree.count("<details") == tree.count("</details>") == 2
    orphans = map_page(CHAIN[1:]).partition("<article")[0]  # without grpo, gspo is a root
    assert re.findall(r'<a[^>]*href="#(\w+)" title', orphans) == ["gspo", "gspo_token"] * 2


def test_the_tree_has_each_method_once_and_names_what_it_changes() -> None:
    certificates = describe(NAMES)
    rows = list(walk(certificates))
    assert sorted(c.name for _, c in rows) == sorted(NAMES)
    places = {c.name: (depth, i) for i, (depth, c) in enumerate(rows)}
    for name, (depth, i) in places.items():
        parent = next(c.parent for c in certificates if c.name == name)
        assert depth == (places[parent][0] + 1 if parent else 0) and (not parent or places[parent][1] < i)
    assert changed(certificate("gspo")) == ["surrogate", "penalties", "models"] and changed(certificate("grpo")) == []


def test_all_methods_are_in_the_tree_and_in_the_table_with_their_parts() -> None:
    certificates = [certificate(name) for name in NAMES]
    page = map_page(certificates)
    outside = page.partition("<article")[0]
    assert sorted(re.findall(r'<a[^>]*href="#(\w+)" title', outside)) == sorted(NAMES * 2)
    assert page.count("●") == sum(len(parts) for c in certificates for parts in c.components.values())
    assert f"{len(NAMES)} of {len(NAMES)} methods passed" in Text(page).text


def test_the_sheet_of_each_method_is_its_certificate() -> None:
    certificates = [certificate(name) for name in NAMES]
    page = map_page(certificates)
    for c in certificates:
        inside = page.partition(f'<article class="sheet" id="{c.name}"')[2].partition("</article>")[0]
        assert content(c) in inside and c.formula in Text(inside).text and f'href="#at-{c.name}"' in inside
        near = inside.partition('<p class="near">')[2].partition("</p>")[0]
        others = [o.name for o in certificates if o.parent == c.name] + [c.parent] * bool(c.parent)
        assert sorted(re.findall(r'href="#(\w+)"', near)) == sorted(others)


def test_a_map_without_results_says_how_to_get_them() -> None:
    page = map_page(describe(["grpo", "gspo"]))
    assert f"{len(certificate('gspo').proofs)} proofs: groupwise certify gspo" in page and ">passed<" not in page
    assert ">failed<" not in page and "methods passed" not in page


def test_a_method_has_its_parts_in_its_row() -> None:
    row = map_page(CHAIN).partition("<tbody>")[2].split("\n")[2]
    assert set(re.findall(r'title="(\w+)"><a[^>]*>●', row)) == {
        part for parts in CHAIN[2].components.values() for part in parts
    }
    assert {"Clip", "sequence_ratio_per_token", "group_mean"} <= set(re.findall(r'title="(\w+)"><a[^>]*>●', row))


def test_no_text_of_the_map_is_markup() -> None:
    quoted = f'">{PLANTED}'
    planted = replace(
        CHAIN[0], name=quoted, summary=quoted, family=PLANTED, evidence=PLANTED, components={PLANTED: (quoted,)},
        changes=(f"{PLANTED}: a -> b",),
    )  # fmt: skip
    page = Text(map_page([planted]))
    assert page.text.count(PLANTED) >= 9 and not {"script", "img"} & set(page.tags)


def test_a_method_that_failed_is_marked() -> None:
    failed = replace(CHAIN[0], proofs=(replace(CHAIN[0].proofs[0], result="failed"),))
    page = map_page([failed, *CHAIN[1:]])
    assert "2 of 3 methods passed" in page and page.partition("<article")[0].count(">failed<") == 1
