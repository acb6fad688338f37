"""GET_BROKER_CONFIG, UPDATE_BROKER_CONFIG: the broker's settings under RocketMQ's names, as Java properties."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.remoting import java_properties
from gantrymq.remoting import json_bodies as bodies
from gantrymq.remoting.constants import RequestCode, ResponseCode
from gantrymq.remoting.dispatch import Handler

if TYPE_CHECKING:
    from gantrymq.remoting.codec import Command
    from gantrymq.remoting.server.reply import Reply
    from gantrymq.remoting.server.tools import Tools


def get_config(command: Command, reply: Reply, services: Tools) -> None:
    """GET_BROKER_CONFIG; nothing secret is among it."""
    host, _, port = services.identity.address.rpartition(":")
    values = services.settings.shown() | {
        "brokerIP1": host, "brokerIP2": host, "listenPort": port, "haListenPort": str(int(port or 0) + 1),
        "namesrvAddr": ";".join(services.identity.nameservers),
    }  # fmt: skip
    version = bodies.DataVersion(0, services.identity.started_ms, services.settings.version)
    fields = {"version": bodies.encode(version).decode()}
    reply.respond(command, ResponseCode.SUCCESS, None, fields, java_properties.write(values))


def update_config(command: Command, reply: Reply, services: Tools) -> None:
    """UPDATE_BROKER_CONFIG: all of it or nothing; answered when it will outlive a restart."""
    try:
        services.settings.update(java_properties.read(command.body))
    except GantryError as error:
        code = ResponseCode.NO_PERMISSION if error.code is ErrorCode.NO_PERMISSION else ResponseCode.INVALID_PARAMETER
        reply.refuse(command, code, error.text)
        return
    reply.answer_when_stored(command)


HANDLERS: Final[dict[int, Handler[Reply, Tools]]] = {
    RequestCode.GET_BROKER_CONFIG: get_config,
    RequestCode.UPDATE_BROKER_CONFIG: update_config,
}
