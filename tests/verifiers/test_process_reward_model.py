"""The verifier `ProcessRewardModel`: its scores are those of transformers at the separators; directories it refuses."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import groupwise as gw
from groupwise.core import BadData
from groupwise.data import Draw, Outcome, Rollout, TokenMark, Verdict, pack
from groupwise.models import Tokenizer, find_model, read_tokenizer
from groupwise.models.classifier.classifier_input_encoder import ClassifierInputEncoder
from groupwise.models.classifier.step_encoder import StepEncoder
from groupwise.verifiers import Combined, CombinedMember, Exact, ProcessRewardModel, VerifierContext
from groupwise.verifiers.process_reward_model import ProcessRewardModelGrader
from tests.checks import check
from tests.models.directories import bytes_
from tests.pretended_gpu import pretended_gpu
from tests.verifiers.test_reward_model import (
    CHAT,
    answer,
    bert,
    changed,
    graded,
    only_pickle,
    prompt,
    refused_with_advice,
)

TINY = {
    "vocab_size": 400, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
    "intermediate_size": 24, "max_position_embeddings": 64,
}  # fmt: skip
CLASSES = {
    "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForTokenClassification),
    "llama": (transformers.LlamaConfig, transformers.LlamaForTokenClassification),
}


def process_model(
    path: Path, family: str = "qwen2", labels: int = 2, tokenizer: Tokenizer | None = None, **changes: Any
) -> Path:
    """Write a random token classifier, by transformers."""
    config, model = CLASSES[family]
    torch.manual_seed(0)
    settings = {"eos_token_id": 0, "pad_token_id": 0, "initializer_range": 0.3, "bos_token_id": None}
    model(config(**TINY | settings | changes, num_labels=labels)).save_pretrained(path)
    (tokenizer or bytes_()).save(path)
    return path


def theirs(path: Path, ids: tuple[int, ...]) -> list[float]:
    """The number of transformers for each token of a text."""
    model = transformers.AutoModelForTokenClassification.from_pretrained(path, dtype=torch.float32).eval()
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids])).logits[0].double()
    return (logits.softmax(-1)[:, 1] if logits.shape[-1] == 2 else logits[:, 0]).tolist()


def read_by_hand(*texts: str) -> tuple[tuple[int, ...], list[int]]:
    """The ids of a problem and its steps with a line end behind each, encoded apart, and the indices of line ends."""
    tokenizer, (problem, *steps) = bytes_(), texts
    ids, ends = list(tokenizer.encode(problem, bos=True)), list[int]()
    for step in steps:
        ids += [*tokenizer.encode(step), *tokenizer.encode("\n")]
        ends.append(len(ids) - 1)
    return tuple(ids), ends


@pytest.mark.parametrize("labels", [1, 2])
@pytest.mark.parametrize("family", CLASSES)
def test_the_scores_are_those_of_transformers_at_the_separators(family: str, labels: int, tmp_path: Path) -> None:
    """Of answers that arrive together each alone, also where the last step has no separator. No outcome."""
    path = process_model(tmp_path, family, labels)
    verdicts = graded(ProcessRewardModel(str(path)), "one\ntwo 2\n", "one\nsix", "one\ntwo 2\n")
    ids, ends = read_by_hand("1+2=", "one", "two 2")
    expected = [theirs(path, ids)[at] for at in ends]
    assert verdicts[0].step_scores == {"step": [(4, expected[0]), (10, expected[1])]} and verdicts[0] == verdicts[2]
    ids, ends = read_by_hand("1+2=", "one", "six")
    assert verdicts[1].step_scores == {"step": [(4, expected[0]), (7, theirs(path, ids)[ends[1]])]}
    assert {v.outcome for v in verdicts} == {Outcome.scored} and verdicts[0].subscores == {"truncated": 0.0}
    assert len(set(expected)) == 2 and (labels == 1 or all(0 < x < 1 for x in expected))


@pytest.mark.parametrize("reduction", ["min", "mean", "last"])
def test_the_score_of_the_answer_is_a_reduction(reduction: Any, tmp_path: Path) -> None:
    (verdict,) = graded(ProcessRewardModel(str(process_model(tmp_path)), reduction=reduction), "a\nbc\nd")
    scores = [number for _, number in verdict.step_scores["step"]]
    assert len(set(scores)) == 3
    assert verdict.score == {"min": min(scores), "mean": pytest.approx(sum(scores) / 3), "last": scores[2]}[reduction]


def test_blank_steps_are_read_and_not_scored(tmp_path: Path) -> None:
    path = process_model(tmp_path)
    (verdict,) = graded(ProcessRewardModel(str(path)), "one\n\n \ntwo")
    ids, ends = read_by_hand("1+2=", "one", "", " ", "two")
    assert verdict.step_scores == {"step": [(4, theirs(path, ids)[ends[0]]), (10, theirs(path, ids)[ends[3]])]}


@pytest.mark.parametrize("text", ["", "\n", " \n\n"])
def test_an_answer_without_a_step_has_a_score(text: str, tmp_path: Path) -> None:
    """So that an empty answer never pays: that of the last separator."""
    path = process_model(tmp_path, labels=1)
    (verdict,) = graded(ProcessRewardModel(str(path)), text)
    ids, _ = read_by_hand("1+2=", *(text.split("\n")[:-1] if "\n" in text else [""]))
    assert verdict == Verdict(Outcome.scored, theirs(path, ids)[-1], {"truncated": 0.0})


def test_a_separator_of_several_tokens(tmp_path: Path) -> None:
    """The score is at its last token."""
    path = process_model(tmp_path)
    (verdict,) = graded(ProcessRewardModel(str(path), separator="; "), "a; b")
    tokenizer = bytes_()
    separator = tokenizer.encode("; ")
    before = (*tokenizer.encode("1+2=", bos=True), *tokenizer.encode("a"), *separator)
    numbers = theirs(path, (*before, *tokenizer.encode("b"), *separator))
    assert len(separator) == 2
    assert verdict.step_scores == {"step": [(3, numbers[len(before) - 1]), (4, numbers[-1])]}


def test_a_long_text_loses_its_first_steps(tmp_path: Path) -> None:
    path = process_model(tmp_path, max_position_embeddings=8)
    (verdict,) = graded(ProcessRewardModel(str(path)), "1\n2\n3\n4\n5\n6")
    ids, ends = read_by_hand("1+2=", *"123456")
    kept = theirs(path, ids[-8:])
    assert verdict.subscores == {"truncated": 1.0} and [end for end, _ in verdict.step_scores["step"]] == [6, 8, 10, 11]
    assert [x for _, x in verdict.step_scores["step"]] == [kept[at - len(ids) + 8] for at in ends[2:]]


def test_the_chat_template_renders_the_prompt(tmp_path: Path) -> None:
    """With the beginning of the answer. The answer's steps follow it; the spelling of a control token stays text."""
    path = process_model(tmp_path)
    file = path / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"chat_template": CHAT}))
    encoder = ClassifierInputEncoder.read(path, json.loads((path / "config.json").read_text()))
    steps = StepEncoder.of(path, encoder, "\n")
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "a\n<|im_end|>"}]
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    begin = tokenizer.apply_chat_template(messages[:1], tokenize=False, add_generation_prompt=True)
    read = steps("Hi", messages, "a\n<|im_end|>")
    before = tuple(tokenizer(begin, add_special_tokens=False).input_ids)
    assert read.text.tokens[: len(before)] == before
    assert read.text.tokens[len(before) :] == read_by_hand("", "a", "<|im_end|>")[0] and read.steps[0].end == 2
    assert read.text.tokens.count(1) == before.count(1)


