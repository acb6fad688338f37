"""A group that is away or hangs: its deputy gives leases that nothing lasting hangs on, and they go home; nobody holds one for long beside another."""

from __future__ import annotations

from typing import Any

import pytest

from gantrymq.broker.port import choose_name, lease_name, row_name
from gantrymq.broker.tables.slot_table import slot_of
from gantrymq.cluster.group import place_of
from gantrymq.cluster.patience import CHECK_EVERY_MS, SILENCE_MS
from gantrymq.cluster.port import SETTLE_MS, ClusterPort
from gantrymq.model.errors import ErrorCode
from tests.cluster.slots.slot_site import SlotSite
from tests.cluster.slots.test_view import Gateways, code, name_of

HANG_MS = SILENCE_MS + 3 * CHECK_EVERY_MS


def start(gateways: Gateways, port: ClusterPort, name: str, force: bool = True, deputy: bool = True) -> list[Any]:
    who = "one" if port is gateways.one else "other"
    box: list[Any] = []

    def lost(_name: str) -> None:
        gateways.lost.append((who, name))

    port.take_lease(name, force, lost, None, lambda token, result: box.append(result), deputy=deputy)
    gateways.site.run()
    return box


def take(gateways: Gateways, port: ClusterPort, name: str, force: bool = True, deputy: bool = True) -> Any:
    (result,) = start(gateways, port, name, force, deputy)
    return result


def hang(gateways: Gateways, name: str) -> None:
    for port in (gateways.one, gateways.other):
        gateways.site.line(port, name).hang()


def thaw(gateways: Gateways, name: str) -> None:
    for port in (gateways.one, gateways.other):
        gateways.site.line(port, name).thaw()
    gateways.site.run()


def deputy_of(gateways: Gateways, name: str) -> str:
    """Where every gateway takes it while its owner is away."""
    places = {place_of(port, lease_name(name), True)[0].name for port in (gateways.one, gateways.other)}
    (place,) = places
    return place


def test_a_lease_of_a_group_that_is_gone_is_the_deputys_for_every_gateway() -> None:
    gateways = Gateways()
    site = gateways.site
    names = [name_of(site, "b", prefix=f"client{number}-") for number in range(20)]
    site.kill("b")
    for name in names:
        assert code(take(gateways, gateways.one, name, deputy=False)) is ErrorCode.UNAVAILABLE
        assert isinstance(take(gateways, gateways.one, name), int)
        assert gateways.held_at(name) == [deputy_of(gateways, name)]
        assert code(take(gateways, gateways.other, name, force=False)) is ErrorCode.LEASE_HELD
        assert isinstance(take(gateways, gateways.other, name), int)
        assert gateways.lost.pop() == ("one", name), "as a client takes over another"
        assert gateways.held_at(name) == [deputy_of(gateways, name)]
    assert gateways.lost == []
    assert {deputy_of(gateways, name) for name in names} == {"a", "c"}, "both stand in"


def test_it_goes_home_when_its_owner_is_back() -> None:
    gateways = Gateways()
    site = gateways.site
    name = name_of(site, "b")
    disk = site.kill("b")
    epoch = take(gateways, gateways.one, name)
    site.start("b", disk)
    site.wait(1000)
    assert gateways.held_at(name) == ["b"]
    assert gateways.lost == []
    assert isinstance(take(gateways, gateways.other, name, deputy=False), int)
    assert gateways.lost == [("one", name)]
    gateways.one.drop_lease(name, epoch)
    site.run()
    assert gateways.held_at(name) == ["b"]


def test_who_asked_the_owner_that_is_back_keeps_what_another_has_of_the_deputy() -> None:
    """The gateway of the older client has not found the owner yet."""
    gateways = Gateways()
    site = gateways.site
    name = name_of(site, "b")
    disk = site.kill("b")
    take(gateways, gateways.one, name)
    line = site.line(gateways.one, "b")
    site.start("b", disk)
    line.cut()
    site.wait(1000)
    assert isinstance(take(gateways, gateways.other, name), int)
    line.mend()
    site.wait(1000)
    assert gateways.lost == [("one", name)]
    assert gateways.held_at(name) == ["b"]


