"""Every place in which one gateway's procedure can stand still while another gateway takes the client id over [MQTT-3.1.4-2].

The old gateway works up to a step, then the new one up to a step, then both: for each pair of steps. Afterwards row, places in the queues
and the connected session are one, and whatever the client asks for next it gets.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from gantrymq_gateways.mqtt import drafts
from gantrymq_gateways.mqtt.sessions import lifecycle
from gantrymq_gateways.mqtt.sessions import rows as session_rows
from gantrymq_gateways.mqtt.tables import FILTER_GRACE_MS
from gantrymq_gateways.mqtt.wire import codec
from gantrymq_gateways.mqtt.wire.codec import ConnAck, Connect, Subscribe, Unsubscribe
from gateways.tests.mqtt.sides import Side, Site
from gateways.tests.mqtt.world import Client


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    site.close()


def start(client: Client, *packets: codec.Packet) -> None:
    """Hand packets over without any turn after them."""
    client.link.hand_over(b"".join([codec.encode_packet(packet) for packet in packets]))


class Run:
    """One takeover: `first` steps of the old gateway, then `second` of the new one, then all the rest."""

    def __init__(self, site: Site, number: int, first: int, second: int) -> None:
        self.site = site
        self.client_id = f"c{number}"
        self.filters = [f"t/{number}/a", f"t/{number}/b"]
        self.first = first
        self.second = second
        self.first_over = self.second_over = False
        """There were no more steps."""

    def begin(self, what: str) -> Client:
        """The old gateway has something to do."""
        client = Client(self.site.old)
        subscribe = Subscribe(1, [(text, 1) for text in self.filters])
        if what == "subscribe":
            start(client, Connect(self.client_id, clean=False), subscribe)
            return client
        client.connect(self.client_id, clean=False)
        client.subscribe(*self.filters)
        if what == "unsubscribe":
            start(client, Unsubscribe(9, self.filters))
            return client
        client.link.lose()
        self.site.settle()
        if what == "clean back":  # the row names the taker already
            Client(self.site.new).connect(self.client_id, clean=False).link.lose()
            self.site.settle()
        client = Client(self.site.old)
        start(client, Connect(self.client_id))
        return client

    def take_over(self, what: str) -> Client:
        """The taker's client, when all has come to rest."""
        client = self.begin(what)
        self.first_over = not self.site.alone(self.site.old, self.first)
        if what != "unsubscribe":
            client.link.lose()
        taker = Client(self.site.new)
        start(taker, Connect(self.client_id, clean=False))
        self.second_over = not self.site.alone(self.site.new, self.second)
        self.site.settle()
        packets = taker.take()
        if taker.closed and what == "clean back":  # what ended the session came behind it
            taker = Client(self.site.new).connect(self.client_id, clean=False)
        elif not taker.closed and what.startswith("clean"):
            assert isinstance(packets[0], ConnAck)
            assert packets[0].session_present == bool(self.row())  # [MQTT-3.2.2-2]
        return taker

    def row(self) -> dict[str, list[int]]:
        """Filters of the stored session."""
        rows = self.site.broker.tables.rows("mqtt_session")
        row: dict[str, list[int]] = json.loads(rows[self.client_id])["s"]
        own = {key.partition("\n")[2]: value for key, value in rows.items() if key.startswith(f"{self.client_id}\n")}
        return row | {text: json.loads(value) for text, value in own.items()}

    def check(self, taker: Client) -> None:
        if taker.closed:
            assert self.first == 0, "only a CONNECT that comes later takes the client id away again"
            return
        session = self.site.new.gateway.lifecycle.live[self.client_id]
        assert set(session.subscriptions) == set(self.row())  # type: ignore[attr-defined]
        self.check_places()
        assert self.gets(taker, "now") == set(self.row())
        taker.subscribe(*self.filters)
        assert self.gets(taker, "then") == set(self.filters)
        self.check_places()
        taker.link.lose()
        self.site.settle()
        again = Client(self.site.old).connect(self.client_id, clean=False)
        assert self.gets(again, "later") == set(self.filters)

    def check_places(self) -> None:
        cursors, group = self.site.broker.cursors.views(), f"mqtt:{self.client_id}"
        places = {cursor.light for cursor in cursors if cursor.group == group}
        assert places == {light for _, light, _ in self.row().values()}

    def gets(self, client: Client, payload: str) -> set[str]:
        """Filters whose message arrives."""
        publisher = Client(self.site.old).connect("publisher")
        for text in self.filters:
            publisher.publish(text, payload)
        publisher.disconnect()
        got = client.messages()
        assert len(got) == len(set(got)), "none twice"
        assert all(body == payload.encode() for _, body in got)
        return {topic for topic, _ in got}


@pytest.mark.parametrize("rows", [False, True], ids=["one row", "rows of filters"])
@pytest.mark.parametrize("what", ["subscribe", "unsubscribe", "clean", "clean back"])
def test_a_takeover_between_any_two_steps(site: Site, what: str, rows: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if rows:  # and each is changed alone
        monkeypatch.setattr(drafts, "INLINE_MAX", 0)
        for module in (session_rows, lifecycle):
            monkeypatch.setattr(module, "TOGETHER_MAX", 1)
    number = 0
    first_over = False
    first = 0
    while not first_over:
        second_over = False
        second = 0
        while not second_over:
            run = Run(site, number, first, second)
            run.check(run.take_over(what))
            first_over, second_over = run.first_over, run.second_over
            for side in site.sides:
                forget(side)
            number += 1
            second += 1
        first += 1
    assert number > 100


@pytest.mark.parametrize("sweeps_first", [True, False])
def test_a_filter_is_taken_while_another_gateway_removes_it(site: Site, sweeps_first: bool) -> None:
    """What SUBACK grants is there, and stays [MQTT-3.8.4-5]."""
    number = 0
    first_over = False
    first = 0
    while not first_over:
        second_over = False
        second = 0
        while not second_over:
            text = f"t/{number}"
            before = Client(site.new).connect("before", clean=False)
            before.subscribe(text)
            before.unsubscribe(text)
            client = Client(site.new).connect(f"c{number}", clean=False)
            site.clock.advance(FILTER_GRACE_MS + 1)
            for sweeps in (sweeps_first, not sweeps_first):
                if sweeps:
                    site.old.gateway.lifecycle.sweep()
                    first_over = not site.alone(site.old, first)
                else:
                    start(client, Subscribe(1, [(text, 1)]))
                    second_over = not site.alone(site.new, second)
            site.settle()
            client.take()
            assert delivers(site, text, client)
            for side in site.sides:
                forget(side)
            assert delivers(site, text, Client(site.old).connect(f"c{number}", clean=False))
            forget(site.old)
            number += 1
            second += 1
        first += 1
    assert number > 100


def delivers(site: Site, text: str, client: Client) -> bool:
    publisher = Client(site.old).connect("publisher")
    publisher.publish(text)
    publisher.disconnect()
    return client.messages() == [(text, b"x")]


def forget(side: Side) -> None:
    """Clients of a run that is over."""
    for client in side.clients:
        client.link.lose()
    side.settle()
    side.clients.clear()