def test_step_scores_are_marks_that_a_method_reads(tmp_path: Path) -> None:
    """At the token of each step's end; `grpo_process` needs them, and `Combined` names them by its member."""
    settings = ProcessRewardModel(str(process_model(tmp_path)))
    (verdict,) = graded(settings, "ab\nc")
    sample = answer("ab\nc")
    sample = sample.with_tokens((3, 4, 5), (0, 0, 0), (-0.5,) * 3).with_text("ab\nc", (2, 3, 4)).with_verdict(verdict)
    marks = pack([Rollout(Draw(0, prompt(), 1), (sample,))])[TokenMark("step")].tolist()
    assert math.isnan(marks[0]) and marks[1:] == [x for _, x in verdict.step_scores["step"]]
    assert TokenMark("step") in gw.grpo_process().needs
    both = Combined((CombinedMember("right", Exact()), CombinedMember("sound", settings)))
    (combined,) = graded(both, "ab\nc", of=prompt(answer="ab\nc"))
    assert combined.outcome is Outcome.correct and combined.step_scores == {"sound/step": verdict.step_scores["step"]}


def test_a_run_is_rewarded_by_steps(home: Path) -> None:
    """Every step of each sampled answer has a score in the samples of the run, and the method learns from it."""
    process_model(home / "prm", labels=1)
    run = gw.train(
        reward=gw.ProcessRewardModel("prm", separator=";"), method=gw.grpo_process(group_size=4, kl=0.0), iterations=1,
        prompts=2, max_tokens=24, evaluate=gw.Evaluate(problems=2),
    )  # fmt: skip
    samples = [line for path in (run.directory / "samples").glob("*.jsonl") for line in path.read_text().splitlines()]
    steps = [step for line in samples for step in json.loads(line)["steps"]["step"]]
    assert len(steps) > 8 and run.metrics["grad_norm"][1] > 0 and run.metrics["outcome/scored"][1] == 1.0
    assert len(json.loads((run.directory / "run.json").read_text())["reward_models"]) == 1


REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "pickle": (only_pickle, "only a pickle checkpoint"),
    "code": (lambda path: changed(path, auto_map={"AutoModel": "x.py"}), "names code or quantised weights"),
    "labels": (lambda path: changed(path, id2label={"0": "a", "1": "b", "2": "c"}), "has 3 labels"),
    "sequence": (lambda path: changed(path, architectures=["Qwen2ForSequenceClassification"]), "is no process reward"),
    "encoder": (bert, "is no process reward model"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_directories_that_are_no_process_reward_model(name: str, tmp_path: Path) -> None:
    """Before weights are read."""
    change, words = REFUSED[name]
    change(process_model(tmp_path))
    refused_with_advice(ProcessRewardModel(str(tmp_path)), words)


def test_an_encoder_and_an_unknown_separator_are_refused(tmp_path: Path) -> None:
    """An encoder would score a step by what follows it."""
    bert(tmp_path / "bert")
    changed(tmp_path / "bert", architectures=["BertForTokenClassification"])
    with pytest.raises(BadData, match="encloses texts in special tokens"):
        ProcessRewardModel(str(tmp_path / "bert"), separator="=").build(VerifierContext())
    process_model(tmp_path / "prm", tokenizer=read_tokenizer(find_model("calculator")))
    with pytest.raises(BadData, match="no token for"):
        ProcessRewardModel(str(tmp_path / "prm"), separator="\n").build(VerifierContext())


def test_a_text_that_the_model_cannot_read_is_unverifiable(tmp_path: Path) -> None:
    settings = ProcessRewardModel(
        str(process_model(tmp_path, tokenizer=read_tokenizer(find_model("calculator")))), separator=";"
    )
    (verdict,) = graded(settings, "three")
    assert verdict.outcome is Outcome.unverifiable and "the process reward model cannot read" in verdict.cause
    with pytest.raises(BadData, match=r"process reward model in .* cannot read the problem p"):
        settings.build(VerifierContext()).gate([prompt("three")])


def test_settings_are_checked() -> None:
    for line in ('separator = ""', 'reduction = "product"', 'device = "gpu"', "tolerance = -1.0"):
        errors = check(f'method = "grpo"\n[verifier]\nkind = "ProcessRewardModel"\npath = "x"\n{line}\n')
        assert any(line.split()[0] in error.what + error.evidence for error in errors), errors


def test_a_gpu_scores_answers_in_one_pass(tmp_path: Path) -> None:
    """On a pretended one. Shorter texts are padded, which changes no score."""
    path, answers = process_model(tmp_path), ("a\nb", "a longer one\nb\nc", "1")
    encoder = ClassifierInputEncoder.read(path, json.loads((path / "config.json").read_text()))
    with pretended_gpu():
        kind = ProcessRewardModel(str(path), device="cuda")
        grader = ProcessRewardModelGrader(kind, path, StepEncoder.of(path, encoder, "\n"), kind.torch_device())
        found = grader.verdicts([(prompt(), answer(text)) for text in answers])
    for one, alone in zip(found, graded(ProcessRewardModel(str(path), device="cpu"), *answers), strict=True):
        pairs = zip(one.step_scores["step"], alone.step_scores["step"], strict=True)
        assert all(a[0] == b[0] and a[1] == pytest.approx(b[1], abs=1e-5) for a, b in pairs)
