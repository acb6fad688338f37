"""A source: what it knows of the other groups' routes, and the forward queues in which records wait for them.

A forward queue is a light queue of this broker for one peer, and of one start: nothing enters it after that. So its offsets are never used twice,
whatever a crash takes, and the peer may note how far it has read each (`receiving.py`). Knowledge of a peer's routes is leased, on a clock that
goes on while the machine sleeps: when the lease is over the peer gets every record, and matches it itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from gantrymq.broker.forward.marks import mark_of
from gantrymq.broker.port import Route
from gantrymq.broker.queues.engine import RETRY_MS
from gantrymq.broker.routing.router import OTHERS, route_from_bytes
from gantrymq.broker.tables.forward_table import QUEUES_TABLE, TABLE, TO
from gantrymq.broker.tables.group_tables import LIGHT_BITS, TAG_BITS
from gantrymq.broker.tables.slot_table import GROUP, SLOTS_TABLE
from gantrymq.model.errors import ErrorCode, GantryError

if TYPE_CHECKING:
    from gantrymq.broker.consuming.known.table import Cursor
    from gantrymq.broker.parts import Context
    from gantrymq.broker.tables.slots import Slots

log = logging.getLogger(__name__)

CURSOR_GROUP: Final = "forward"
"""Whose cursor stands in a forward queue."""
LEASE_MS: Final = 3_000
"""From a source's question on it knows all there is to know."""
PEERS_MAX: Final = 255
_LIGHT_MASK: Final = OTHERS - 1
_CHECK_MS: Final = 200
"""How often it is seen whether a forward queue is full: so much later publishers hear of it."""


class Peer:
    """Another group. `number`: stands above its light queues in routes here. `light`: its forward queue, of this start."""

    __slots__ = ("cursor", "full", "is_foreign", "lapsed_ms", "lease_ms", "life", "light", "name", "number", "refused")

    def __init__(self, name: str, number: int, light: int, cursor: int) -> None:
        self.name = name
        self.number = number
        self.light = light
        self.cursor = cursor
        self.lease_ms = 0
        """On the boot clock; 0: nothing is known."""
        self.lapsed_ms = 0
        """Leases that were asked for before, on the boot clock, do not count."""
        self.life = ""
        """Its start that told its routes."""
        self.is_foreign = False
        """It has routes that cannot be understood here: it always matches itself."""
        self.full = False
        self.refused = 0
        """Records that were refused because its forward queue is full."""

    @property
    def keeps_out(self) -> bool:
        """So much waits for it that what it wanted by its last word is refused, and nothing else is kept for it: others' publishers go on."""
        return self.full and bool(self.life) and not self.is_foreign

    @property
    def is_known(self) -> bool:
        """Its routes here are those that it has."""
        return bool(self.lease_ms) and not self.is_foreign


