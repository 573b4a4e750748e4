"""`whatif` and `explain` compute from stored samples what training computed, and what other methods would have."""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from groupwise.__main__ import main
from groupwise.advantages import centred
from groupwise.config.user_code import UserCode
from groupwise.core import BadData, Storage, Usage
from groupwise.methods import grpo, gspo
from groupwise.objective import ReportsClipping, TruncatedImportance, complete, token_mean
from groupwise.rewards import Score
from groupwise.runs.run_layout import RunLayout
from groupwise.whatif.compare_methods import (
    FIGURES,
    OWN,
    compare_methods,
    cosine,
    group_cosines,
    groups_of,
    named_method,
    sample_numbers,
    whole_gradient,
)
from groupwise.whatif.explain_gradient import explain_token
from groupwise.whatif.recompute_method import RecomputedMethod, recompute
from groupwise.whatif.stored_iteration import StoredIteration, read_iteration
from tests.toys.echo import small
from tests.whatif.stored_runs import stored_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stored_run(tmp_path_factory.mktemp("runs") / "run")


def read(run: Path, iteration: int | None = None) -> StoredIteration:
    return read_iteration(str(run), iteration, UserCode())


def own(stored: StoredIteration) -> RecomputedMethod:
    return recompute(stored, OWN, stored.recipe.method)


# The run's own method gives the numbers that training stored


@pytest.mark.parametrize("name", ["dapo", "gspo", "cispo", "dr_grpo", "gmpo", "reinforce", "grpo"])
def test_the_own_method_gives_the_stored_numbers(name: str, tmp_path: Path) -> None:
    method = small(name, minibatches=2, group_size=4, max_refills=0, epochs=2)
    aggregate = token_mean if name == "grpo" else method.objective.aggregate  # a share that depends on the step
    method = replace(method, objective=replace(method.objective, penalties=(), aggregate=aggregate))
    if name == "dr_grpo":  # its own shaping gives every cut answer 0, and so all answers of this iteration
        method = replace(method, shaping=(Score(),))
    stored = read(stored_run(tmp_path / "run", method, prompts=6), 1)
    computed = own(stored)
    rows = stored.rows_of(computed.batch)
    assert (stored.token_columns["ratio"][rows] != 1).any(), "the ratio must act"
    for column, x in (
        ("advantage", computed.batch.advantage),
        ("share", computed.batch.loss_share),
        ("gradient", computed.logp_gradient),
    ):
        np.testing.assert_allclose(x, stored.token_columns[column][rows].double(), rtol=2e-4, atol=1e-7, err_msg=column)
    rewards = [line["reward"] for line in stored.sample_records if line["reward"] is not None]
    of = sample_numbers(stored, computed)
    assert [of[number].reward for number in sorted(of)] == rewards


def test_stored_samples_have_the_budget_of_the_run(run: Path, tmp_path: Path) -> None:
    """Also where prompts left all of them less room."""
    shutil.copytree(run, tmp_path / "run")
    for file in RunLayout(tmp_path / "run").samples.glob("*.jsonl"):
        lines = [json.loads(line) | {"limit": 2} for line in file.read_text().splitlines()]
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    stored = read(tmp_path / "run")
    assert (
        set(stored.batch.length_limit.tolist()) == {2}
        and stored.batch.max_new_tokens == stored.recipe.sampling.max_tokens == 3
    )


def test_dropped_groups_do_not_change_the_steps(tmp_path: Path) -> None:
    """With shuffled samples, the size of a step depends on the number of trained groups."""
    method = small("dapo", minibatches=2, group_size=4, max_refills=0, shuffle="samples")
    stored = read(stored_run(tmp_path / "run", method, prompts=8), 1)
    assert len({line["draw"] for line in stored.sample_records if line["dropped"]}) >= 2
    computed = own(stored)
    rows = stored.rows_of(computed.batch)
    assert torch.equal(stored.token_columns["share"][rows], computed.batch.loss_share.float())


