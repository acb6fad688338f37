"""Request and reply between clients through the broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from gantrymq.remoting.broker_door import BrokerDoor
    from gantrymq.remoting.codec import Command

HANDLERS: Final[dict[int, Callable[[BrokerDoor, Command], None]]] = {}
