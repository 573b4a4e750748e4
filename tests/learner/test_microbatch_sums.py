"""The numbers of a step add up in the order of its microbatches."""

import torch

from groupwise.learner.microbatch_sums import MicrobatchSums


def test_a_loss_is_one_sum_from_left_to_right_over_the_terms_of_all_microbatches() -> None:
    """Adding the sums of microbatches would lose the 1.0: floats do not associate."""
    first = MicrobatchSums(
        auxiliary_terms=(("a", 0.1), ("b", 2.0)), loss_terms=(1e16, -1e16), changed_route_count=1, route_count=3
    )
    second = MicrobatchSums(
        auxiliary_terms=(("a", 0.2), ("b", 4.0)), loss_terms=(1.0, 0.5), changed_route_count=2, route_count=4
    )
    both = first + second
    assert both.loss == 0.0 + 1e16 - 1e16 + 1.0 + 0.5 == 1.5
    assert (MicrobatchSums(loss_terms=(1.0,)) + MicrobatchSums(loss_terms=(1e16, -1e16))).loss == 0.0
    assert both.auxiliary_losses == {"a": 0.0 + 0.1 + 0.2, "b": 6.0}
    assert (both.changed_route_count, both.route_count) == (3, 7)
    assert (MicrobatchSums() + first, first + MicrobatchSums()) == (first, first)


def test_each_number_comes_back_from_the_vector_that_the_ranks_exchange() -> None:
    auxiliary, terms = (
        [torch.tensor(0.25), torch.tensor(3.0)],
        [torch.tensor(0.5), torch.tensor(6.0), torch.tensor(7.0)],
    )
    packed = MicrobatchSums.pack(auxiliary, terms, (2, 9))
    assert packed.dtype == torch.float64
    assert MicrobatchSums.unpack(["a", "b"], packed) == MicrobatchSums((("a", 0.25), ("b", 3.0)), (0.5, 6.0, 7.0), 2, 9)
    assert MicrobatchSums.unpack([], MicrobatchSums.pack([], terms[:1], (0, 0))) == MicrobatchSums((), (0.5,))