def test_a_clipped_token_has_no_gradient_and_is_marked(tmp_path: Path) -> None:
    stored = read(stored_run(tmp_path / "run", small("gspo", minibatches=2, group_size=4, epochs=2)))
    computed = own(stored)
    rows, surrogate = stored.rows_of(computed.batch), computed.method.objective.surrogate
    clip, gradient = stored.token_columns["clip"][rows].long(), stored.token_columns["gradient"][rows]
    assert isinstance(surrogate, ReportsClipping)
    low, high = surrogate.clipped(computed.batch)
    assert bool(low.any()) and bool(high.any()) and torch.equal(clip, high.long() - low.long())
    assert bool((gradient[clip != 0] == 0).all()) and bool((gradient != 0).any())
    assert FIGURES["share of tokens clipped"](computed) == pytest.approx(float((clip != 0).double().mean()))


def test_weights_are_stored_where_they_differ_from_one(tmp_path: Path, run: Path) -> None:
    assert "weight" not in read(run).token_columns
    method = small("gspo", minibatches=1, group_size=4)
    weighted = replace(method, objective=replace(method.objective, weights=(TruncatedImportance(),)))
    stored = read(stored_run(tmp_path / "run", weighted))
    weight, computed = stored.token_columns["weight"][stored.rows], own(stored)
    assert bool((weight != 1).any()), "the gap of engine and learner is small, and not 0"
    torch.testing.assert_close(weight.double(), computed.batch.weight, rtol=1e-6, atol=0)


def test_the_gradient_of_a_penalty_is_stored_and_said_to_be_missing(tmp_path: Path) -> None:
    stored = read(stored_run(tmp_path / "run", small("grpo", minibatches=2, group_size=4)))
    computed = own(stored)
    assert computed.omission_notes == (
        "without KL(coefficient=0.04, kl_estimator=k3, model=reference): logp/reference not stored",
    )
    kl = stored.token_columns["gradient"][stored.rows_of(computed.batch)] - computed.logp_gradient
    assert 1e-5 < float(kl.abs().max()) < 0.04


# Other methods


def test_cosines_are_those_of_a_transcription(tmp_path: Path) -> None:
    """At ratios of 1 and in one step, `d loss / d logp` of a token is -share x advantage."""
    grpo = small("grpo", group_size=4)
    stored = read(stored_run(tmp_path / "run", grpo), 1)
    plain = replace(grpo, advantage=(centred,), objective=replace(grpo.objective, aggregate=token_mean))
    actual = [whole_gradient(stored, recompute(stored, "", method)) for method in (grpo, plain)]
    score, expected = np.array([line["score"] for line in stored.sample_records]), []
    for standardised in (True, False):
        gradient: list[float] = []
        for lines in groups_of(stored):
            a = score[lines] - score[lines].mean()
            for x, line in zip(a / (a.std(ddof=1) + 1e-6) if standardised else a, lines):
                length = stored.sample_records[line]["length"]
                gradient += [
                    -x / (length * len(stored.sample_records) if standardised else stored.batch.tokens)
                ] * length
        expected.append(torch.tensor(gradient, dtype=torch.float64))
    for a, b in zip(actual, expected):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-9)
    assert cosine(*actual) == pytest.approx(cosine(*expected)) and 0.5 < (cosine(*actual) or 0) < 0.999
    comparison = compare_methods(stored, ["grpo"])
    assert comparison.gradient_cosines == ((pytest.approx(1),) * 2,) * 2 and comparison.omitted_methods == {}


def test_a_filter_drops_samples_and_the_divisors_follow(tmp_path: Path) -> None:
    method = replace(small("dr_grpo", group_size=4), minibatches=1)
    stored = read(stored_run(tmp_path / "run", method))
    outcomes = [{stored.sample_records[i]["outcome"] for i in group} for group in groups_of(stored)]
    mixed = [len(names) > 1 for names in outcomes]
    assert any(mixed) and not all(mixed), "the run must have both kinds of groups"
    computed = recompute(stored, "dapo", small("dapo"))
    assert (
        len(computed.batch) == 4 * sum(mixed)
        and f"drops {4 * (len(mixed) - sum(mixed))} of" in computed.omission_notes[0]
    )
    assert float(computed.batch.loss_share.sum()) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("ppo", "logp/reference and value"),
        ("seed_grpo", "the answers that the verifier read"),
        ("on_policy_distillation", "logp/teacher"),
    ],
)
def test_a_method_that_needs_more_is_left_out_with_the_reason(name: str, reason: str, run: Path) -> None:
    comparison = compare_methods(read(run), [name, "gspo"])
    assert [each.method_name for each in comparison.recomputed_methods] == [OWN, "gspo"]
    assert reason in comparison.omitted_methods[name]