class Sending:
    """See the module. Nothing happens in a broker without a metadata group."""

    def __init__(self, broker: Context, slots: Slots, most: int, random_bits: Callable[[int], int]) -> None:
        self._broker = broker
        self._slots = slots
        self._most = most
        self.life = f"{random_bits(64):016x}"
        self.peers: dict[str, Peer] = {}
        self._queues: dict[str, dict[str, int]] = {}
        """Forward queues by peer and start, the oldest first."""
        self._numbers = 1 << TAG_BITS
        """Above all tags: what a peer's route is called here is no id of a queue."""
        self._lapses_ms = 0
        """When the first lease is over; 0: there is none."""
        self._ready: set[str] = set()
        self.readers: dict[int, int] = {}
        """By cursor of a forward queue: the port that reads it. A broken connection of the peer that is not seen yet reads no more."""
        self._moved: dict[str, tuple[int, str]] = {}
        """Routes that went to another group with their queue, by id: how often, and who has it now. Whoever had it before says nothing of it."""
        self._waiting: list[tuple[str, Any, Callable[[Any, Any], None]]] = []
        """Peers whose forward queue is to be on the disk first, with who asks."""
        self._on_peer: Callable[[str], None] = lambda name: None
        self._on_forgotten: Callable[[str], None] = lambda name: None

    # Peers.

    def open(self) -> None:
        """As Part.open."""
        if not self._slots.keeper:
            return
        self._broker.router.elsewhere(self)
        self._broker.tables.watch(SLOTS_TABLE, self._slot_row)
        self._broker.tables.watch("light", self._light_row)
        self._broker.tables.watch(TABLE, self._queue_row)
        self._broker.tables.watch("route", self._route_row)
        rows = [(int(light), key) for key, light in self._broker.tables.rows(TABLE).items() if key.startswith(TO)]
        for light, key in sorted(rows):
            name, _, life = key[len(TO) :].rpartition("/")
            self._queues.setdefault(name, {})[life] = light
        for name in dict.fromkeys((self._slots.keeper, *self._slots.table.groups)):
            self._meet(name)
        self._broker.wheel.call_at(self._broker.wheel.now_ms() + _CHECK_MS, self._check)

    def close(self) -> None:
        """As Part.close."""

    def tell(self, on_peer: Callable[[str], None], on_forgotten: Callable[[str], None]) -> None:
        """Who is to hear of peers, those that are known included, and of their end."""
        self._on_peer, self._on_forgotten = on_peer, on_forgotten
        for name in self.peers:
            on_peer(name)

    def _slot_row(self, key: str, value: bytes | None) -> None:
        if key.startswith(GROUP):
            name = key[len(GROUP) :]
            if value is not None:
                self._meet(name)
            elif name != self._slots.keeper:
                self._forget(name)

    def _light_row(self, key: str, value: bytes | None) -> None:
        """A peer deletes the forward queue of an earlier start when it has read it to its end."""
        if value is not None:
            return
        for name, queues in self._queues.items():
            for life in [life for life, light in queues.items() if str(light) == key]:
                del queues[life]
                self._broker.put_rows([(TABLE, f"{TO}{name}/{life}", None)])
                self.readers = {
                    cursor: port for cursor, port in self.readers.items() if cursor in self._broker.cursors.by_id
                }

    def _queue_row(self, key: str, value: bytes | None) -> None:
        if key.startswith(TO):
            self._broker.tables.tell(QUEUES_TABLE, key, value)

    def _route_row(self, route_id: str, value: bytes | None) -> None:
        if value is None and self._moved.get(route_id, (0, ""))[1] == self._slots.name:
            del self._moved[route_id]

    def _meet(self, name: str) -> None:
        """A group of this cluster: from now on it gets every record, until its routes are known."""
        if name == self._slots.name or name in self.peers:
            return
        if len(self.peers) >= PEERS_MAX:
            log.error("%s is left out: %d broker groups get what they want of the records here", name, PEERS_MAX)
            return
        broker = self._broker
        light, rows = broker.new_light()
        cursor, cursor_rows = broker.cursors.create(f"~{light}", CURSOR_GROUP, 0)
        self._numbers += 1
        peer = self.peers[name] = Peer(name, self._numbers, light, cursor.id)
        self._queues.setdefault(name, {})[self.life] = light
        broker.router.anew(1)
        rows += [("cursor", *row) for row in cursor_rows]
        broker.put_rows([*rows, (TABLE, f"{TO}{name}/{self.life}", str(light).encode())], together=True)
        self._make_sure(peer)
        self._on_peer(name)

    def _make_sure(self, peer: Peer) -> None:
        """Until its forward queue is on the disk the peer must not count on it."""

        def written(_token: Any, result: Any) -> None:
            if self.peers.get(peer.name) is not peer:
                return
            if isinstance(result, GantryError):
                broker.wheel.call_at(broker.wheel.now_ms() + RETRY_MS, lambda now_ms: self._make_sure(peer))
                return
            broker.gate.park(broker.store.written_position, partial(self._sure, peer), None, None, strict=True)
            broker.request_flush()

        broker = self._broker
        broker.when_stored(None, written)

    def _sure(self, peer: Peer, _token: Any, result: Any) -> None:
        if isinstance(result, GantryError) or self.peers.get(peer.name) is not peer:
            return
        self._ready.add(peer.name)
        waiting, self._waiting = self._waiting, []
        for name, token, on_done in waiting:
            self.when_ready(name, token, on_done)

    def when_ready(self, name: str, token: Any, on_done: Callable[[Any, Any], None]) -> None:
        """`on_done(token, None)` when the peer's forward queue is on the disk; NOT_FOUND: it is none."""
        if name not in self.peers:
            on_done(token, GantryError(ErrorCode.NOT_FOUND, f"broker group {name} is none of this cluster"))
        elif name in self._ready:
            on_done(token, None)
        else:
            self._waiting.append((name, token, on_done))

    def _forget(self, name: str) -> None:
        """The cluster has forgotten the group: what waits for it goes."""
        peer = self.peers.pop(name, None)
        if peer is None:
            return
        self._ready.discard(name)
        self._drop_routes(peer)
        self._moved = {route_id: moved for route_id, moved in self._moved.items() if moved[1] != name}
        self._broker.router.anew(0 if peer.is_known else -1)
        for life, light in self._queues.pop(name, {}).items():
            cursor = self._broker.cursors.find(f"~{light}", CURSOR_GROUP)
            if cursor is not None:
                self.readers.pop(cursor.id, None)
            self._broker.drop_light(light, [(TABLE, f"{TO}{name}/{life}", None)])
        self._on_forgotten(name)

    # What is known of their routes.

    def _id_of(self, peer: Peer, route_id: str, light: int) -> str:
        """What a peer's route is called here: a plain one stays plain (routing/plain.py)."""
        kind, _, number = route_id.rpartition("/")
        if light and number == str(light):
            return f"{kind}/{peer.number << LIGHT_BITS | light}"
        return f"@{peer.name}/{route_id}"

    def learn(self, name: str, route_id: str, value: bytes | None) -> None:
        """A route of a peer was added, changed or removed."""
        peer = self.peers.get(name)
        if peer is None:
            return
        router = self._broker.router
        self._remove_of(peer, route_id)
        if value is None:
            if self._moved.get(route_id, (0, ""))[1] == name:
                del self._moved[route_id]
            return
        try:
            route = route_from_bytes(route_id, value)
            if not self._leads(route, name):
                return
            theirs = route.light and peer.number << LIGHT_BITS | route.light
            mine = self._id_of(peer, route_id, route.light)
            router.add(Route(mine, route.kind, route.topic, route.expression, theirs))
        except (GantryError, ValueError, TypeError) as error:
            if not peer.is_foreign:
                log.error(
                    "%s matches its records itself: its route %.80s is not understood here: %s", name, route_id, error
                )
            self._lapse(peer)
            peer.is_foreign = True

    def _remove_of(self, peer: Peer, route_id: str) -> None:
        number = route_id.rpartition("/")[2]
        light = int(number) if number.isdecimal() and number.isascii() else OTHERS
        self._broker.router.remove(f"@{peer.name}/{route_id}")
        if light < OTHERS:  # else no plain one: another route may have the id that it would have
            self._broker.router.remove(self._id_of(peer, route_id, light))

    def _leads(self, route: Route, name: str) -> bool:
        """Whether a route counts that a group has: not where its queue has gone on to another one. From there on only that one's does, at once."""
        moves, owner = self._moved.get(route.route_id, (0, name))
        if owner != name and moves >= route.moves:
            return False
        if route.moves:
            self._moved[route.route_id] = route.moves, name
            for peer in self.peers.values():
                if peer.name != name:
                    self._remove_of(peer, route.route_id)
            if name != self._slots.name and self._broker.router.number_of(route.route_id):
                self._broker.router.remove(route.route_id)
        return True

    def moved_here(self, route: Route) -> None:
        """A route of this group has come with its queue."""
        self._leads(route, self._slots.name)

    def moved_back(self, name: str, route_id: str, value: bytes) -> None:
        """A route of a peer was on its way here with its queue, and stays there."""
        self._moved.pop(route_id, None)
        self.learn(name, route_id, value)

    def moves_of(self, route_id: str) -> int:
        """How often this group's route has moved."""
        moves, owner = self._moved.get(route_id, (0, ""))
        return moves if owner == self._slots.name else 0

    def learn_all(self, name: str, rows: Mapping[str, bytes]) -> None:
        """All routes of a peer; what was known before is gone. A lease goes on: what it is for is among them."""
        peer = self.peers.get(name)
        if peer is None:
            return
        if peer.is_foreign:
            peer.lease_ms, peer.is_foreign = 0, False
        self._drop_routes(peer)
        for route_id in [key for key, (_, owner) in self._moved.items() if owner == name and key not in rows]:
            del self._moved[route_id]
        for route_id, value in rows.items():
            self.learn(name, route_id, value)

    def _drop_routes(self, peer: Peer) -> None:
        router, begin = self._broker.router, peer.number << LIGHT_BITS
        for route_id in router.ids_from(begin, begin + OTHERS, f"@{peer.name}/"):
            router.remove(route_id)

    def begun(self, name: str, life: str) -> None:
        """What a peer tells from now on it tells in this start: what was known of an earlier one is no more."""
        peer = self.peers.get(name)
        if peer is not None and life != peer.life:
            self._lapse(peer)
            peer.life = life

    def leased(self, name: str, life: str, until_ms: int) -> None:
        """What is known of the peer's routes, of its start `life`, is all there is until then, on the boot clock."""
        peer = self.peers.get(name)
        if peer is None or until_ms <= self._broker.clock.boot_ms() or until_ms - LEASE_MS < peer.lapsed_ms:
            return
        self.begun(name, life)
        was_known = peer.is_known
        peer.lease_ms = max(peer.lease_ms, until_ms)
        if peer.is_known and not was_known:
            self._broker.router.anew(-1)
        self._lapses_ms = min([each.lease_ms for each in self.peers.values() if each.lease_ms])

    def _lapse(self, peer: Peer) -> None:
        was_known, peer.lease_ms = peer.is_known, 0
        if was_known:
            self._broker.router.anew(1)

    def lapse(self, name: str) -> None:
        """What is known of a peer is not to be relied on, until it answers what it is asked from now on."""
        peer = self.peers.get(name)
        if peer is not None:
            peer.lapsed_ms = self._broker.clock.boot_ms()
            self._lapse(peer)

    def check_leases(self) -> None:
        """Before records are appended: what nobody has prolonged is over."""
        if self._lapses_ms and self._lapses_ms <= (now_ms := self._broker.clock.boot_ms()):
            for peer in self.peers.values():
                if peer.lease_ms and peer.lease_ms <= now_ms:
                    self._lapse(peer)
            self._lapses_ms = min([peer.lease_ms for peer in self.peers.values() if peer.lease_ms], default=0)

    # Records.

    def sent(self, lights: set[int]) -> tuple[set[int], bytes, bool]:
        """As `Elsewhere.sent`."""
        wanted: dict[str, tuple[str, list[int]] | None] = {}
        mine = {light for light in lights if light < OTHERS}
        theirs: dict[int, list[int]] = {}
        for light in lights:
            if light >= OTHERS:
                theirs.setdefault(light >> LIGHT_BITS, []).append(light & _LIGHT_MASK)
        is_sure = True
        for peer in self.peers.values():
            if not peer.is_known:
                is_sure = False
                if peer.keeps_out and peer.number not in theirs:
                    continue
                wanted[peer.name] = None
            elif peer.number in theirs:
                wanted[peer.name] = peer.life, theirs[peer.number]
            else:
                continue
            mine.add(peer.light)
        return mine, mark_of(wanted) if wanted else b"", is_sure

    def read_by(self, cursor: Cursor, port: int) -> None:
        """A peer reads a forward queue over this port from now on, and settles over it."""
        self.readers[cursor.id] = port

    def is_full(self, lights: tuple[int, ...]) -> bool:
        """Whether a record with a mark is refused, because a group that it is for has left too many others unread."""
        for peer in self.peers.values():
            if peer.full and peer.light in lights:
                peer.refused += 1
                return True
        return False

    def _check(self, now_ms: int) -> None:
        for peer in self.peers.values():
            is_full = self.behind(peer) >= self._most
            if is_full and not peer.full:
                log.error(
                    "%d records wait for broker group %s: those that it wants are refused, and no others are kept for it (gantry cluster forget %s, "
                    "if it does not come back)", self._most, peer.name, peer.name,
                )  # fmt: skip
            if is_full != peer.full:
                peer.full = is_full
                self._broker.router.anew()
        if not self._broker.closed:
            self._broker.wheel.call_at(now_ms + _CHECK_MS, self._check)

    def behind(self, peer: Peer) -> int:
        """Records that wait for it, those of earlier starts included."""
        found = 0
        for light in self._queues[peer.name].values():
            cursor = self._broker.cursors.find(f"~{light}", CURSOR_GROUP)
            if cursor is not None:
                found += max(self._broker.cursors.end(cursor) - cursor.window.floor, 0)
        return found

    def end_for(self, name: str) -> tuple[str, int]:
        """This start, and the offset behind all that is in the forward queue for that group now; 0 where there is none."""
        peer = self.peers.get(name)
        cursor = self._broker.cursors.find(f"~{peer.light}", CURSOR_GROUP) if peer is not None else None
        return self.life, self._broker.cursors.end(cursor) if cursor is not None else 0

    def lights(self) -> set[int]:
        """All forward queues here."""
        return {light for queues in self._queues.values() for light in queues.values()}

    def is_open(self, light: int) -> bool:
        """Whether it is the forward queue of a peer that records enter now."""
        return any(peer.light == light for peer in self.peers.values())

    def queues_of(self, name: str) -> dict[str, int]:
        """Forward queues of a peer by start, the oldest first."""
        return dict(self._queues.get(name, {}))

    def show(self, name: str) -> dict[str, Any]:
        """For people: of a peer, the records that wait for it, and how long its routes are known (milliseconds, 0: they are not)."""
        peer = self.peers[name]
        left_ms = max(peer.lease_ms - self._broker.clock.boot_ms(), 0) if peer.lease_ms else 0
        return {"behind": self.behind(peer), "lease_ms": left_ms, "refused": peer.refused, "full": peer.full}
