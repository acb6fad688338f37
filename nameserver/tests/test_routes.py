"""The routing table by itself: who is registered, who is gone, and what remains of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantrymq.model.errors import GantryError
from gantrymq.remoting.json_bodies import DataVersion, TopicConfigBody, TopicConfigTable
from gantrymq_nameserver import routes as module
from gantrymq_nameserver.routes import HEARTBEAT_MS, Live, RouteTable


def table(*topics: str, counter: int = 1, perm: int = 6) -> TopicConfigTable:
    configs = {topic: TopicConfigBody(topic, 4, 4, perm) for topic in topics}
    return TopicConfigTable(configs, DataVersion(0, 1000, counter))


def register(
    routes: RouteTable,
    name: str,
    *topics: str,
    broker_id: int = 0,
    cluster: str = "C",
    address: str = "",
    owner: object = "conn",
    now: int = 0,
    counter: int = 1,
    acting: bool = False,
    complete: bool = False,
) -> tuple[str, str]:
    live = Live(cluster, name, broker_id, address or f"{name}-{broker_id}:1")
    return routes.register(live, owner, now, table(*topics, counter=counter), acting, complete)


def names_in(routes: RouteTable, topic: str) -> list[str]:
    found = routes.route(topic)
    return [] if found is None else [queue.broker_name for queue in found[0]]


def test_route_over_two_brokers() -> None:
    routes = RouteTable()
    register(routes, "a", "T", "U")
    register(routes, "b", "T")
    assert names_in(routes, "T") == ["a", "b"]
    assert names_in(routes, "U") == ["a"]
    assert routes.route("X") is None
    assert routes.clusters == {"C": {"a", "b"}}


def test_heartbeat_expiry() -> None:
    routes = RouteTable()
    register(routes, "a", "T", now=0)
    register(routes, "b", "T", now=0)
    assert routes.heartbeat("C", "b", "b-0:1", 50_000)
    assert not routes.heartbeat("C", "z", "z:1", 50_000)
    assert not routes.heartbeat("C", "z", "a-0:1", 50_000), "it is another broker's address"
    assert routes.expire(HEARTBEAT_MS) == []
    assert routes.expire(HEARTBEAT_MS + 1) == ["a/0 a-0:1"]
    assert names_in(routes, "T") == ["b"]
    assert routes.expire(HEARTBEAT_MS + 50_001) == ["b/0 b-0:1"]
    assert (routes.topics, routes.groups, routes.clusters) == ({}, {}, {})


def test_closed_connection_removes_its_brokers_only() -> None:
    routes = RouteTable()
    register(routes, "a", "T", owner=1)
    register(routes, "b", "T", owner=2)
    assert routes.connection_closed(1) == ["a/0 a-0:1"]
    assert routes.connection_closed(1) == []
    assert names_in(routes, "T") == ["b"]


def test_a_broker_that_moved_to_a_new_connection_survives_the_old_one() -> None:
    routes = RouteTable()
    register(routes, "a", "T", owner=1)
    register(routes, "a", "T", owner=2)
    assert routes.connection_closed(1) == []
    assert names_in(routes, "T") == ["a"]


def test_a_broker_with_a_new_name_at_its_old_address_leaves_no_ghost() -> None:
    """Its old connection may still seem open: the old name would be in every route for good."""
    routes = RouteTable()
    register(routes, "a", "T", address="h:1", owner=1)
    register(routes, "b", "T", address="h:1", owner=2)
    assert names_in(routes, "T") == ["b"]
    assert (list(routes.groups), routes.clusters) == (["b"], {"C": {"b"}})
    assert routes.connection_closed(1) == []
    routes.connection_closed(2)
    assert (routes.topics, routes.groups, routes.clusters) == ({}, {}, {})


def test_slave_learns_its_master_and_becomes_master() -> None:
    routes = RouteTable()
    live = Live("C", "a", 0, "m:1")
    live.ha_address = "m:2"
    routes.register(live, 1, 0, table("T"), False, False)
    assert register(routes, "a", "V", broker_id=1, address="s:1", owner=2) == ("m:2", "m:1")
    assert names_in(routes, "V") == []
    assert routes.groups["a"].broker_addrs == {0: "m:1", 1: "s:1"}
    routes.connection_closed(1)
    assert routes.groups["a"].broker_addrs == {1: "s:1"}
    register(routes, "a", "T", broker_id=0, address="s:1", owner=2, counter=2)
    assert routes.groups["a"].broker_addrs == {0: "s:1"}


def test_acting_master_serves_reads_only() -> None:
    routes = RouteTable()
    register(routes, "a", "T", owner=1, acting=True)
    register(routes, "a", "T", broker_id=1, owner=2, acting=True)
    routes.connection_closed(1)
    register(routes, "a", "T", broker_id=1, owner=2, acting=True, counter=2)
    found = routes.route("T")
    assert found is not None
    assert found[0][0].perm == 4


def test_registration_adds_topics_and_complete_ones_replace() -> None:
    routes = RouteTable()
    register(routes, "a", "T", "U")
    register(routes, "a", "V", counter=2)
    assert sorted(routes.topics) == ["T", "U", "V"]
    register(routes, "a", "V", counter=3, complete=True)
    assert sorted(routes.topics) == ["V"]


def test_taken_write_permission_stays_until_the_topics_change() -> None:
    routes = RouteTable()
    register(routes, "a", "T", "U")
    assert routes.change_write_perm("a", writable=False) == 2
    register(routes, "a", "T", "U")
    assert routes.topics["T"]["a"].perm == 4
    assert routes.change_write_perm("a", writable=True) == 2
    assert routes.change_write_perm("nobody", writable=True) == 0
    assert routes.topics["T"]["a"].perm == 6


def test_unregister_needs_the_same_broker() -> None:
    routes = RouteTable()
    register(routes, "a", "T")
    assert not routes.unregister("C", "b", 0, "a-0:1")
    assert not routes.unregister("C", "a", 1, "a-0:1")
    assert routes.unregister("C", "a", 0, "a-0:1")
    assert routes.topics == {}


def test_delete_topic_in_one_cluster_or_all() -> None:
    routes = RouteTable()
    register(routes, "a", "T", cluster="C1")
    register(routes, "b", "T", cluster="C2")
    routes.delete_topic("T", "C1")
    assert names_in(routes, "T") == ["b"]
    routes.delete_topic("T", None)
    assert routes.route("T") is None
    assert routes.topics_of("C1") == []


@pytest.mark.parametrize(
    "change", [{"cluster": ""}, {"cluster": "a b"}, {"name": "x" * 256}, {"address": "nohost"}, {"broker_id": -1}]
)
def test_bad_names_are_refused_and_leave_nothing(change: dict[str, object]) -> None:
    routes = RouteTable()
    wanted: dict[str, object] = {"name": "a", "cluster": "C", "address": "h:1", "broker_id": 0} | change
    with pytest.raises(GantryError):
        register(routes, str(wanted.pop("name")), "T", **wanted)  # type: ignore[arg-type]
    assert (routes.topics, routes.groups, routes.clusters) == ({}, {}, {})


def test_broker_name_belongs_to_one_cluster() -> None:
    routes = RouteTable()
    register(routes, "a", "T", cluster="C1")
    with pytest.raises(GantryError, match="belongs to cluster C1"):
        register(routes, "a", "T", cluster="C2", address="x:1")


def test_illegal_topics_are_left_out() -> None:
    routes = RouteTable()
    register(routes, "a", "good", "bad topic", "x" * 256, "%RETRY%" + "g" * 200)
    assert sorted(routes.topics) == ["%RETRY%" + "g" * 200, "good"]


def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BROKERS_MAX", 2)
    monkeypatch.setattr(module, "TOPICS_MAX", 3)
    routes = RouteTable()
    register(routes, "a", "T1", "T2")
    register(routes, "b", "T3")
    with pytest.raises(GantryError, match="2 brokers"):
        register(routes, "c", "T1")
    with pytest.raises(GantryError, match="3 topics"):
        register(routes, "b", "T4", counter=2)


@given(
    st.lists(st.tuples(st.sampled_from("rucx"), st.integers(0, 2), st.integers(0, 1), st.integers(0, 3)), max_size=40)
)
def test_tables_agree_after_anything(steps: list[tuple[str, int, int, int]]) -> None:
    routes = RouteTable()
    now = 0
    for action, broker, broker_id, owner in steps:
        now += 30_000
        name = "abc"[broker]
        if action == "r":
            register(routes, name, "T", f"only-{name}", broker_id=broker_id, owner=owner, now=now, counter=now)
        elif action == "u":
            routes.unregister("C", name, broker_id, f"{name}-{broker_id}:1")
        elif action == "c":
            routes.connection_closed(owner)
        else:
            routes.expire(now)
        alive = {(live.broker_name, live.broker_id, live.address) for live in routes._live.values()}
        in_groups = {(n, i, a) for n, group in routes.groups.items() for i, a in group.broker_addrs.items()}
        assert alive == in_groups
        assert {n for names in routes.clusters.values() for n in names} == set(routes.groups)
        assert {n for queues in routes.topics.values() for n in queues} <= set(routes.groups)
        assert sum(map(len, routes._owned.values())) == len(routes._live)
    for owner in range(4):
        routes.connection_closed(owner)
    assert (routes.topics, routes.groups, routes.clusters, routes._owned) == ({}, {}, {}, {})