def test_tokens_that_a_mask_of_the_run_removed_are_left_out(tmp_path: Path) -> None:
    method = replace(small("dr_grpo", group_size=4), minibatches=1, mask=(complete,))
    stored = read(stored_run(tmp_path / "run", method))
    assert any(line["finish"] == "length" for line in stored.sample_records)
    for computed in (own(stored), recompute(stored, "gspo", small("gspo", group_size=4))):
        assert 0 < computed.batch.tokens < stored.batch.tokens and not computed.logp_gradient.isnan().any()


def test_what_a_method_would_sample_otherwise_is_noted(run: Path) -> None:
    notes = recompute(read(run), "reg_grpo", named_method("reg_grpo")).omission_notes
    assert [note.split()[:2] for note in notes[1:]] == [["its", "curriculum"], ["its", "strategy"]]
    assert recompute(read(run), "gspo", named_method("gspo")).omission_notes == ()


# Errors


def test_what_cannot_be_read_is_refused_with_a_fix(tmp_path: Path, run: Path) -> None:
    cases: list[tuple[Callable[[Path], Any], str, str]] = [
        (lambda p: (p / "samples" / "000002.safetensors").write_bytes(b"x"), "damaged", "restore"),
        (lambda p: (p / "samples" / "000002.jsonl").write_text("{}\n"), "damaged", "restore"),
        (lambda p: [x.unlink() for x in (p / "samples").iterdir()], "has no samples", "finished an iteration"),
    ]
    for i, (spoil, message, fix) in enumerate(cases):
        copy = tmp_path / str(i)
        copy_run(run, copy)
        spoil(copy)
        with pytest.raises(BadData, match=message) as error:
            read(copy)
        assert fix in error.value.fix
    with pytest.raises(BadData, match="iteration 7") as error:
        read(run, 7)
    assert error.value.evidence == "samples/ has 2 iterations, from 1 to 2" and "--iteration 2" in error.value.fix
    with pytest.raises(BadData, match="is not a run"):
        read(tmp_path)
    (copy / "run.json").write_text('{"format": 1}')
    with pytest.raises(Storage, match="another version of Groupwise"):
        read(copy)


def copy_run(run: Path, copy: Path) -> None:
    (copy / "samples").mkdir(parents=True)
    for path in (*run.glob("*.json"), *run.glob("*.toml"), *run.glob("samples/*")):
        (copy / path.relative_to(run)).write_bytes(path.read_bytes())


def test_unknown_names_and_numbers_are_refused(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Usage, match="no method is called 'gsop'") as error:
        compare_methods(read(run), ["gsop"])
    assert error.value.fix == "did you mean gspo?"
    for words, message in (
        (["whatif", str(run), "--group", "99"], "has no group 99"),
        (["whatif", str(run), "--methods", "gsop"], "did you mean gspo?"),
        (["explain", str(run), "--sample", "99", "--token", "1"], "has no sample 99"),
        (["explain", str(run), "--sample", "1", "--token", "99"], "sample 1 has no token 99"),
    ):
        assert main(words) == 2
        assert message in capsys.readouterr().err


# The commands


