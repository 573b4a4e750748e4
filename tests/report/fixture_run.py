"""Writes small, deterministic run directories from a seed, shaped like a run that learns."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from groupwise.models.flow.latent_pictures import PictureSheet, png
from groupwise.report.stored_comparisons import NUMBERS
from groupwise.runs.run_info import FORMAT

CANARIES = (
    "<img src=x onerror=\"window.__pwn='img'\">",
    "</script><script>window.__pwn='script'</script>",
    "javascript:alert(1)",
    "\u202egnp.exe\u2066",
    "\x1b]0;owned\x07\x1b[31m",
    "{{data}} \u2028 <!-- & 😀 e\u0301",
)
STEPS = 10
"""Steps of a trajectory in the plane."""
RECIPE = """model = "calculator-small"
task = "calculator"
prompts = {prompts}
iterations = {iterations}
seed = {seed}

[method]
base = "gspo"
group_size = {size}

[method.objective.surrogate]
low = 0.2
high = 0.28

[optimizer]
lr = {lr}
"""


def write_run(
    path: Path,
    *,
    name: str = "calculator-gspo",
    iterations: int = 30,
    prompts: int = 4,
    size: int = 8,
    pool: int = 24,
    seed: int = 0,
    lr: float = 3e-4,
    canary: str = "",
    planned: int | None = None,
    extra: int = 0,
    samples: bool = True,
) -> Path:
    """A run of `iterations` after an evaluation. `canary` is added to every text; `extra` counts unknown metrics."""
    rng = np.random.default_rng(seed)
    (path / "samples").mkdir(parents=True)
    planned = planned or iterations
    (path / "recipe.toml").write_text(RECIPE.format(prompts=prompts, iterations=planned, seed=seed, size=size, lr=lr))
    (path / "run.json").write_text(json.dumps(about(name + canary, planned, seed, canary)))
    skill = 1 / (1 + np.exp(-np.linspace(-1.2, 4.2 if lr > 2e-4 else 1.9, iterations + 1)))
    metrics, timings = [], []
    for i in range(iterations + 1):
        row: dict[str, Any] = {"iteration": i, "step": i}
        if i:
            groups = [
                draw(rng, skill[i], size, int(rng.integers(pool)), i * prompts + p, canary) for p in range(prompts)
            ]
            if samples:
                write_samples(path / "samples" / f"{i:06d}", [s for group in groups for s in group], rng)
            row |= of_groups(groups) | of_step(rng, skill[i], i)
            row |= {f"own/{k}{canary}": float(rng.normal()) for k in range(extra)}
            learn = 0.42 + 0.05 * rng.random()
            timings.append(
                {
                    "iteration": i,
                    "seconds/sample": 1.1 - 0.3 * skill[i] + 0.06 * rng.random(),
                    "seconds/learn": learn,
                    "seconds/evaluate": 0.8 if i % 5 == 0 else 0.0,
                    "seconds/save": 0.03,
                    "tokens_per_second": 2900 + 300 * rng.random(),
                    "memory_mib": 612.0 + i,
                }
            )
            timings[-1]["seconds"] = 0.05 + sum(v for k, v in timings[-1].items() if k.startswith("seconds/"))
        if i % 5 == 0 or i == iterations:
            greedy = min(0.98, 0.08 + 0.92 * skill[i])
            row |= {
                "eval/accuracy": greedy * 0.86,
                "eval/accuracy_greedy": greedy,
                "eval/low_greedy": greedy - 0.04,
                "eval/high_greedy": min(1.0, greedy + 0.03),
                "eval/truncated": 0.02 * (1 - skill[i]),
            }
        metrics.append(row)
    write_lines(path / "metrics.jsonl", metrics)
    write_lines(path / "timings.jsonl", timings)
    return path


def about(name: str, iterations: int, seed: int, canary: str) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "name": name,
        "command": ["groupwise", "train", "calculator.toml", "--seed", str(seed)],
        "iterations": iterations,
        "seed": seed,
        "model": "calculator-small (0.8 M)",
        "task": "calculator" + canary,
        "data_sha256": "9f2c" * 16,
        "versions": {"groupwise": "0.1.0", "torch": "2.13.0", "python": "3.11.9"},
        "method": {
            "name": "gspo",
            "reference": "Group Sequence Policy Optimization, arXiv:2507.18071, equation 5",
            "formula": "J = E[ 1/G Σᵢ min( sᵢ Âᵢ, clip(sᵢ, 1 − 0.2, 1 + 0.28) Âᵢ ) ],  "
            "sᵢ = ( π(yᵢ|x) / π_old(yᵢ|x) )^(1/|yᵢ|)",
            "changed": ["group_size: 16 -> 8", "objective.surrogate.low: 0.0003 -> 0.2" + canary],
        },
    }


def draw(
    rng: np.random.Generator, skill: float, size: int, prompt: int, number: int, canary: str
) -> list[dict[str, Any]]:
    """One group: answers to one prompt, rewards, and advantages as z-scores."""
    terms = np.random.default_rng(prompt).integers(2, 10, 4)
    question, total, chain = str(terms[0]), int(terms[0]), []
    for term in terms[1:]:
        question += f"+{term}"
        chain.append(f"{total}+{term}={total + term}")
        total += int(term)
    group = []
    for _ in range(size):
        lucky = rng.random()
        right = lucky < skill * (0.55 + 0.45 * (prompt % 3 == 0) + 0.3 * skill)
        outcome = "correct" if right else "unverifiable" if lucky > 0.995 else "malformed" if lucky > 0.96 else "wrong"
        given = total if right else total + int(rng.integers(1, 9))
        steps = chain if right or rng.random() < skill else []
        text = ";".join([*steps, f"#{given}" if outcome != "malformed" else f"{given}"]) + canary
        finish = "length" if outcome == "malformed" else "stop"
        group.append(
            {
                "draw": number, "prompt_id": f"p{prompt}{canary}", "prompt": f"{question}={canary}", "group": 0,
                "role": "answer", "text": text, "finish": finish, "outcome": outcome, "score": None,
                "cause": "timeout" if lucky > 0.995 else None, "feedback": None, "reward": float(right),
                "selected": True, "parts": {}, "gold": str(total), "length": len(text) + (finish == "stop"),
            }
        )  # fmt: skip
    rewards = np.array([s["reward"] for s in group])
    for sample, z in zip(group, (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-6)):
        sample["advantage"] = float(z)
    return group


def write_samples(path: Path, samples: list[dict[str, Any]], rng: np.random.Generator) -> None:
    """The JSON lines and the arrays per token: one token per character, and one for the end."""
    write_lines(path.with_suffix(".jsonl"), samples)
    ends = [e for s in samples for e in [*range(1, len(s["text"]) + 1), *[len(s["text"])] * (s["finish"] == "stop")]]
    n = len(ends)
    logp, ratio, clip = -rng.exponential(0.35, n), np.exp(rng.normal(0, 0.06, n)), rng.integers(-1, 2, n)
    advantage = np.repeat(
        [np.nan if s["outcome"] == "unverifiable" else s["advantage"] for s in samples], [s["length"] for s in samples]
    )
    save_file(
        {
            "lengths": np.array([s["length"] for s in samples], np.int64),
            "tokens": rng.integers(0, 24, n).astype(np.int32),
            "ends": np.array(ends, np.int32),
            "logp_engine": (logp + rng.normal(0, 2e-6, n)).astype(np.float32),
            "logp": logp.astype(np.float32),
            "ratio": ratio.astype(np.float32),
            "advantage": advantage.astype(np.float32),
            "share": np.full(n, 1 / n, np.float32),
            "gradient": np.where(clip == 0, -ratio * advantage / n, 0 * advantage).astype(np.float32),
            "clip": clip.astype(np.int8),
        },
        path.with_suffix(".safetensors"),
    )


def of_groups(groups: list[list[dict[str, Any]]]) -> dict[str, float]:
    """The metrics that follow from the samples."""
    every = [s for group in groups for s in group]
    rewards = np.array([[s["reward"] for s in group] for group in groups])
    lengths = np.array([s["length"] for s in every], float)
    right = np.array([s["outcome"] == "correct" for s in every])
    share = {
        f"outcome/{o}": float(np.mean([s["outcome"] == o for s in every]))
        for o in ("correct", "wrong", "malformed", "unverifiable")
    }
    return share | {
        "reward": float(rewards.mean()),
        "reward_std": float(rewards.std(1, ddof=1).mean()),
        "frac_reward_zero_std": float((rewards.std(1) == 0).mean()),
        "groups/all_right": float((rewards.min(1) == 1).mean()),
        "groups/all_wrong": float((rewards.max(1) == 0).mean()),
        "rollout/selected": len(groups),
        "rollout/dropped": 0,
        "rollout/missing": 0,
        "num_tokens": float(lengths.sum()),
        "completions/mean_length": float(lengths.mean()),
        "completions/max_length": float(lengths.max()),
        "completions/clipped_ratio": float(np.mean([s["finish"] == "length" for s in every])),
        "completions/mean_length_correct": float(lengths[right].mean()) if right.any() else float("nan"),
        "completions/mean_length_wrong": float(lengths[~right].mean()) if (~right).any() else float("nan"),
    }


def of_step(rng: np.random.Generator, skill: float, i: int) -> dict[str, Any]:
    """Invented metrics of the optimizer step."""
    norm = float(np.exp(rng.normal(-0.6, 0.3)))
    return {
        "loss": float(rng.normal(0, 1e-3)),
        "grad_norm": norm,
        "grad_norm_clipped": min(norm, 1.0),
        "learning_rate": 3e-4 * min(1, i / 5),
        "entropy": float(0.9 - 0.62 * skill + rng.normal(0, 0.015)),
        "kl": float(0.02 * i**0.5),
        "steps_skipped": 0,
        "clip_ratio/low_mean": float(rng.random() * 0.02),
        "clip_ratio/high_mean": float(rng.random() * 0.03),
        "ratio/max": float(1.2 + 0.3 * rng.random()),
        "ratio/p99": float(1.1 + 0.05 * rng.random()),
        "sampling/sampling_logp_difference/mean": float(2e-7 * (1 + rng.random())),
        "sampling/sampling_logp_difference/max": float(3e-6 * (1 + rng.random())),
        "subscores/chain_true": float(min(1, 0.2 + 0.8 * skill)),
    }


def write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    """JSON Lines, with null for values that are not finite."""
    clean = [{k: None if isinstance(v, float) and not np.isfinite(v) else v for k, v in row.items()} for row in rows]
    path.write_text("".join(json.dumps(row) + "\n" for row in clean), encoding="utf-8")


EPISODES = ((("answer", (0, 3, 5)), ("thread", (1, 2)), ("thread", (4,))), (("answer", (2,)), ("thread", (0, 1))))
"""The conversations of two episodes, with their roles and requests: a helper and a branch; a solver and a checker."""


def write_episodes(run: Path, *, canary: str = "") -> list[dict[str, Any]]:
    """Replace the samples of the last iteration by two episodes of an agent. Returns them, as the file has them."""
    path = max((run / "samples").glob("*.jsonl"))
    (row, *_) = (json.loads(line) for line in path.read_text().splitlines())
    rows = []
    order = [(role, i, of) for role in ("answer", "thread") for i, e in enumerate(EPISODES) for r, of in e if r == role]
    for role, parent, numbers in order:
        text, requests = "", []
        for n in numbers:
            text += f"{n};" if requests else ""
            start, text = len(text), text + f"{n}*2="
            message = {"role": "tool" if requests else "user", "text": f"message {n}{canary}", "calls": []}
            calls = [["double", f'{{"x": {n}}}{canary}']] if n == 0 else []
            earlier = requests[-1]["number"] if requests else 0 if n == 4 else None
            requests.append({"number": n, "messages": [message], "start": start, "end": len(text),
                             "prompt_tokens": 10 + n, "calls": calls, "continues": earlier})  # fmt: skip
        of = {"role": role, "text": text, "length": len(text), "finish": "length", "requests": requests}
        of |= {"outcome": ("correct", "wrong")[parent], "reward": 1.0 - parent, "advantage": 1.0 - 2 * parent}
        rows.append(row | of | ({"parent": parent} if role == "thread" else {}))
    write_samples(path.with_suffix(""), rows, np.random.default_rng(0))
    return rows


def write_comparison(run: Path, iteration: int, methods: list[str], canary: str = "") -> list[dict[str, Any]]:
    """A stored comparison of methods on an iteration, with made-up numbers. Returns its samples, in the file's order.

    The last method drops the first sample of each group, and has no bounds and so no clipped tokens.
    """
    rng = np.random.default_rng(iteration)
    rows = [json.loads(line) for line in (run / "samples" / f"{iteration:06d}.jsonl").read_text().splitlines()]
    groups: dict[Any, list[dict[str, Any]]] = {}
    for line, row in enumerate(rows, 1):
        numbers: dict[str, dict[str, float | None]] = {m: {x: float(rng.normal()) for x in NUMBERS} for m in methods}
        numbers[methods[-1]]["clipped"] = None
        groups.setdefault(row["draw"], []).append({"sample": line, "outcome": row["outcome"], "methods": numbers})
    for group in groups.values():
        group[0]["methods"][methods[-1]] = None
    cosines = {m: float(rng.uniform(-1, 1)) for m in methods}
    data = {
        "methods": {m: {"samples": len(rows), "cosines": cosines, "notes": [f"a note {canary}"]} for m in methods},
        "left_out": {"ppo": f"it needs values {canary}"},
        "groups": [{"samples": group, "cosines": cosines} for group in groups.values()],
    }
    (run / "whatif").mkdir(exist_ok=True)
    (run / "whatif" / f"{iteration:06d}.json").write_text(json.dumps(data))
    return [sample for group in groups.values() for sample in group]


def write_prompt_pictures(run: Path, sides: Sequence[tuple[int, int]]) -> Path:
    """Add pictures of these heights and widths to the prompts of a run's samples."""
    for path in sorted((run / "samples").glob("*.jsonl")):
        rng = np.random.default_rng(int(path.stem))
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        sheet = PictureSheet.of([[rng.integers(0, 256, (*side, 3), dtype=np.uint8) for side in sides]])
        assert sheet is not None
        path.with_suffix(".png").write_bytes(png(sheet.pixels))
        boxes = [{"box": box, "scale": sheet.enlargement_factor} for box in sheet.picture_boxes]
        write_lines(path, [row | {"prompt_pictures": boxes} for row in rows])
    return run


def write_pictures(run: Path, *, plane: bool, side: int = 8) -> Path:
    """Add pictures to the samples of a run; with `plane` also the states of points that walk to the right."""
    for path in sorted((run / "samples").glob("*.jsonl")):
        rng = np.random.default_rng(int(path.stem))
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        sheet = PictureSheet.of([list(rng.integers(0, 256, (len(rows), side, side, 3), dtype=np.uint8))])
        assert sheet is not None
        path.with_suffix(".png").write_bytes(png(sheet.pixels))
        for i, (row, box) in enumerate(zip(rows, sheet.picture_boxes, strict=True)):
            row["picture"] = {"box": box, "scale": sheet.enlargement_factor}
            if plane:
                row["points"] = [[round(-3 + 0.5 * k, 3), round(-1 + 0.1 * i, 3)] for k in range(STEPS + 1)]
        write_lines(path, rows)
    return run
