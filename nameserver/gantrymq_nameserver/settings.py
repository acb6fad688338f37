"""The nameserver's settings under RocketMQ's names, and their file `namesrv.properties` (RocketMQ: configStorePath).

What is changed while the nameserver runs is written there and wins over the configuration at the next start.
"""

from __future__ import annotations

import logging
from typing import Final

from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.remoting import java_properties

log = logging.getLogger(__name__)

NEVER: Final = frozenset({"configBlackList", "configStorePath", "kvConfigPath"})
"""RocketMQ's own black list: paths, through which files could be planted (CVE-2023-37582)."""

CHANGEABLE: Final = ("orderMessageEnable", "returnOrderTopicConfigToBroker")

FIXED: Final[dict[str, str]] = {
    "scanNotActiveBrokerInterval": "5000", "enableAllTopicList": "true", "enableTopicList": "true",
    "clusterTest": "false", "supportActingMaster": "true", "notifyMinBrokerIdChanged": "false",
    "enableControllerInNamesrv": "false", "needWaitForService": "false", "deleteTopicWithBrokerRegistration": "true",
    "productEnvName": "center", "serverChannelMaxIdleTimeSeconds": "120",
}  # fmt: skip
"""What RocketMQ can be told otherwise, and this nameserver always does."""


class NameserverSettings:
    """Present values."""

    def __init__(self, order_messages: bool) -> None:
        self.order_messages = order_messages
        """Answer route queries with the topic's order configuration."""
        self.order_to_brokers = True
        """...and registrations with all of it."""
        self.address = ""
        """`host:port`, once it is bound."""
        self.changed: dict[str, str] = {}
        """What was changed at run time, the file's content."""

    def shown(self) -> dict[str, str]:
        """Every setting as text; no paths, no secrets."""
        host, _, port = self.address.rpartition(":")
        values = {
            "orderMessageEnable": self.order_messages, "returnOrderTopicConfigToBroker": self.order_to_brokers,
        }  # fmt: skip
        return FIXED | {"listenPort": port, "bindAddress": host} | {k: str(v).lower() for k, v in values.items()}

    def update(self, wanted: dict[str, str]) -> None:
        """Change settings, all or none. Raises ILLEGAL_ARGUMENT, NO_PERMISSION."""
        for name, text in wanted.items():
            if name in NEVER:
                raise GantryError(ErrorCode.NO_PERMISSION, f"Can not update config in black list: {name}")
            if name not in CHANGEABLE:
                raise GantryError(
                    ErrorCode.ILLEGAL_ARGUMENT,
                    f"setting {name[:80]!r} cannot be changed while the nameserver runs. Changeable: {', '.join(CHANGEABLE)}",
                )
            if text.strip().lower() not in ("true", "false"):
                raise GantryError(
                    ErrorCode.ILLEGAL_ARGUMENT, f"setting {name} = {text[:80]!r}: allowed are true and false"
                )
        for name, text in wanted.items():
            value = text.strip().lower()
            self.changed[name] = value
            if name == "orderMessageEnable":
                self.order_messages = value == "true"
            else:
                self.order_to_brokers = value == "true"

    def to_bytes(self) -> bytes:
        """The file's content."""
        return java_properties.write(self.changed)

    def load(self, data: bytes, path: str) -> None:
        """Take over a file's content; what cannot be changed here, as a real nameserver's file has it, does not count."""
        known = {name: text for name, text in java_properties.read(data).items() if name in CHANGEABLE}
        try:
            self.update(known)
        except GantryError as error:
            log.warning("%s: %s; it does not count", path, error.text)