def test_the_table_has_a_column_for_each_method(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["whatif", str(run), "--iteration", "2", "--methods", "grpo,dapo,ppo"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"iteration 2 of {run}: 16 samples in 4 groups")
    assert lines[2].split() == ["this", "run", "grpo", "dapo"]
    rows = {line[:34].strip(): line[34:].split() for line in lines[3:] if line[:1].isalpha()}
    assert rows["cosine with grpo"][1] == "1" and len(rows["share of tokens clipped"]) == 3
    assert any(line.startswith("ppo is left out: it needs") for line in lines)
    assert any(line.startswith("grpo: without KL(") for line in lines)


def test_json_has_the_numbers_of_a_group(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["whatif", str(run), "--methods", "gspo", "--group", "1", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["iteration"] == 2 and set(data["methods"]) == {OWN, "gspo"}
    stored = read(run)
    of = sample_numbers(stored, recompute(stored, "gspo", gspo()))
    for row in data["group"]:
        numbers = row["methods"]["gspo"]
        assert numbers is None or numbers["reward"] == of[row["sample"] - 1].reward
    assert main(["whatif", str(run), "--methods", "gspo", "--group", "1"]) == 0
    text = capsys.readouterr().out
    assert text.count("this run  gspo") == 6 and "gradient, sum over its tokens" in text


def test_the_report_has_the_numbers_of_each_group(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "run"
    copy_run(run, copy)
    assert main(["whatif", str(copy), "--methods", "grpo,cispo,ppo", "--report"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(copy / "report.html")
    stored = read(copy)
    computed = compare_methods(stored, ["grpo", "cispo"]).recomputed_methods
    numbers = [sample_numbers(stored, each) for each in computed]
    text = (copy / "report.html").read_text(encoding="utf-8")
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    rollouts = json.loads(data)["runs"][0]["rollouts"]
    assert rollouts["compared"]["2"]["methods"] == [OWN, "grpo", "cispo"]
    assert any(note.startswith("ppo is left out") for note in rollouts["compared"]["2"]["notes"])
    groups = [g for g in rollouts["groups"] if g["iteration"] == 2]
    assert sum(len(g["samples"]) for g in groups) == 16
    for group in groups:
        assert group["cosines"][0] in (1.0, None)
        for sample in group["samples"]:
            for shown, of in zip(sample["compared"], numbers):
                expected = of.get(sample["line"] - 1)
                assert shown == (None if expected is None else pytest.approx(list(asdict(expected).values()), rel=1e-5))


def test_a_comparison_that_cannot_be_written_is_repeated_and_resumes_nothing(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy_run(run, tmp_path / "run")
    folder = RunLayout(tmp_path / "run").comparison(2).parent
    folder.write_text("a file in its place")
    assert main(["whatif", str(tmp_path / "run"), "--methods", "grpo", "--report"]) == Storage.code
    error = capsys.readouterr().err
    assert "the comparison could not be written" in error and "then repeat the command" in error
    assert "groupwise resume" not in error


def test_json_stays_one_object_beside_the_report(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy_run(run, tmp_path / "run")
    assert main(["whatif", str(tmp_path / "run"), "--methods", "grpo", "--report", "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)["methods"]) == {OWN, "grpo"}
    assert (tmp_path / "run" / "report.html").is_file()


def test_the_cosines_of_a_group_are_those_of_its_tokens(run: Path) -> None:
    stored = read(run)
    comparison = compare_methods(stored, ["grpo", "cispo"])
    starts = [0, *stored.token_columns["lengths"].cumsum(0).tolist()]
    for members in groups_of(stored):
        rows = [row for line in members for row in range(starts[line], starts[line + 1])]
        mine, *others = (whole_gradient(stored, each)[rows] for each in comparison.recomputed_methods)
        expected = [cosine(mine, other) for other in (mine, *others)]
        assert group_cosines(stored, comparison, members) == expected


def test_the_clipped_tokens_of_a_sample_are_those_of_the_surrogate(tmp_path: Path) -> None:
    stored = read(stored_run(tmp_path / "run", small("gspo", minibatches=2, group_size=4, max_refills=0, epochs=2)))
    for method in (gspo(), grpo(clip=0.001)):
        computed = recompute(stored, "name", method)
        assert isinstance(computed.method.objective.surrogate, ReportsClipping)
        low, high = computed.method.objective.surrogate.clipped(computed.batch)
        assert low.any() and high.any()
        shares = [numbers.clipped_fraction for _, numbers in sorted(sample_numbers(stored, computed).items())]
        tokens = (low | high).double().split(computed.batch.sequences.lengths.tolist())
        by_key = dict(zip(computed.batch.sample_keys, (x.mean().item() for x in tokens)))
        assert shares == [by_key[key] for key in stored.batch.sample_keys]
    numbers = sample_numbers(stored, recompute(stored, "reinforce", named_method("reinforce")))
    assert {of.clipped_fraction for of in numbers.values()} == {None}


def test_a_comparison_without_a_method_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = stored_run(tmp_path / "run", small("riskpo", group_size=4, minibatches=1))
    code = main(["whatif", str(run), "--methods", "ppo"])
    assert code and "none of these methods can be computed" in capsys.readouterr().err


def test_the_chain_of_a_token_multiplies_to_its_gradient(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored = read(run)
    for number in stored.sample_line_indices:
        chain = explain_token(stored, number + 1, 1, OWN, stored.recipe.method)
        links = {link.number_name: link.number_value for link in chain.links}
        assert [link.number_name for link in chain.links][:3] == ["outcome", "reward", "advantage"]
        if links["clip"] == "not clipped":
            product = links["share"] * links["weight"] * links["ratio"] * links["advantage"]  # type: ignore[operator]
            assert links["gradient"] == pytest.approx(-product, rel=1e-9)
        else:
            assert links["gradient"] == 0
        assert links["gradient"] == pytest.approx(links["stored"], rel=2e-4, abs=1e-7)
    number = stored.sample_line_indices[0] + 1
    assert main(["explain", str(run), "--sample", str(number), "--token", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("token 1 of ") and [line.split()[0] for line in lines[1:]][-1] == "stored"
    assert main(["explain", str(run), "--sample", str(number), "--token", "1", "--method", "gspo", "--json"]) == 0
    links = {link["number_name"]: link for link in json.loads(capsys.readouterr().out)["links"]}
    assert links["ratio"]["component"] == "sequence_ratio" and "stored" not in links


def test_the_chain_is_that_of_the_named_token(tmp_path: Path) -> None:
    stored = read(stored_run(tmp_path / "run", small("grpo", group_size=4, epochs=2)))
    number = next(i for i in stored.sample_line_indices if stored.sample_records[i]["length"] == 3)
    start = int(stored.token_columns["lengths"][:number].sum())
    for token in (1, 2, 3):
        chain = explain_token(stored, number + 1, token, OWN, stored.recipe.method)
        links = {link.number_name: link.number_value for link in chain.links}
        assert (
            chain.token_id == int(stored.token_columns["tokens"][start + token - 1]) and chain.sample_token_count == 3
        )
        assert links["ratio"] == pytest.approx(float(stored.token_columns["ratio"][start + token - 1]))
        assert chain.token_text == stored.sample_records[number]["text"][token - 1 : token]


def test_text_of_a_model_is_escaped(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy_run(run, tmp_path / "run")
    path = tmp_path / "run" / "samples" / "000002.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    planted = "\x1b[2J\u202e"
    for line in lines:
        line["prompt"] = line["prompt_id"] = line["text"] = planted
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    number = str(read(run).sample_line_indices[0] + 1)
    assert main(["whatif", str(tmp_path / "run"), "--group", "1"]) == 0
    assert main(["explain", str(tmp_path / "run"), "--sample", number, "--token", "1"]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out and "\u202e" not in out and r"\x1b[2J" in out


def test_a_token_that_is_not_trained_has_no_chain(tmp_path: Path) -> None:
    stored = read(
        stored_run(tmp_path / "run", replace(small("dr_grpo", group_size=4), minibatches=1, mask=(complete,)))
    )
    number = next(i for i, line in enumerate(stored.sample_records) if line["finish"] == "length")
    with pytest.raises(BadData, match=f"does not train token 1 of sample {number + 1}"):
        explain_token(stored, number + 1, 1, OWN, stored.recipe.method)
