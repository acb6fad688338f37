"""Skips where several damaged units say the same position: each ends the waiting for its own alone, whoever else waits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gantrymq.remoting.overview_codes import DAMAGE_LIST, DAMAGE_SKIP
from gantrymq.store.queues.consume_queue import UNIT
from tests.remoting.bench import TOPIC, ask
from tests.remoting.test_damage import COUNT, HURT, LOG, QUEUE, Site, acquired

OTHER = HURT + 3


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """Two units of the topic's queue are zeroed, and nobody has met them."""
    site = Site(tmp_path)

    def blank() -> None:
        for offset in (HURT, OTHER):
            site.flip(QUEUE, offset * UNIT.size, bytes(UNIT.size))

    site.stopped(blank)
    return site


def waits(site: Site) -> dict[tuple[str, int], int]:
    """By queue and offset of what is listed: how many wait."""
    rows = json.loads(ask(site.bench.connect(), DAMAGE_LIST).body)["records"]
    return {(row["queue"], row["offset"]): row["waits"] for row in rows}


def test_a_skip_ends_the_waiting_for_one_unit_alone(site: Site) -> None:
    queue = f"{TOPIC}/0"
    site.open(queue, "more")
    acquired(site, site.cursors["native"])
    acquired(site, site.open(queue, "more"))
    assert waits(site) == {(queue, HURT): 2, (queue, OTHER): 2}
    link = site.bench.connect()
    refused = ask(link, DAMAGE_SKIP, position=0)
    assert (refused.code != 0, "name queue and offset" in refused.remark) == (True, True)
    assert ask(link, DAMAGE_SKIP, position=0, queue=queue, offset=COUNT).code != 0
    assert json.loads(ask(link, DAMAGE_SKIP, position=0, queue=queue, offset=OTHER).body) == {"skipped": 2}
    assert waits(site) == {(queue, HURT): 2, (queue, OTHER): 0}
    assert json.loads(ask(link, DAMAGE_SKIP, position=0).body) == {"skipped": 2}
    assert sum(waits(site).values()) == site.bench.broker.cursors.quarantined.count == 0


def test_a_unit_that_is_mended_is_delivered_alone(site: Site) -> None:
    queue = f"{TOPIC}/0"
    acquired(site, site.cursors["native"])
    site.flip(QUEUE, HURT * UNIT.size, UNIT.pack(*site.units[HURT]))
    assert waits(site) == {(queue, OTHER): 1}
    assert acquired(site, site.cursors["native"]) == [HURT]


def test_a_list_looks_up_who_waits_and_walks_over_nobody(site: Site) -> None:
    class NoWalk(dict[int, dict[int, tuple[int, str, int]]]):
        def items(self) -> None:  # type: ignore[override]
            raise AssertionError("all who wait, for one row")

    site.stopped(lambda: site.flip(LOG, site.units[1][0] + 100, 1))
    acquired(site, site.cursors["native"])
    cursors = site.bench.broker.cursors
    cursors.quarantined.by_cursor = NoWalk(cursors.quarantined.by_cursor)
    assert waits(site) == {(f"{TOPIC}/0", offset): 1 for offset in (1, HURT, OTHER)}
