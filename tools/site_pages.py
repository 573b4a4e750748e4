"""The pages of the documentation site, a hook of mkdocs: README, docs/, and the files of the repository they link to.

The site keeps the paths of the repository, so a link works in both.
"""

import re
from collections.abc import Iterable
from os.path import normpath
from pathlib import Path
from typing import Any

HOME = Path(__file__).parents[1]
LINK = re.compile(r"\]\(([^)#\s]+)")
FENCE = re.compile(r"^```(\w+) (\S+)$", re.MULTILINE)
COMMENT = re.compile(r"^(<!-- .* -->)$", re.MULTILINE)


def linked_files(pages: Iterable[str], home: Path = HOME) -> list[str]:
    """The pages, and the files that they link to, also through each other; paths relative to the repository."""
    files, pending = dict[str, None](), list(pages)
    while pending:
        page = pending.pop()
        if page in files:
            continue
        files[page] = None
        if page.endswith(".md"):
            targets = LINK.findall((home / page).read_text(encoding="utf-8"))
            paths = [normpath(Path(page).parent / target) for target in targets if "://" not in target]
            pending += [path for path in paths if (home / path).is_file()]
    return sorted(files)


def on_files(files: Any, config: Any) -> Any:
    """The files of the site: those of the theme, and the pages of the repository in place of those of docs/."""
    from mkdocs.structure.files import File, Files

    pages = ["README.md", *(path.relative_to(HOME).as_posix() for path in HOME.glob("docs/**/*.md"))]
    own = [File(path, str(HOME), config.site_dir, config.use_directory_urls) for path in linked_files(pages)]
    return Files([*own, *(file for file in files if file.src_dir != config.docs_dir)])


def on_page_markdown(markdown: str, **_: Any) -> str:
    """GitHub's Markdown as mkdocs takes it.

    Blocks with the name of a file, such as `toml short.toml`, get it as their title. Comments are separated from the
    tables between them.
    """
    return COMMENT.sub(r"\n\1\n", FENCE.sub(r'```\1 title="\2"', markdown))
