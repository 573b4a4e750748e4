"""Tests of the report without a browser: reading, thinning, selection, packing and warnings."""

import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from groupwise.report.read_run import MetricCurve, read, thin
from groupwise.report.report import BYTES, PAGE, escaped, page, write_report
from groupwise.report.run_warnings import find_warnings, headline
from groupwise.report.sample_selection import as_json, choose, evenly, most_visited, packed, prompt_map, scan
from groupwise.runs.run_layout import RunLayout
from tests.report.fixture_run import CANARIES, write_comparison, write_lines, write_run

UPLOT = {  # uplot@1.6.32 of the npm registry
    "uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
}


def data_of(path: Path) -> dict:
    """The JSON data of a page."""
    text = path.read_text(encoding="utf-8")
    matches = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    assert len(matches) == 1
    return json.loads(matches[0])


def unpack(value: list | dict | str) -> np.ndarray:
    """The inverse of `packed`, as the page's script does it."""
    import base64

    if isinstance(value, dict):
        return np.full(value["n"], value["v"])
    if isinstance(value, str):
        return np.frombuffer(base64.b64decode(value[3:]), "<" + value[:2])
    return np.array([np.nan if x is None else x for x in value])


def run_with(path: Path, rows: list[dict]) -> Path:
    path.mkdir(parents=True)
    write_lines(path / "metrics.jsonl", rows)
    return path


def rules_of(path: Path) -> dict[str, int]:
    return {w.rule_name: w.iteration for w in find_warnings(read(path))[0]}


def test_the_plotting_library_has_the_recorded_hash():
    for name, digest in UPLOT.items():
        assert hashlib.sha256((PAGE / "uplot" / name).read_bytes()).hexdigest() == digest
    assert "MIT License" in (PAGE / "uplot" / "LICENSE").read_text()


