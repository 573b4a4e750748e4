"""Prose that a terminal gets is wrapped between words; tables, pipes and files keep their lines."""

import io
import os
import pty
from collections.abc import Iterator
from typing import TextIO

import pytest

from groupwise.__main__ import main
from groupwise.core import terminal_width, wrapped
from groupwise.training.progress_output import notify, printed_to

LINE = "plan: 223,520 weights, 256 answers and at most 12,288 tokens per iteration, about 0.4 GiB of memory"


@pytest.fixture
def terminal() -> Iterator[tuple[TextIO, int]]:
    """The writing end of a terminal with 60 columns, and its other end."""
    import fcntl
    import struct
    import termios

    reader, writer = pty.openpty()
    fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
    with os.fdopen(writer, "w") as out:
        yield out, reader
    os.close(reader)


def test_a_notice_fits_the_terminal_and_is_one_line_in_a_pipe(terminal: tuple[TextIO, int]) -> None:
    out, reader = terminal
    with printed_to(out):
        notify(LINE)
    lines = os.read(reader, 4096).decode().splitlines()
    assert len(lines) == 2 and max(map(len, lines)) <= 60 and " ".join(line.strip() for line in lines) == LINE
    pipe = io.StringIO()
    with printed_to(pipe):
        notify(LINE)
    assert pipe.getvalue() == LINE + "\n" and terminal_width(out, 9) == 60 and terminal_width(pipe, 9) == 9


def test_rows_of_tables_and_long_words_stay() -> None:
    row, path = "1 x H100    0.4    74.5", "runs/" + "a" * 40
    assert wrapped(f"{row}\n{path}\n\nx", 12) == f"{row}\n{path}\n\nx" and wrapped(LINE, 0) == LINE


@pytest.mark.parametrize("words", [["methods"], ["help"], ["plan", "--machines", "rtx4090"]])
def test_commands_fit_the_terminal(
    words: list[str], terminal: tuple[TextIO, int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in ("commands.methods", "commands.field_help", "commands.plan"):
        monkeypatch.setattr(f"groupwise.{module}.terminal_width", lambda out, otherwise: 60)
    assert main(words) == 0
    prose = [line for line in capsys.readouterr().out.splitlines() if "  " not in line.strip()]
    assert prose and max(map(len, prose)) <= 60
