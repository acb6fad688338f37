"""Shared subscriptions: how clients join and leave the groups of this gateway (`SharedGroup` says who gets what).

A group is a light queue whose filter is `$share/<name>/<filter>` in table `mqtt_filter`, with one cursor. Sessions that are kept have it in their row,
as any filter, which keeps the queue; for a group of clean sessions alone each gateway with members marks the row again and again. So a group ends a
minute after the last session that subscribes to it, and what comes meanwhile waits for the next.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final

from gantrymq.broker.port import END, SHARED_GROUP, BrokerPort, CursorInfo
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.net.procedures.driver import Call, Steps, call, run
from gantrymq_gateways.mqtt.sessions.filter_queues import FilterQueues
from gantrymq_gateways.mqtt.sessions.past import Replays
from gantrymq_gateways.mqtt.sessions.sessions import Session, SessionTools
from gantrymq_gateways.mqtt.sessions.shared_group import ALONE, SharedGroup
from gantrymq_gateways.mqtt.topics.past import is_past

LEASE_PREFIX: Final = "mqtt-share:"

HOLDER_BASE: Final = 1 << 41
"""Holders of groups count from here, above those of sessions."""


class SharedGroups:
    """Groups with members in this gateway, by subscription."""

    def __init__(
        self, port: BrokerPort, queues: FilterQueues, tools: SessionTools, strategy: str, past: Replays
    ) -> None:
        self._port = port
        self._queues = queues
        self._tools = tools
        self._strategy = strategy
        self._holder = HOLDER_BASE
        self._leases: dict[str, int] = {}
        self.groups: dict[str, SharedGroup] = {}
        self.past = past
        """Subscriptions from the past, which join and leave with these."""

    def join(self, session: Session, text: str, granted: int, light: int = 0) -> Generator[Call, Any, int]:
        """Become a member, or change the QoS; the light queue that the group has. `light`: the one that the session's row says."""
        if is_past(text):
            yield from self.past.join(session, text, granted)
            return 0
        group = self.groups.get(text)
        while group is None:
            light = light or (yield from self._queues.queue_of(text))
            try:
                info: CursorInfo = yield call(self._port.open_cursor, f"~{light}", SHARED_GROUP, END)
            except GantryError as error:
                if error.code is not ErrorCode.QUEUE_NOT_FOUND:
                    raise
                self._queues.gone(light)
                light = 0
                continue
            group = self.groups.get(text) or self._open(text, light, info.cursor)
        if session.is_attached():
            group.join(session, granted)
        return group.light

    def _open(self, text: str, light: int, cursor: int) -> SharedGroup:
        self._holder += 1
        group = self.groups[text] = SharedGroup(text, light, cursor, self._holder, self._strategy, self._tools)
        self._port.watch(cursor, group.ready)
        if self._strategy in ALONE:
            self._take_lease(group)
        return group

    def leave(self, session: Session, text: str) -> None:
        """UNSUBSCRIBE."""
        self.past.leave(session, text)
        group = self.groups.get(text)
        if group is not None:
            group.leave(session)
            self._close_idle(group)

    def detach(self, session: Session) -> None:
        """The session's connection is gone."""
        self.past.detach(session)
        for share in session.shared_with:
            share.detach(session)
            group = self.groups.get(share.text)
            if group is not None:
                self._close_idle(group)

    def sweep(self, now_ms: int) -> None:
        """Now and then: close groups that nobody here has anything of, keep those that have members, try for leases."""
        for group in list(self.groups.values()):
            self._close_idle(group)
            if len(group):
                if self._queues.needs_mark(group.light, now_ms):
                    run(self._keep(group), lambda error: None)
                if not group.active:
                    self._take_lease(group)

    def _close_idle(self, group: SharedGroup) -> None:
        if not group.is_idle() or self.groups.get(group.text) is not group:
            return
        del self.groups[group.text]
        self._port.watch(group.cursor, None)
        epoch = self._leases.pop(group.text, 0)
        if epoch:
            self._port.drop_lease(LEASE_PREFIX + group.text, epoch)

    def _keep(self, group: SharedGroup) -> Steps:
        """Say that the queue is in use."""
        if not (yield from self._queues.keep(group.light)) and self.groups.get(group.text) is group:
            for session in group.sessions():
                session.fail(f"the queue of {group.text!r} was removed")

    def _take_lease(self, group: SharedGroup) -> None:
        def lost(name: str) -> None:
            group.active = False

        def taken(token: object, result: Any) -> None:
            if isinstance(result, GantryError):
                return  # another gateway has it; the sweep tries again
            if self.groups.get(group.text) is not group:
                self._port.drop_lease(LEASE_PREFIX + group.text, result)
                return
            self._leases[group.text] = result
            group.active = True
            group.wake()

        self._port.take_lease(LEASE_PREFIX + group.text, False, lost, None, taken)

    def lost(self) -> None:
        """The broker went away."""
        self.past.lost()
        self.groups.clear()
        self._leases.clear()
