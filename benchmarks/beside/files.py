"""Where the files lie that both sides read. Standard library only."""

from pathlib import Path

from benchmarks.beside.regimes import Regime

HOME = Path(__file__).resolve().parents[2]
ROOT = HOME / "runs" / "beside"
"""Where models, problems and prompts lie between runs."""
PACKAGED = HOME / "src" / "groupwise" / "models" / "calculator"


def model_of(regime: Regime) -> Path:
    """The model directory that both sides load."""
    return PACKAGED if regime.net is None else ROOT / regime.letter / "model"


def problems_of(regime: Regime) -> str:
    """What Groupwise's recipe calls the task."""
    return "calculator" if regime.net is None else str(ROOT / regime.letter / "problems.jsonl")


def prompts_of(regime: Regime, seed: int) -> Path:
    """The prompts in the order in which a run of this seed draws them: TRL's data set."""
    return ROOT / regime.letter / f"prompts-{seed}.jsonl"
