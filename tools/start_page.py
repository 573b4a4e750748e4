"""Write the table of claims on the studies' start page, and its pictures, from the stored results.

    python -m tools.start_page

writes the block `verdicts` of docs/studies/index.md; docs/studies/verdicts.svg, the forest plot of the claims, which
the README shows, too; and docs/studies/wrong-answers.svg, the length of wrong answers with GRPO and with Dr. GRPO.
Needs the extra `studies`. `make studies` runs it.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from studies.claims import fresh_results
from studies.figures import line, new_figure, write_svg
from studies.lengths import WRONG
from studies.pages import RESULTS, filled, read_exact
from studies.start_page import claims, picture, verdicts
from studies.study import Estimate, Exact, Measured

from groupwise.certificates.studies import read_results
from studies import length_bias

HOME = Path(__file__).resolve().parents[1]
PAGE = Path("docs/studies/index.md")
FOREST, LENGTHS = PAGE.with_name("verdicts.svg"), PAGE.with_name("wrong-answers.svg")
ALT = (
    "Length of wrong answers over iterations: with GRPO they grow to the limit of 64 tokens, with Dr. GRPO they stay; "
    "on the left a policy of two numbers, on the right a language model."
)


def draw_lengths(panels: Sequence[Any], measured: Mapping[str, Measured], exact: Exact) -> None:
    """The length of wrong answers with GRPO and with Dr. GRPO, where length is worth nothing."""
    numbers, model = panels
    for colour, key in enumerate(("grpo", "dr_grpo")):
        name = ("GRPO", "Dr. GRPO")[colour]
        runs = exact["two_numbers"][key]
        wrong = [(i, Estimate(tuple(pair[0] for pair in pairs))) for i, pairs in enumerate(zip(*runs), 1)]
        line(numbers, wrong, colour, name, dashed=bool(colour))
        line(model, measured["long"].series(key, WRONG), colour, name, dashed=bool(colour))
    for axes, title in ((numbers, "a policy of two numbers"), (model, "a language model")):
        axes.set(title=title, xlabel="iteration", ylim=(0, 66))
    numbers.set_ylabel("tokens of a wrong answer")
    numbers.legend(loc="upper left")


def main() -> int:
    results, exact = read_results(HOME / RESULTS), read_exact(HOME)
    every, page = claims(results, exact, fresh_results(HOME)), (HOME / PAGE).read_text(encoding="utf-8")
    (HOME / PAGE).write_text(filled(page, {"verdicts": verdicts(every)}), encoding="utf-8")
    (HOME / FOREST).write_text(picture(every), encoding="utf-8")
    study = length_bias.STUDY
    figure, panels = new_figure(2)
    draw_lengths(panels, study.measured(results), exact[study.name])
    write_svg(figure, ALT, HOME / LENGTHS)
    for path in (PAGE, FOREST, LENGTHS):
        print(f"{path}: {(HOME / path).stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