def test_a_lease_leaves_an_owner_that_is_lost_and_is_taken_over_at_the_deputy() -> None:
    gateways = Gateways()
    site = gateways.site
    names = [name_of(site, "b", prefix=f"client{number}-") for number in range(200)]
    epochs = {name: take(gateways, gateways.one, name) for name in names}
    assert all(gateways.held_at(name) == ["b"] for name in names)
    disk = site.kill("b")
    assert all(gateways.held_at(name) == [deputy_of(gateways, name)] for name in names)
    assert isinstance(take(gateways, gateways.other, names[0]), int)
    assert gateways.lost == [("one", names[0])]
    gateways.one.drop_lease(names[1], epochs[names[1]])
    site.start("b", disk)
    site.wait(1000)
    assert gateways.lost == [("one", names[0])]
    assert gateways.held_at(names[1]) == []
    assert all(gateways.held_at(name) == ["b"] for name in [names[0], *names[2:]])


def test_a_lease_that_lasting_things_hang_on_stays() -> None:
    gateways = Gateways()
    site = gateways.site
    name = name_of(site, "b")
    take(gateways, gateways.one, name, deputy=False)
    site.kill("b")
    assert gateways.held_at(name) == []
    assert code(take(gateways, gateways.other, name, deputy=False)) is ErrorCode.UNAVAILABLE
    assert gateways.lost == []


def test_a_group_that_hangs_has_a_deputy_within_a_second_and_then_at_once() -> None:
    gateways = Gateways()
    site = gateways.site
    first, second = name_of(site, "b"), name_of(site, "b", prefix="more")
    hang(gateways, "b")
    box = start(gateways, gateways.one, first)
    assert box == []
    site.wait(HANG_MS)
    assert isinstance(box[0], int)
    assert isinstance(take(gateways, gateways.one, second), int), "no wait"
    assert code(take(gateways, gateways.one, name_of(site, "b", prefix="lasting"), deputy=False)) is (
        ErrorCode.UNAVAILABLE
    )
    assert gateways.lost == []
    thaw(gateways, "b")
    assert gateways.held_at(first) == gateways.held_at(second) == ["b"]
    assert gateways.lost == []


def test_a_newer_client_stays_when_the_older_ones_group_goes_on() -> None:
    """The older client's lease is at the group that hangs, in another gateway and in this one."""
    gateways = Gateways()
    site = gateways.site
    names = [name_of(site, "b"), name_of(site, "b", prefix="more")]
    take(gateways, gateways.other, names[0])
    take(gateways, gateways.one, names[1])
    hang(gateways, "b")
    boxes = [start(gateways, gateways.one, name) for name in names]
    site.wait(HANG_MS)
    assert all(isinstance(box[0], int) for box in boxes)
    thaw(gateways, "b")
    site.wait(1000)
    assert sorted(gateways.lost) == [("one", names[1]), ("other", names[0])]
    assert all(gateways.held_at(name) == ["b"] for name in names)


def test_a_deputy_that_is_lost_has_a_deputy() -> None:
    gateways = Gateways()
    site = gateways.site
    names = [name_of(site, "b", prefix=f"client{number}-") for number in range(20)]
    site.kill("b")
    for name in names:
        take(gateways, gateways.one, name)
    site.kill("c")
    assert all(gateways.held_at(name) == ["a"] for name in names)
    assert gateways.lost == []


def test_a_deputy_that_is_lost_as_it_is_asked_is_followed() -> None:
    gateways = Gateways()
    site = gateways.site
    name = name_of(site, "b")
    site.kill("b")
    deputy = deputy_of(gateways, name)
    site.line(gateways.one, deputy).calls_left = 0
    box = start(gateways, gateways.one, name)
    site.wait(1000)
    assert isinstance(box[0], int)
    assert gateways.held_at(name) == [next(other for other in "ac" if other != deputy)]


