"""The largest of four numbers: the split, and the answers."""

import re

from groupwise.tasks import Largest, RowsTask, SourceStats, named_task
from groupwise.verifiers import LastNumber, usual_verifier

TASK = Largest().build(lambda text: tuple(map(ord, text)))
TRAINING = tuple(TASK[i] for i in range(len(TASK)))


def test_every_answer_is_the_largest_number() -> None:
    for prompt in (*TRAINING, *TASK.held_out):
        numbers = [int(n) for n in re.findall(r"\d+", prompt.text)]
        assert len(set(numbers)) == 4 and prompt.row["answer"] == max(numbers) and min(numbers) >= 10


def test_the_split_is_that_of_rows_in_a_file() -> None:
    assert (len(TASK), len(TASK.held_out)) == (1344, 156)
    prompts = sorted((*TRAINING, *TASK.held_out), key=lambda p: int(p.id.rpartition("/")[2]))
    assert len({p.text for p in prompts}) == 1500
    split = RowsTask.split(
        prompts, stats=SourceStats(source="", sha256="", row_count=1500, training_count=1500, held_out_count=0)
    )
    assert (split.training, split.held_out) == (TRAINING, TASK.held_out)


def test_it_is_found_by_its_name() -> None:
    assert (
        named_task("largest").build(TASK.encode_prompt) == TASK
        and usual_verifier(named_task("largest")) == LastNumber()
    )
