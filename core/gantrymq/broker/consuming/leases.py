"""Leases: one holder per name, fenced by an epoch that only grows."""

from __future__ import annotations

from collections.abc import Callable

from gantrymq.model.errors import ErrorCode, GantryError

LEASES_MAX = 1_000_000
"""One per connected MQTT client or exclusive queue; more than a process can have connections."""


NO_SLOT = -1
"""Of a lease that is this broker's whatever becomes of slots."""


class _Lease:
    __slots__ = ("epoch", "on_lost", "owner", "slot")

    def __init__(self, epoch: int, owner: object, on_lost: Callable[[str], None], slot: int) -> None:
        self.epoch = epoch
        self.owner = owner
        self.on_lost = on_lost
        self.slot = slot


class Leases:
    """Held names. `owner` is the port that took them: they end with it."""

    def __init__(self) -> None:
        self._held: dict[str, _Lease] = {}
        self._epoch = 0

    def take(self, name: str, force: bool, owner: object, on_lost: Callable[[str], None], slot: int = NO_SLOT) -> int:
        """The new epoch; `slot`: it ends when that goes to another group. Raises LEASE_HELD unless `force`; with it the old holder's `on_lost` is called first."""
        old = self._held.get(name)
        if old is not None:
            if not force:
                raise GantryError(ErrorCode.LEASE_HELD, f"{name} is held by another connection")
            del self._held[name]
            old.on_lost(name)
        elif len(self._held) >= LEASES_MAX:
            raise GantryError(ErrorCode.LIMIT_REACHED, f"{LEASES_MAX} leases are held")
        self._epoch += 1
        self._held[name] = _Lease(self._epoch, owner, on_lost, slot)
        return self._epoch

    def is_free(self, name: str) -> bool:
        """Nobody holds it."""
        return name not in self._held

    def drop(self, name: str, epoch: int) -> None:
        """Give up; a stale epoch is ignored."""
        lease = self._held.get(name)
        if lease is not None and lease.epoch == epoch:
            del self._held[name]

    def drop_owner(self, owner: object) -> None:
        """Everything that a lost port held; nobody is told."""
        for name in [name for name, lease in self._held.items() if lease.owner is owner]:
            del self._held[name]

    def slots(self) -> set[int]:
        """Slots of all that is held."""
        return {lease.slot for lease in self._held.values()}

    def drop_slots(self, slots: set[int]) -> None:
        """Another group decides about these: their holders are told."""
        for name, lease in [(name, lease) for name, lease in self._held.items() if lease.slot in slots]:
            if self._held.get(name) is lease:  # else whoever was told before has given it up
                del self._held[name]
                lease.on_lost(name)
