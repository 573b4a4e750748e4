"""The states of a fleet's places, and the changes between them."""

from itertools import product
from typing import Any

import pytest

from groupwise.engines import Remote
from groupwise.engines.remote import slots as places
from groupwise.engines.remote.slots import CHANGES, GivenUp, Loading, Lost, Place, Serving, Starting

REPLICA = Remote.__new__(Remote)
STATES = (Starting(), Loading(REPLICA), Serving(REPLICA, 3), Lost(OSError("gone")), GivenUp())


def test_the_table_names_every_state() -> None:
    assert set(CHANGES) == {type(state) for state in STATES} == set(places.State.__args__)


@pytest.mark.parametrize(("before", "after"), list(product(STATES, STATES)), ids=lambda state: type(state).__name__)
def test_a_change_that_is_not_in_the_table_is_refused(before: Any, after: Any) -> None:
    place = Place(0, state=before)
    if type(after) in CHANGES[type(before)]:
        place.become(after)
        assert place.state is after
        return
    with pytest.raises(AssertionError, match=f"from {type(before).__name__} to {type(after).__name__}"):
        place.become(after)
    assert place.state is before


def test_a_place_remembers_its_last_loss_and_that_it_served() -> None:
    place = Place(0)
    assert (place.replica, place.version, place.given_up, place.admitted) == (None, -1, False, False)
    place.become(Loading(REPLICA))
    place.dismiss()
    assert place.wake.is_set() and place.replica is REPLICA and not place.admitted
    place.become(Serving(REPLICA, 3))
    assert (place.version, place.admitted) == (3, True)
    place.suspend()
    assert isinstance(place.state, Loading) and place.version == -1
    place.become(Lost(error := OSError("gone")))
    place.become(Starting())
    assert place.error is error and place.admitted and place.replica is None
    place.suspend()
    assert isinstance(place.state, Starting)
