"""Paths of the files that both systems read. Standard library only."""

from pathlib import Path

from benchmarks.trl_comparison.regimes import Regime

HOME = Path(__file__).resolve().parents[2]
ROOT = HOME / "runs" / "trl_comparison"
"""Directory of models, problems and prompts, kept between runs."""
PACKAGED = HOME / "src" / "groupwise" / "models" / "calculator"


def model_of(regime: Regime) -> Path:
    """The model directory that both systems load."""
    return PACKAGED if regime.net is None else ROOT / regime.letter / "model"


def problems_of(regime: Regime) -> str:
    """The `task` of Groupwise's recipe."""
    return "calculator" if regime.net is None else str(ROOT / regime.letter / "problems.jsonl")


def prompts_of(regime: Regime, seed: int) -> Path:
    """TRL's data set: the prompts in the order in which a Groupwise run of this seed draws them."""
    return ROOT / regime.letter / f"prompts-{seed}.jsonl"
