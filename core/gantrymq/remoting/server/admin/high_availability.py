"""Requests of tools about replicas, answered for a master without slaves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gantrymq.remoting import json_bodies as bodies
from gantrymq.remoting.constants import RequestCode, ResponseCode
from gantrymq.remoting.dispatch import Handler

if TYPE_CHECKING:
    from gantrymq.remoting.codec import Command
    from gantrymq.remoting.server.reply import Reply
    from gantrymq.remoting.server.tools import Tools


def status(command: Command, reply: Reply, services: Tools) -> None:
    """GET_BROKER_HA_STATUS (HARuntimeInfo)."""
    body = {
        "master": True, "masterCommitLogMaxOffset": services.store.written_position, "inSyncSlaveNums": 0,
        "haConnectionInfo": [],
        "haClientRuntimeInfo": {
            "activated": False, "lastReadTimestamp": 0, "lastWriteTimestamp": 0, "masterFlushOffset": 0, "maxOffset": 0,
            "transferredByteInSecond": 0,
        },
    }  # fmt: skip
    reply.respond(command, body=bodies.encode(body))


def epochs(command: Command, reply: Reply, services: Tools) -> None:
    """GET_BROKER_EPOCH_CACHE: there is no controller."""
    reply.refuse(command, ResponseCode.SYSTEM_ERROR, "this request only for controllerMode ")


def reset_flush_offset(command: Command, reply: Reply, services: Tools) -> None:
    """RESET_MASTER_FLUSH_OFFSET concerns slaves; a master has nothing to do."""
    reply.respond(command)


HANDLERS: Final[dict[int, Handler[Reply, Tools]]] = {
    RequestCode.GET_BROKER_HA_STATUS: status,
    RequestCode.GET_BROKER_EPOCH_CACHE: epochs,
    RequestCode.RESET_MASTER_FLUSH_OFFSET: reset_flush_offset,
}