def test_a_slot_that_the_deputy_gets_for_good_moves_on_with_the_lease() -> None:
    gateways = Gateways()
    site = gateways.site
    name = name_of(site, "b")
    slot = slot_of(lease_name(name))
    disk = site.kill("b")
    take(gateways, gateways.one, name)
    deputy = deputy_of(gateways, name)
    site.start("b", disk)
    site.wait(1000)
    other = next(group for group in "ac" if group != deputy)
    for source, target in (("b", deputy), (deputy, other)):
        assert site.move(source, target, [slot]) == [slot]
        site.wait(1000)
        assert gateways.held_at(name) == [target]
    assert gateways.lost == []


def test_a_gateway_alone_with_groups_that_hang_is_refused() -> None:
    gateways = Gateways()
    site = gateways.site
    for name in "abc":
        site.line(gateways.one, name).hang()
    box = start(gateways, gateways.one, name_of(site, "b"))
    site.wait(5_000)
    assert code(box[0]) is ErrorCode.UNAVAILABLE


def test_it_answers_for_names_of_groups_that_answer() -> None:
    gateways = Gateways()
    site = gateways.site
    theirs, others = lease_name(name_of(site, "b")), lease_name(name_of(site, "c"))
    assert gateways.one.answers_for(theirs)
    site.line(gateways.one, "b").hang()
    box = start(gateways, gateways.one, name_of(site, "b"), deputy=False)
    site.wait(HANG_MS)
    assert code(box[0]) is ErrorCode.UNAVAILABLE
    assert (gateways.one.answers_for(theirs), gateways.one.answers_for(others)) == (False, True)
    site.kill("b")
    assert not gateways.one.answers_for(theirs)
    numbers = iter(range(10_000))

    def names_of(name: str) -> list[str]:
        return [lease_name(name), row_name("t", name), row_name("u", name)]

    for _ in range(20):
        name = choose_name(gateways.one, lambda: f"gen{next(numbers)}", names_of)
        assert isinstance(take(gateways, gateways.one, name, deputy=False), int)
        assert all(site.call(gateways.one, "put", table, [(name, b"1")]) is None for table in "tu")


@pytest.mark.parametrize("back", [False, True])
def test_new_rows_that_nobody_else_makes_lie_at_the_deputy(back: bool) -> None:
    gateways = Gateways()
    site = gateways.site
    key = name_of(site, "b", "t", "row")
    disk = site.kill("b")
    box: list[Any] = []
    gateways.one.put("t", [(key, b"1")], None, lambda token, result: box.append(result), deputy=True)
    site.run()
    assert box == [None]
    place = next(name for name in "ac" if key in site.nodes[name].broker.tables.rows("t"))
    if back:
        site.start("b", disk)
        site.wait(SETTLE_MS)
        place = "b"  # it has come home
    assert site.call(gateways.other, "put", "t", [(key, b"2")]) is None, "found where it is"
    assert site.nodes[place].broker.tables.rows("t") == {key: b"2"}
    assert site.call(gateways.one, "put", "t", [(key, None)]) is None
    assert not any(site.nodes[name].broker.tables.rows("t") for name in ("abc" if back else "ac"))


def test_a_light_queue_is_made_where_somebody_answers() -> None:
    site = SlotSite("a", "b", "c")
    port = site.gateway()
    rows = site.nodes["b"].broker.tables.rows("light")
    before = rows.keys() | {"next"}
    site.line(port, "b").hang()
    boxes: list[list[Any]] = [[] for _ in range(6)]
    for box in boxes:
        port.create_light(None, lambda token, result, box=box: box.append(result))
    site.wait(HANG_MS)
    lights = [light for (light,) in boxes]
    assert len(set(lights)) == 6
    assert all(isinstance(light, int) for light in lights)
    site.line(port, "b").thaw()
    site.run()
    assert rows.keys() == before, "what it made too late is gone"
    assert site.call(port, "create_light") not in lights
