"""The states of a fleet's slots, and the changes between them."""

from itertools import product
from typing import Any

import pytest

from groupwise.engines import Remote
from groupwise.engines.remote import slots as slots
from groupwise.engines.remote.slots import CHANGES, GivenUp, Loading, Lost, Serving, Slot, Starting

REPLICA = Remote.__new__(Remote)
STATES = (Starting(), Loading(REPLICA), Serving(REPLICA, 3), Lost(OSError("gone")), GivenUp())


def test_the_table_names_every_state() -> None:
    assert set(CHANGES) == {type(state) for state in STATES} == set(slots.State.__args__)


@pytest.mark.parametrize(("before", "after"), list(product(STATES, STATES)), ids=lambda state: type(state).__name__)
def test_a_change_that_is_not_in_the_table_is_refused(before: Any, after: Any) -> None:
    slot = Slot(0, state=before)
    if type(after) in CHANGES[type(before)]:
        slot.become(after)
        assert slot.state is after
        return
    with pytest.raises(AssertionError, match=f"from {type(before).__name__} to {type(after).__name__}"):
        slot.become(after)
    assert slot.state is before


def test_a_place_remembers_its_last_loss_and_that_it_served() -> None:
    slot = Slot(0)
    assert (slot.replica, slot.version, slot.given_up, slot.admitted) == (None, -1, False, False)
    slot.become(Loading(REPLICA))
    slot.dismiss()
    assert slot.wake.is_set() and slot.replica is REPLICA and not slot.admitted
    slot.become(Serving(REPLICA, 3))
    assert (slot.version, slot.admitted) == (3, True)
    slot.suspend()
    assert isinstance(slot.state, Loading) and slot.version == -1
    slot.become(Lost(error := OSError("gone")))
    slot.become(Starting())
    assert slot.error is error and slot.admitted and slot.replica is None
    slot.suspend()
    assert isinstance(slot.state, Starting)
