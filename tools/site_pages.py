"""The pages of the documentation site, a hook of mkdocs: docs/, and the files of the repository that they link to.

The site keeps the paths of the repository, so a link works in both. It adds a page for each published method, which is
not in the repository; links to a method's line in docs/methods.md lead to that page.
"""

import re
from collections.abc import Iterable
from os.path import normpath
from pathlib import Path
from typing import Any

from tools.method_pages import INDEX, method_page, page_of

from groupwise.config.registry import methods
from groupwise.methods.families import FAMILIES, method_family

HOME = Path(__file__).parents[1]
LINK = re.compile(r"\]\(([^)#\s]+)")
SOURCE = re.compile(r"\bsrc(?:set)?=\"([^\"#\s]+)\"")
FENCE = re.compile(r"^```(\w+) (\S+)$", re.MULTILINE)
COMMENT = re.compile(r"^(<!-- .* -->)$", re.MULTILINE)

START = "docs/index.md"
PLACES = {START: "index.html"}
"""The address of a page in the site, where it is not that of its file."""
FURTHER = ("docs/rollouts-dark.png", "docs/site.css")
"""Files of the site that no page links to."""
BOOSTS = {
    "docs/install.md": 8.0,
    "docs/library.md": 2.0,
    "docs/methods.md": 0.5,
    "docs/atlas.md": 0.5,
    "CHANGELOG.md": 0.2,
}
"""How much more a page counts in the search than others, by its file."""
PICTURE = re.compile(r"^!\[(.*)\]\((\S+)-light\.png\)$", re.MULTILINE)
BOTH_PICTURES = re.compile(
    r'^<picture>\s*<source media="\(prefers-color-scheme: dark\)" srcset="(\S+)-dark\.png">\s*'
    r'<img alt="([^"]*)" src="\1-light\.png">\s*</picture>$',
    re.MULTILINE,
)
"""A picture for each mode, as GitHub takes them. The site has a switch of modes besides the browser's."""

METHOD_FILE = re.compile(r"\]\(\.\./src/groupwise/methods/\w+/(\w+)\.py\)")
METHOD_LINE = re.compile(r"\]\((\S*)methods\.md#(\w+)\)")


def linked_files(pages: Iterable[str], home: Path = HOME) -> list[str]:
    """The pages, and the files that they link to, also through each other; paths relative to the repository."""
    files, pending = dict[str, None](), list(pages)
    while pending:
        page = pending.pop()
        if page in files:
            continue
        files[page] = None
        if page.endswith(".md"):
            text = (home / page).read_text(encoding="utf-8")
            targets = [*LINK.findall(text), *SOURCE.findall(text)]
            paths = [normpath(Path(page).parent / target) for target in targets if "://" not in target]
            pending += [path for path in paths if (home / path).is_file()]
    return sorted(files)


def on_config(config: Any) -> None:
    """The navigation, with the pages of methods by family below the index."""
    (section,) = (entry["Methods"] for entry in config.nav if "Methods" in entry)
    for family in FAMILIES:
        section.append({family: [page_of(name) for name in methods() if method_family(name) == family]})


def on_files(files: Any, config: Any) -> Any:
    """The files of the site: those of the theme, and the pages of the repository in place of those of docs/."""
    from mkdocs.structure.files import File, Files

    pages = [path.relative_to(HOME).as_posix() for path in HOME.glob("docs/**/*.md")]
    own = [
        File(path, str(HOME), config.site_dir, config.use_directory_urls, dest_uri=PLACES.get(path))
        for path in [*linked_files(pages), *FURTHER]
    ]
    own += [File.generated(config, page_of(name), content=method_page(name)) for name in methods()]
    return Files([*own, *(file for file in files if file.src_dir != config.docs_dir)])


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """GitHub's Markdown as mkdocs takes it, with links to the pages of methods.

    Blocks with the name of a file, such as `toml short.toml`, get it as their title. Comments are separated from the
    tables between them. A light picture gets its dark one beside it.
    """
    source = page.file.src_uri
    if boost := boost_of(source):
        page.meta["search"] = {"boost": boost}
    markdown = BOTH_PICTURES.sub(r"![\2](\1-light.png)", markdown)
    markdown = PICTURE.sub(r"![\1](\2-light.png#only-light)\n![\1](\2-dark.png#only-dark)", markdown)
    markdown = COMMENT.sub(r"\n\1\n", FENCE.sub(r'```\1 title="\2"', markdown))
    return with_method_links(markdown, source)


def boost_of(page: str) -> float | None:
    """How much more a page counts in the search: that of a method 4 times, that of a variant of another one twice."""
    if Path(page).parent.name != "methods":
        return BOOSTS.get(page)
    name = Path(page).stem
    return 2.0 if any(name.startswith(f"{other}_") for other in methods()) else 4.0


def with_method_links(markdown: str, page: str) -> str:
    """The text of a page, where links to the line of a method lead to its page, and so do the links of the index."""
    if page == INDEX:
        markdown = METHOD_FILE.sub(r"](methods/\1.md)", markdown)
    return METHOD_LINE.sub(lambda m: f"]({m[1]}methods/{m[2]}.md)" if m[2] in methods() else m[0], markdown)
