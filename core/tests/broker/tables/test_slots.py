"""Which requests a broker answers as the owner of a slot."""

from __future__ import annotations

import pytest

from gantrymq.model.errors import ErrorCode, GantryError
from tests.cluster.slots.slot_site import SlotSite


def test_requests_of_another_epoch_are_refused() -> None:
    site = SlotSite("a", "b")
    slots = site.nodes["a"].broker.slots
    mine, theirs = site.table().owned_by("a")[0], site.table().owned_by("b")[0]
    epoch = site.table().slots[mine].epoch
    slots.check((mine, epoch))
    for under, text in (
        ((mine, epoch - 1), "older epoch"),
        ((mine, epoch + 1), "has not heard yet"),
        ((theirs, site.table().slots[theirs].epoch), "is b's"),
    ):
        with pytest.raises(GantryError, match=text) as caught:
            slots.check(under)
        assert caught.value.code is ErrorCode.NOT_OWNER
