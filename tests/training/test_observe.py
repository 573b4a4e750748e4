"""Tests of the records of an iteration, also for a batch from another process."""

import pickle
from dataclasses import replace

import torch

from groupwise.data import pack
from groupwise.learner import StepResult
from groupwise.objective import Objective
from groupwise.training.observe import sample_lines, token_columns
from tests.laws.batches import rollouts, step_of


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
