"""The end of a process of a Ray cluster that does not answer: Ray itself is not needed."""

import socket

from groupwise.cluster.ray import lost


def test_a_process_that_does_not_answer_is_lost_with_the_head_if_that_is_gone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as head:
        address = f"127.0.0.1:{head.getsockname()[1]}"
        assert str(lost(TimeoutError("late"), address)) == "was lost: TimeoutError"
    assert (
        str(lost(TimeoutError("late"), address)) == f"was lost: the head of the Ray cluster, {address}, does not answer"
    )
    assert lost(TimeoutError("late")).last_lines == ["late"]
