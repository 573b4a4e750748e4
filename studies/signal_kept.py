"""Does an update with one ratio for a sequence keep more signal than one with a ratio for each token? Exactly.

Stated before the numbers, after a pilot with another layout of the parameters. GSPO (arXiv:2507.18071) says that the
noise of token ratios grows with the length of the answers and that the ratio of a sequence averages it. Here the exact
gradient is known (studies/noisy_answers.py), so the claim has an answer for each noise, size and length: it is *true*
where GSPO with the bounds of its paper keeps more signal than GRPO with its own, *false* where it keeps less, by the
95 % interval of the difference over blocks of answers, and else *undecided*. Beside them are the same ratio with wider
bounds, with bounds that fit the measured spread, and without any.

    python -m studies.signal_kept [LENGTH ...]      # measure these lengths, or all, and write the page
    python -m studies.signal_kept --page            # only write the page from the stored numbers

Signal kept is not yet learning: nothing is trained here.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from groupwise.core import MissingRequirement
from studies.figures import COLOURS, need_matplotlib, new_figure, write_svg
from studies.pages import csv_text, filled, read_exact, store_exact
from studies.ratio_noise import BATCHES, CENTRED, FITTED, NOISES, SEQUENCE, TOKEN, UNCLIPPED, measure
from studies.running import HOME
from studies.study import Estimate, table

NAME, PAGE = "signal_kept", Path("docs/studies/signal-kept.md")
GRPO, GSPO = next(iter(TOKEN)), next(iter(SEQUENCE))
RATIOS = (*TOKEN, *SEQUENCE, FITTED, CENTRED)
TITLES = {
    "recorded": "recorded number off, sd",
    "engine": "engine samples other logits, sd",
    "churn": "experts of tokens changed, share",
}
NAMES = {noise: f"{TITLES[noise.kind]} {noise.size:g}" for noise in NOISES}
ALT = (
    "Share of the signal that an update keeps, by the noise of a token, at lengths of 16, 256 and 4096 tokens: for the "
    "ratio of a token, and for that of a sequence with the bounds of its paper, with fitted bounds and without bounds."
)
DRAWN = {GRPO: 0, GSPO: 1, FITTED: 2, UNCLIPPED: 3}
"""The ratios of the figure, with their colours."""
Stored = Mapping[str, Any]


def kept(stored: Stored, length: int, noise: str, ratio: str) -> Estimate:
    """The signal kept, with its interval over blocks of answers."""
    return Estimate(tuple(stored[str(length)][noise][ratio]["kept"]))


def gain(stored: Stored, length: int, noise: str) -> Estimate:
    """The signal that GSPO keeps, minus what GRPO keeps of the same answers."""
    return kept(stored, length, noise, GSPO).minus(kept(stored, length, noise, GRPO))


def verdict(stored: Stored, length: int, noise: str) -> str:
    """Whether the claim is true at a length under a noise."""
    low, high = gain(stored, length, noise).interval
    return f"*{'true' if low > 0 else 'false' if high < 0 else 'undecided'}*"


def blocks(stored: Stored) -> dict[str, str]:
    """The generated texts of the page."""
    lengths = sorted(map(int, stored))
    claims = [
        (title, *(f"{kept(stored, n, noise.name, GRPO).mean:.2f} / {kept(stored, n, noise.name, GSPO).mean:.2f} "
                  f"{verdict(stored, n, noise.name)}" for n in lengths))
        for noise, title in NAMES.items()
    ]  # fmt: skip
    return {
        NAME: f"GSPO with its paper's bounds keeps more signal than GRPO {where_true(stored)}.",
        "claims": table(("noise", *(f"L = {n}" for n in lengths)), claims),
        **{f"bounds_{n}": bounds(stored, n) for n in lengths if n in (16, 256, 4096)},
    }


def where_true(stored: Stored) -> str:
    """The noises under which the claim is true, with their lengths."""
    lengths, found = sorted(map(int, stored)), dict[str, list[str]]()
    for noise, title in NAMES.items():
        true = [n for n in lengths if verdict(stored, n, noise.name) == "*true*"]
        at = f"from {true[0]} tokens on" if true and true == lengths[-len(true) :] else f"at the lengths {true}"
        if true:
            found.setdefault("at every length" if true == lengths else at, []).append(f"*{title}*")
    listed = (f"{at} under {' and '.join(titles)}" for at, titles in found.items())
    return f"{', '.join(listed)}, and under none of the other {len(NOISES) - sum(map(len, found.values()))} noises"


def bounds(stored: Stored, length: int) -> str:
    """The table of the signal that each ratio keeps at a length."""
    rows = [
        (title, *(f"{kept(stored, length, noise.name, ratio).mean:.2f}" for ratio in RATIOS))
        for noise, title in NAMES.items()
    ]
    return table(("noise", *(ratio.removeprefix("sequence ") for ratio in RATIOS)), rows)


def rows(stored: Stored) -> list[tuple[object, ...]]:
    """All numbers, for the CSV file: with the ends of the 95 % interval, and the share of clipped tokens."""
    values = [
        (int(length), noise, ratio, x.mean, *x.interval, found["clipped"])
        for length, noises in stored.items()
        for noise, ratios in noises.items()
        for ratio, found in ratios.items()
        for x in [Estimate(tuple(found["kept"]))]
    ]
    return [("length", "noise", "ratio", "signal kept", "low", "high", "clipped"), *values]


def draw(panels: Sequence[Any], stored: Stored) -> None:
    """Signal kept by token noise: above with recorded numbers off, below with an engine that samples other logits."""
    for axes, (kind, length) in zip(panels, [(k, n) for k in ("recorded", "engine") for n in (16, 256, 4096)]):
        sizes = [noise.size for noise in NOISES if noise.kind == kind]
        for ratio, colour in DRAWN.items():
            estimates = [kept(stored, length, f"{kind} {size:g}", ratio) for size in sizes]
            low, high = zip(*(x.interval for x in estimates))
            style = {"color": COLOURS[colour], "linestyle": ("-", "-", "--", ":")[colour]}
            axes.plot(sizes, [x.mean for x in estimates], linewidth=2.2, label=ratio, **style)
            axes.fill_between(sizes, low, high, color=COLOURS[colour], alpha=0.2, linewidth=0)
        axes.set(title=f"{kind}, {length} tokens", xscale="log", ylim=(0, 1.35), xticks=sizes, xticklabels=sizes)
        axes.minorticks_off()
    for axes in panels[::3]:
        axes.set_ylabel("signal kept")
    for axes in panels[3:]:
        axes.set_xlabel("noise of a token, sd")
    panels[0].legend(loc="lower left", labelspacing=0.2)


def written(stored: Stored) -> dict[Path, str]:
    """The text of the page and of its CSV file."""
    page = HOME / PAGE
    return {page: filled(page.read_text("utf-8"), blocks(stored)), page.with_suffix(".csv"): csv_text(rows(stored))}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m studies.signal_kept", description="Write the page of signal kept.")
    parser.add_argument("lengths", nargs="*", type=int, metavar="LENGTH", help=f"of {[*BATCHES]} (all)")
    parser.add_argument("--page", action="store_true", help="only write the page from the stored numbers")
    a = parser.parse_args(argv)
    if unknown := set(a.lengths) - BATCHES.keys():
        parser.error(f"no length is {min(unknown)}: take {', '.join(map(str, BATCHES))}")
    try:
        need_matplotlib()
    except MissingRequirement as error:
        print(f"error: {error}", file=sys.stderr)
        return error.code
    for length in () if a.page else a.lengths or BATCHES:
        stored = read_exact(HOME).get(NAME, {}) | {str(length): measure(length)}
        store_exact(NAME, dict(sorted(stored.items(), key=lambda item: int(item[0]))), HOME)
        print(f"{length} tokens: measured", flush=True)
    stored = read_exact(HOME)[NAME]
    for path, text in written(stored).items():
        path.write_text(text, encoding="utf-8")
    figure, panels = new_figure(6)
    draw(panels, stored)
    write_svg(figure, ALT, (HOME / PAGE).with_suffix(".svg"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