def test_the_command_needs_no_torch(tmp_path):
    """Writing a report and refusing a wrong path both skip the import of torch."""
    run = write_run(tmp_path / "run", iterations=3)
    script = """
import sys
from groupwise.__main__ import main
assert [main(["report", path]) for path in sys.argv[1:]] == [0, 3]
print("LOADED", sorted({"torch", "transformers", "tokenizers", "jaxtyping"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", script, str(run), str(tmp_path)], capture_output=True, text=True)
    assert done.stdout.splitlines() == [str(run / "report.html"), "LOADED []"], done.stderr
    assert done.stderr.startswith(f"error: {tmp_path} is not a run")


def test_the_page_has_every_metric_exactly(tmp_path):
    run = write_run(tmp_path / "run", iterations=12)
    data = data_of(write_report([run]))
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert data["runs"][0]["metrics"]
    for name, x, values, of, bad in data["runs"][0]["metrics"]:
        want = [(r["iteration"], r[name]) for r in rows if name in r]
        got = unpack(values)
        assert np.cumsum(unpack(data["xs"][x])).tolist() == [i for i, _ in want]
        assert [None if np.isnan(v) else v for v in got] == [v for _, v in want]
        assert (of, bad) == (len(want), sum(v is None for _, v in want))


def test_the_page_has_every_token_value_exactly(tmp_path):
    from safetensors.numpy import load_file

    run = write_run(tmp_path / "run", iterations=3)
    for group in data_of(write_report([run]))["runs"][0]["rollouts"]["groups"]:
        stem = run / "samples" / f"{group['iteration']:06d}"
        arrays = load_file(stem.with_suffix(".safetensors"))
        rows = [json.loads(line) for line in stem.with_suffix(".jsonl").read_text().splitlines()]
        starts = np.concatenate([[0], np.cumsum(arrays["lengths"])])
        mine = [i for i, r in enumerate(rows) if (str(r["draw"]), str(r["group"])) == (group["draw"], group["group"])]
        assert len(mine) == group["of"] == len(group["samples"])
        for i, sample in zip(mine, group["samples"]):
            tokens = slice(starts[i], starts[i + 1])
            assert sample["text"] == rows[i]["text"] and sample["reward"] == rows[i]["reward"]
            np.testing.assert_array_equal(np.cumsum(unpack(sample["ends"])), arrays["ends"][tokens])
            for name, key in [
                ("logp", "logp"),
                ("ratio", "ratio"),
                ("logp_engine", "logp_engine"),
                ("advantage", "token_advantage"),
                ("share", "share"),
                ("gradient", "gradient"),
                ("clip", "clip"),
            ]:
                np.testing.assert_array_equal(unpack(sample[key]).astype(np.float32), arrays[name][tokens])


def test_an_unfinished_run_is_read_up_to_the_incomplete_line(tmp_path):
    run = write_run(tmp_path / "run", iterations=6, planned=60)
    for name in ("metrics.jsonl", "timings.jsonl", "samples/000006.jsonl"):
        text = (run / name).read_text()
        (run / name).write_text(text[: -len(text.splitlines()[-1]) // 2])
    (run / "samples" / "000005.safetensors").write_bytes(b"torn")
    unfinished = read(run)
    assert unfinished.last == 5 and unfinished.unreadable_data_notes == ()
    assert "5 of 60 iterations so far" in page([unfinished])
    groups = data_of(write_report([run]))["runs"][0]["rollouts"]["groups"]
    assert {g["iteration"] for g in groups} >= {1, 5, 6}
    assert all("ends" not in s for g in groups if g["iteration"] == 5 for s in g["samples"])


def test_an_empty_directory_and_unreadable_files_still_make_a_page(tmp_path):
    (tmp_path / "empty").mkdir()
    assert write_report([tmp_path / "empty"]).stat().st_size > 50_000
    bad = tmp_path / "bad"
    bad.mkdir()
    (bad / "recipe.toml").write_text("= =")
    (bad / "run.json").write_text("[1")
    (bad / "metrics.jsonl").write_text(
        '{"iteration": 1, "loss": NaN}\nnot json\n[]\n{"iteration": 2, "loss": 1' + "0" * 400 + "}\n"
    )
    notes = " ".join(read(bad).unreadable_data_notes)
    assert "recipe.toml" in notes and "run.json" in notes and "2 unreadable lines" in notes
    assert np.isnan(read(bad).metrics["loss"].metric_values).tolist() == [True, True]
    data_of(write_report([bad]))


def test_a_run_of_another_format_is_noted(tmp_path):
    run = write_run(tmp_path / "run", iterations=2)
    (run / "run.json").write_text('{"format": 1}')
    assert (
        read(run).last == 2 and "run.json has format 1; this version reads format" in read(run).unreadable_data_notes[0]
    )


def test_a_report_without_run_directories_is_a_usage_error(tmp_path):
    from groupwise.core import Usage

    with pytest.raises(Usage, match="run directories"):
        write_report([tmp_path / "absent"])
    with pytest.raises(Usage):
        write_report([])


def test_the_page_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    run = write_run(tmp_path / "run", iterations=3)
    before = write_report([run]).read_bytes()
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        write_report([run])
    assert (run / "report.html").read_bytes() == before
    assert sorted(p.name for p in run.glob("*report*")) == ["report.html"] and not list(run.glob(".report*"))


def test_nothing_a_model_writes_becomes_markup(tmp_path):
    run = write_run(tmp_path / "run", iterations=4, canary="".join(CANARIES), extra=2)
    path = write_report([run])
    text = path.read_text(encoding="utf-8")
    assert "<img" not in text and "onerror=&quot;" in text  # static parts are escaped
    assert "\u202e" not in text and "\x1b" not in text and "\u2028" not in text
    data = re.search(r'id="data">(.*?)</script>', text, re.S)
    assert data is not None and not set("<>&") & set(data[1]) and data[1].isascii()
    sample = data_of(path)["runs"][0]["rollouts"]["groups"][0]["samples"][0]
    assert sample["text"].endswith("".join(CANARIES))  # and nothing is lost
    assert text.count("<script") == 1 + 10 and "http-equiv" in text  # data, the library, nine of ours


def test_the_security_policy_allows_exactly_the_page_s_scripts_and_styles(tmp_path):
    import base64

    text = write_report([write_run(tmp_path / "run", iterations=3)]).read_text(encoding="utf-8")
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None and policy[1].startswith("default-src 'none'; ") and "unsafe" not in policy[1]
    inline = re.findall(r"<(script|style)>(.*?)</\1>", text, re.S)
    digests = {base64.b64encode(hashlib.sha256(body.encode()).digest()).decode() for _, body in inline}
    assert len(inline) == 12 and set(re.findall(r"sha256-([^']+)", policy[1])) == digests
    assert not re.search(r"<[^>]+\son\w+=", text) and not re.search(r'(src|href)="(?!#)', text)
    names = r"github\.com/leeoniya/uPlot|https://|http://www\.w3\.org/2000/svg"  # of a library, and of a namespace
    assert not re.search(r"https?://", re.sub(names, "", text))


def test_size_of_a_long_run(tmp_path):
    """2,000 iterations x 60 metrics + 64 rollouts stay under 3 MB. Longer runs are thinned to the same size."""
    rng = np.random.default_rng(0)
    run = write_run(tmp_path / "run", iterations=16, prompts=4, size=16)
    for n in (2000, 6000):
        rows = [{"iteration": i} | {f"m/{k}": float(x) for k, x in enumerate(rng.normal(size=60))} for i in range(n)]
        write_lines(run / "metrics.jsonl", rows)
        path = write_report([run])
        assert path.stat().st_size < 3_000_000
        rollouts = data_of(path)["runs"][0]["rollouts"]
        assert len(rollouts["groups"]) == 64 and rollouts["of"] == 64


def test_long_answers_are_cut_to_fit_and_counted(tmp_path):
    run = write_run(tmp_path / "run", iterations=2, prompts=1, size=2)
    from safetensors.numpy import save_file

    n = 60_000
    sample = {
        "draw": 0, "group": 0, "prompt_id": "p", "prompt": "x", "text": "é" * n, "outcome": "wrong", "finish": "length",
        "length": n,
    }  # fmt: skip
    for i in (1, 2):
        write_lines(run / "samples" / f"{i:06d}.jsonl", [sample, sample])
        ends = np.tile(np.arange(1, n + 1, dtype=np.int32), 2)
        noise = np.random.default_rng(i).normal(size=2 * n).astype(np.float32)
        save_file(
            {"lengths": np.array([n, n]), "tokens": ends, "ends": ends, "logp": noise, "ratio": noise},
            run / "samples" / f"{i:06d}.safetensors",
        )
    path = write_report([run])
    assert path.stat().st_size <= BYTES
    (group, *_) = data_of(path)["runs"][0]["rollouts"]["groups"]
    first = group["samples"][0]
    assert group["of"] == 2 and first["cut"] and first["tokens_of"] == n
    assert len(unpack(first["ends"])) == len(first["text"]) >= 50_000


def test_rollouts_are_spread_by_position(tmp_path):
    run = write_run(tmp_path / "run", iterations=40, prompts=6, size=4)
    groups, _, _ = scan(RunLayout(run))
    chosen, used = choose(RunLayout(run), groups, most=64, budget=3_000_000)
    assert len(chosen) == 64 and sum(map(len, groups.values())) == 240
    iterations = sorted({g["iteration"] for g in chosen})
    assert len(iterations) == 16 and iterations[0] == 1 and iterations[-1] == 40
    assert used == sum(len(as_json(g)) + 1 for g in chosen)
    fewer, used = choose(RunLayout(run), groups, most=64, budget=30_000)
    assert 0 < len(fewer) < 64 and used <= 30_000
    assert {1, 40} <= {g["iteration"] for g in fewer}


def test_token_ends_are_utf16_offsets(tmp_path):
    from groupwise.report.sample_selection import _sample

    arrays = {"ends": np.array([1, 2, 3, 3], np.int32)}
    sample = _sample({"text": "a😀b"}, arrays, slice(0, 4), 100)
    assert np.cumsum(unpack(sample["ends"])).tolist() == [1, 3, 4, 4]


def test_thinning_keeps_every_extreme():
    rng = np.random.default_rng(0)
    value = rng.normal(size=50_000)
    value[31_234], value[17] = 99, -99
    curve = MetricCurve(np.arange(50_000), value)
    few = thin(curve, 1000)
    assert len(few.iterations) <= 1000 and few.metric_values.max() == 99 and few.metric_values.min() == -99
    assert few.iterations[0] == 0 and few.iterations[-1] == 49_999 and (np.diff(few.iterations) > 0).all()
    np.testing.assert_array_equal(value[few.iterations], few.metric_values)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(5), np.array([0, 70_000]), np.array([-1, 2**31 - 1]), np.array([2**40, 1]),
        np.random.default_rng(0).normal(size=99), np.full(4, 0.1), np.zeros(0), np.array([np.nan, 1.5]),
    ],
)  # fmt: skip
def test_packing_loses_nothing(array):
    np.testing.assert_array_equal(unpack(json.loads(as_json(packed(array)))), array)


def test_evenly_and_escaped():
    assert evenly([1, 2, 3], 5) == [1, 2, 3] and evenly(list(range(100)), 3) == [0, 50, 99]
    assert escaped("\ud800\u200b\x9b") == "⟨U+D800⟩⟨U+200B⟩⟨U+009B⟩"


def test_the_headline(tmp_path):
    run = write_run(tmp_path / "run", iterations=10)
    run_data = read(run)
    low, high = (
        run_data.metrics["eval/low_greedy"].metric_values[-1],
        run_data.metrics["eval/high_greedy"].metric_values[-1],
    )
    first, last = run_data.metrics["eval/accuracy_greedy"].metric_values[[0, -1]]
    assert (
        headline(run_data, 1)
        == f"held-out greedy accuracy {first:.2f} → {last:.2f} ({low:.2f}..{high:.2f}) in 10 iterations; 1 warning"
    )
    only = run_with(tmp_path / "reward", [{"iteration": i, "reward": i / 4} for i in range(5)])
    assert headline(read(only), 0) == "reward 0.00 → 1.00 in 4 iterations; 0 warnings"
    (tmp_path / "none").mkdir()
    assert headline(read(tmp_path / "none"), 0) == "no metrics yet, 0 iterations; 0 warnings"


QUIET = {
    "entropy": 0.5, "frac_reward_zero_std": 0.2, "completions/clipped_ratio": 0.1, "grad_norm": 1.0, "steps_skipped": 0,
    "sampling/sampling_logp_difference/max": 1e-6, "outcome/correct": 99.0, "outcome/unverifiable": 1.0, "loss": 0.1,
}  # fmt: skip


@pytest.mark.parametrize(
    "rule, change, iteration",
    [
        ("entropy", lambda i: {"reward": 0.5, "entropy": 0.5 if i < 20 else 0.1}, 20),
        ("no signal", lambda i: {"frac_reward_zero_std": 0.71 if i == 9 else 0.7}, 9),
        ("truncated", lambda i: {"completions/clipped_ratio": 0.31 if i >= 12 else 0.3}, 12),
        ("engines", lambda i: {"sampling/sampling_logp_difference/max": 2e-3 if i == 3 else 1e-3}, 3),
        ("gradient", lambda i: {"grad_norm": 10.5 if i == 25 else 1.0}, 25),
        ("unverifiable", lambda i: {"outcome/unverifiable": 1.1 if i == 7 else 1.0}, 7),
        ("skipped", lambda i: {"steps_skipped": int(i == 8)}, 8),
        ("missing", lambda i: {"rollout/missing": int(i == 8)}, 8),
        ("not finite", lambda i: {"loss": None if i == 6 else 0.1}, 6),
        (
            "reward alone",
            lambda i: {"reward": i / 30} | ({"eval/accuracy_greedy": 0.5 - i / 300} if i % 10 == 0 else {}),
            30,
        ),
    ],
)
def test_each_rule_warns_at_its_iteration_only(tmp_path, rule, change, iteration):
    assert rules_of(run_with(tmp_path / "quiet", [{"iteration": i} | QUIET for i in range(31)])) == {}
    assert rules_of(run_with(tmp_path / "loud", [{"iteration": i} | QUIET | change(i) for i in range(31)])) == {
        rule: iteration
    }


@pytest.mark.parametrize(
    "recipe, bound",
    [
        ('[machine]\ndtype = "bfloat16"\n', 2.0),
        ("[engine]\nmax_logprob_diff = 0.25\n", 0.25),
        ("[engine]\nmax_logprob_diff = 0.25\n[machine]\ndtype = 'bfloat16'\n", 0.25),
    ],
)
def test_the_warning_about_the_gap_uses_the_run_s_own_bound(tmp_path, recipe, bound):
    rows = [{"iteration": i} | QUIET | {"sampling/sampling_logp_difference/max": bound} for i in range(3)]
    run = run_with(tmp_path / "run", rows)
    (run / "recipe.toml").write_text(recipe)
    assert rules_of(run) == {}
    rows[2]["sampling/sampling_logp_difference/max"] = 1.01 * bound
    loud = run_with(tmp_path / "loud", rows)
    (loud / "recipe.toml").write_text(recipe)
    assert rules_of(loud) == {"engines": 2}


@pytest.mark.parametrize(
    "change",
    [
        lambda i: {"reward": 0.5, "entropy": 0.5 - 0.0135 * i},  # slow: 80 % in thirty iterations, not in twenty
        lambda i: {"grad_norm": 9.9 if i == 25 else 1.0},
        lambda i: {"grad_norm": 2.0**i},  # a steady rise is no spike until it outruns ten times the median of twenty
        lambda i: {"reward": i / 30} | ({"eval/accuracy_greedy": 0.5 + i / 300} if i % 10 == 0 else {}),
        lambda i: {"reward": 0.5 + 0.01 * (i % 2)} | ({"eval/accuracy_greedy": 0.5} if i % 10 == 0 else {}),
    ],
)
def test_rules_stay_silent_below_their_bounds(tmp_path, change):
    rows = [{"iteration": i} | QUIET | change(i) for i in range(31)]
    if "grad_norm" in change(0) and change(1)["grad_norm"] == 2.0:
        rows = rows[:6]  # by construction the fifth doubling is sixteen times the first, eight times the median
    assert rules_of(run_with(tmp_path / "run", rows)) == {}


def test_rules_without_their_metrics_are_listed(tmp_path):
    warnings, unchecked = find_warnings(read(run_with(tmp_path / "run", [{"iteration": 1, "loss": 0.0}])))
    assert warnings == [] and "entropy" in unchecked and "not finite" not in unchecked


def test_map_sorted_by_first_solve_with_forgotten_and_never_solved():
    tally = {"late": {1: [0, 4], 5: [4, 4]}, "never": {2: [1, 4]}, "lost": {1: [2, 4], 6: [1, 4]}}
    map_data = prompt_map(tally, {k: k for k in tally})
    rows = map_data["rows"]
    assert not map_data["once"]
    assert [(r["id"], r["solved"], r["now"], r["last"]) for r in rows] == [
        ("lost", 1, False, 6),
        ("late", 5, True, 5),
        ("never", None, False, 2),
    ]
    assert rows[0]["cells"] == [1, 2, 4, 6, 1, 4]


def test_a_map_of_prompts_that_never_return_is_spread_over_the_run():
    tally = {f"p{i}": {i: [1, 1]} for i in range(1000)} | {"often": {3: [0, 1], 4: [1, 1]}}
    chosen = most_visited(tally, 256)
    assert len(chosen) == 256 and chosen[0] == "often" and {"p0", "p999"} <= set(chosen)
    assert prompt_map(tally, dict.fromkeys(tally, ""))["once"]
    assert 0 < max(np.diff([int(p[1:]) for p in chosen[1:]])) <= 5


def test_two_runs_show_their_differences(tmp_path):
    a, b = write_run(tmp_path / "a", iterations=3), write_run(tmp_path / "b", iterations=4, seed=1, lr=1e-4)
    out = write_report([a, b], tmp_path / "both.html")
    data = data_of(out)
    assert out == tmp_path / "both.html" and [r["name"] for r in data["runs"]] == [
        "calculator-gspo",
        "calculator-gspo (2)",
    ]
    assert data["diff"] == [["iterations", ["3", "4"]], ["seed", ["0", "1"]], ["optimizer.lr", ["0.0003", "0.0001"]]]


def wide_run(path: Path, *, metrics: int) -> Path:
    """A run with this many metrics, each with 1100 values of random bits."""
    run = write_run(path, iterations=6, canary="é")
    rng = np.random.default_rng(metrics)
    rows = [{"iteration": i} | {f"own/{k}": float(rng.normal()) for k in range(metrics)} for i in range(1100)]
    write_lines(run / "metrics.jsonl", rows)
    return run


@pytest.mark.parametrize(("count", "metrics"), [(1, 60), (3, 20)])
def test_a_page_with_many_curves_keeps_its_size_limit_and_its_rollouts(tmp_path, monkeypatch, count, metrics):
    """Curves are thinned further, and more with more runs; the limit counts bytes, not characters."""
    monkeypatch.setattr("groupwise.report.report.BYTES", 800_000)
    runs = [wide_run(tmp_path / f"run {i}", metrics=metrics) for i in range(count)]
    path = write_report(runs, tmp_path / "report.html")
    assert 300_000 < path.stat().st_size <= 800_000
    for run in data_of(path)["runs"]:
        assert len(run["rollouts"]["groups"]) == min(24, 64 // count // 6 * 6)
        points = {len(unpack(values)) for name, _, values, _, _ in run["metrics"] if name.startswith("own/")}
        assert min(points) >= 64 and max(points) < 1100


def test_a_compared_iteration_is_on_the_page_with_its_groups(tmp_path):
    """Also one that the even choice of iterations leaves out."""
    run = write_run(tmp_path / "run", iterations=40, prompts=6, size=2)
    without = {g["iteration"] for g in data_of(write_report([run]))["runs"][0]["rollouts"]["groups"]}
    iteration = min(set(range(1, 41)) - without)
    write_comparison(run, iteration, ["this run", "grpo"])
    rollouts = data_of(write_report([run]))["runs"][0]["rollouts"]
    groups = [g for g in rollouts["groups"] if g["iteration"] == iteration]
    assert len(groups) == 6 and all(len(s["compared"]) == 2 for g in groups for s in g["samples"])
    assert rollouts["compared"][str(iteration)]["methods"] == ["this run", "grpo"]
    assert without < {g["iteration"] for g in rollouts["groups"]}
