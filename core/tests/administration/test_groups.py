"""Consumer groups whose row cannot be read."""

from __future__ import annotations

from gantrymq.administration.groups import Groups
from gantrymq.broker.tables.tables import item_message
from gantrymq.model.groups import GroupConfig
from gantrymq.store.testing import MemoryFileSystem
from tests.broker.node import groups_of
from tests.broker.test_own_rows import CheckingNode

ROW = b'{"groupName":"g","consumeEnable":false,"retryMaxTimes":"often"}'


def test_a_row_that_was_put_aside_stays_until_an_administrator_changes_the_group() -> None:
    disk = MemoryFileSystem()
    node = CheckingNode(disk, sync=False)
    node.store.append([item_message("group", "g", ROW)], [()])
    node.stop()
    for use in (Groups.ensure, Groups.find):
        again = CheckingNode(disk, sync=False)
        groups = groups_of(again.broker)
        assert use(groups, "g") is groups.get("g")
        assert groups.get("g") == GroupConfig("g")
        again.turn.run_until_quiet()
        again.stop()
    last = CheckingNode(disk, sync=False)
    assert last.broker.tables.quarantined("group") == {"g": ROW}
    groups = groups_of(last.broker)
    groups.ensure("g")
    groups.set(GroupConfig("g", retry_max_times=3))
    last.turn.run_until_quiet()
    assert not last.broker.tables.quarantined("group")
    assert groups_of(last.broker).configs["g"].retry_max_times == 3
    last.stop()
