"""Write docs/fields.md, the page of all fields of a recipe: `python -m tools.fields_page`."""

from pathlib import Path

from groupwise.config.fields import SECTIONS, recipe_fields, section_text

PAGE = Path(__file__).resolve().parents[1] / "docs" / "fields.md"


def fields_page() -> str:
    """The page as Markdown: a table for each section of a recipe."""
    lines = [
        "# Fields of a recipe",
        "",
        "`make docs` writes this page from the package, and a test compares them. `groupwise help FIELD` prints one",
        "field, also the constants of its components. Each field is an option: `--sampling.max_tokens 256`. A field",
        "without a default needs a value. The defaults of `method` are those of a method without a base;",
        "`groupwise show NAME` prints the constants of a published one.",
        "",
    ]
    for section in SECTIONS:
        rows = [field for path, field in recipe_fields().items() if path.rpartition(".")[0] == section]
        lines += [f"## {section or 'The recipe'}", "", section_text(section), ""]
        lines += ["| field | meaning | type | unit | default | example |", "|---|---|---|---|---|---|"]
        for field in rows:
            cells = (field.meaning, field.type, field.unit, code(field.default), code(field.example))
            lines.append(f"| `{field.name}` | {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def code(text: str) -> str:
    """Text as code; an empty text stays empty."""
    return f"`{text}`" if text else ""


if __name__ == "__main__":
    PAGE.write_text(fields_page(), encoding="utf-8")
