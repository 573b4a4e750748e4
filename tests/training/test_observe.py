"""Tests of the records of an iteration, also for a batch from another process."""

import pickle
from dataclasses import replace

import torch

from groupwise.data import SAMPLED, pack
from groupwise.learner import StepResult
from groupwise.methods import BestAnswerRefinement, ExplainGoldAnswer, FeedbackTree
from groupwise.objective import Objective
from groupwise.rollout import HintEscalation, Independent
from groupwise.training.iteration_records import sample_lines, token_columns
from groupwise.whatif.stored_iteration import rollouts_of
from tests.golden.play import PLAIN, RIGHT, WRONG, play, text
from tests.laws.batches import rollouts, step_of
from tests.rollout.fakes import tokenizer


def test_samples_are_found_by_their_keys_after_a_pickle_round_trip() -> None:
    drawn = [replace(f, draw=replace(f.draw, id=7 + i)) for i, f in enumerate(rollouts([[2, 3], [1, 0, 4]]))]
    columns = step_of([[2, 3], [1, 0, 4]])
    names = ("logp", "logp_old", "advantage", "reward")
    batch = pack(drawn).having(**{name: getattr(columns, name).detach() for name in names})
    batch = batch.take([4, 2, 0, 3, 1])

    def taken(b):  # type: ignore[no-untyped-def]
        return StepResult(batch=b, loss=0.0, grad_norm=0.0, grad_norm_clipped=0.0, learning_rate=0.0)

    here = sample_lines(drawn, batch), token_columns(drawn, [taken(batch)], Objective())
    copy = pickle.loads(pickle.dumps(batch))
    there = sample_lines(drawn, copy), token_columns(drawn, [taken(copy)], Objective())
    assert repr(there[0]) == repr(here[0]) and all(line["reward"] is not None for line in there[0])
    assert [line["reward"] for line in there[0]] == columns.reward.tolist()
    assert there[1].keys() == here[1].keys()
    assert all(torch.equal(there[1][name].nan_to_num(9), here[1][name].nan_to_num(9)) for name in here[1])
    torch.testing.assert_close(there[1]["logp"], columns.logp.detach().float())


def test_the_ids_of_each_prompt_are_stored_once() -> None:
    drawn = rollouts([[2, 3], [1, 0, 4]])
    columns = token_columns(drawn, [], Objective())
    prompts = columns["contexts"].split(columns["context_lengths"].tolist())
    samples = [s for r in drawn for s in r.samples]
    assert [tuple(prompts[i].tolist()) for i in columns["context"]] == [s.context for s in samples]
    assert len(prompts) == len({s.context for s in samples}) < len(samples)


def test_a_stored_sample_has_the_prompt_that_it_was_sampled_from() -> None:
    """Hinted, rewritten and refined answers: the text of the sampled prompt, the views, and the parent."""
    wrong = (WRONG,)
    guided, _ = play(
        HintEscalation(trained_prompt="plain"),
        lambda r: wrong if r.context == PLAIN else (RIGHT,),
        n=2,
        hints=[text(6)],
    )
    hinted, _ = play(HintEscalation(), lambda r: wrong if r.context == PLAIN else (RIGHT,), n=2, hints=[text(6)])
    refined, _ = play(BestAnswerRefinement(), lambda r: wrong if r.context == PLAIN else (RIGHT,), n=2)
    tree, _ = play(FeedbackTree(), lambda r: wrong, n=2)
    explained, _ = play(ExplainGoldAnswer(), lambda r: wrong if r.context == PLAIN else (RIGHT,), n=2, answer="7")
    decode = tokenizer().decode
    for rollout, role, prompt in [
        (guided, "answer", (*PLAIN, 6, *PLAIN)), (hinted, "answer", (*PLAIN, 6, *PLAIN)), (refined, "answer", None),
        (tree, "refinement", None), (explained, "explained", None),
    ]:  # fmt: skip
        lines, columns = sample_lines([rollout], pack([rollout]), decode), token_columns([rollout], [], Objective())
        contexts = [tuple(ids.tolist()) for ids in columns["contexts"].split(columns["context_lengths"].tolist())]
        others = [line for line in lines if line["role"] == role and "sampled_from" in line]
        assert others and all(line["sampled_from"] != line["prompt"] for line in others)
        for line, sample, i in zip(lines, rollout.samples, columns["context"].tolist(), strict=True):
            assert contexts[i] == sample.context
            sampled = sample.prompt_views.get(SAMPLED, sample.context)
            assert line.get("sampled_from", text(*PLAIN)) == decode(sampled)
            assert {name: contexts[k] for name, k in line.get("views", {}).items()} == dict(sample.prompt_views)
            assert line.get("parent") == sample.parent
        if prompt is not None:
            assert {line["sampled_from"] for line in others} == {decode(prompt)}
    assert {s.parent for s in tree.samples} == {None, 0, 1}


def test_samples_of_the_problem_s_own_prompt_have_no_further_fields() -> None:
    rollout, _ = play(Independent(), lambda r: (RIGHT,), n=2)
    assert not {"sampled_from", "views", "parent"} & set(
        sample_lines([rollout], pack([rollout]), tokenizer().decode)[0]
    )


def test_stored_samples_are_read_with_their_prompts_and_parents() -> None:
    """`whatif` reads the views and the parents again."""
    tree, _ = play(FeedbackTree(), lambda r: (WRONG,), n=2)
    guided, _ = play(HintEscalation(trained_prompt="plain"), lambda r: (WRONG, r.context[-1]), n=2, hints=[text(6)])
    for rollout in (tree, guided):
        lines, columns = sample_lines([rollout], pack([rollout])), token_columns([rollout], [], Objective())
        (again,), _ = rollouts_of(lines, columns)
        assert [(s.context, s.prompt_views, s.parent) for s in again.samples] == [
            (s.context, s.prompt_views, s.parent) for s in rollout.samples
        ]
