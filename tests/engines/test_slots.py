"""The states of a fleet's slots, and the changes between them."""

from itertools import product
from typing import Any

import pytest

from groupwise.engines import RemoteEngine
from groupwise.engines.remote import engine_slots as slots
from groupwise.engines.remote.engine_slots import (
    CHANGES,
    Slot,
    SlotGivenUp,
    SlotLoading,
    SlotLost,
    SlotServing,
    SlotStarting,
)

REPLICA = RemoteEngine.__new__(RemoteEngine)
STATES = (SlotStarting(), SlotLoading(REPLICA), SlotServing(REPLICA, 3), SlotLost(OSError("gone")), SlotGivenUp())


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
    assert (slot.replica, slot.version, slot.given_up, slot.was_admitted) == (None, -1, False, False)
    slot.become(SlotLoading(REPLICA))
    slot.dismiss()
    assert slot.wake_event.is_set() and slot.replica is REPLICA and not slot.was_admitted
    slot.become(SlotServing(REPLICA, 3))
    assert (slot.version, slot.was_admitted) == (3, True)
    slot.suspend()
    assert isinstance(slot.state, SlotLoading) and slot.version == -1
    slot.become(SlotLost(error := OSError("gone")))
    slot.become(SlotStarting())
    assert slot.last_error is error and slot.was_admitted and slot.replica is None
    slot.suspend()
    assert isinstance(slot.state, SlotStarting)
