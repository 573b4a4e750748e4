"""tools/words.py: the prose of a file, and the lines drawn by a seed."""

from pathlib import Path

from tools.words import SOURCE, draw, errors_of, prose_of

CODE = '''"""The first
line.

More."""

LIMIT = 3  # a comment
"""A constant."""


class Part:
    """A class."""

    field: int
    """A field."""

    def method(self) -> None:
        name = "one_word"
        raise ValueError(f"{name} is {self.field}: it must be below", fix="use less than " + str(LIMIT))
'''


def test_the_prose_of_a_python_file(tmp_path: Path) -> None:
    path = tmp_path / "part.py"
    path.write_text(CODE)
    prose = {(p.kind, p.name, p.text.partition("\n")[0]) for p in prose_of(path)}
    assert prose == {
        ("docstring", "module", "The first"),
        ("comment", "", "a comment"),
        ("docstring", "LIMIT", "A constant."),
        ("docstring", "Part", "A class."),
        ("docstring", "field", "A field."),
        ("message", "", "{} is {}: it must be below"),
        ("message", "", "use less than "),
    }
    assert errors_of(path) == ["one_word is {self.field}: it must be below | fix: use less than {str(LIMIT)}"]


def test_a_message_shows_the_texts_of_its_local_variables(tmp_path: Path) -> None:
    path = tmp_path / "part.py"
    path.write_text("""def check(n):
    what, fix = f"{n} is odd", "take an even number"
    near = f"{n + 1} is near" if n else "none is near"
    raise Usage(f"a bad size: {what}", evidence=near, fix=fix)
""")
    message = "a bad size: {n} is odd | evidence: {n + 1} is near / none is near | fix: take an even number"
    assert errors_of(path) == [message]


def test_the_prose_of_a_page_is_without_code(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text("one\n\n```python\ncode here\n```\ntwo\n")
    assert [(p.line, p.text) for p in prose_of(path)] == [(1, "one"), (6, "two")]


def test_a_seed_draws_the_same_lines() -> None:
    room = SOURCE / "config"
    first = draw(0, room)
    assert len(first) == 60 and first == draw(0, room) and first != draw(1, room)
