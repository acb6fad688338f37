"""Requests of tools about consumer groups as configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from gantrymq.broker.deletion.deletions import REQUEST_MODES
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.groups import GroupConfig
from gantrymq.remoting import json_bodies as bodies
from gantrymq.remoting.constants import RequestCode, ResponseCode
from gantrymq.remoting.dispatch import Handler
from gantrymq.remoting.headers import parse

if TYPE_CHECKING:
    from gantrymq.administration.reading import Steps
    from gantrymq.remoting.codec import Command
    from gantrymq.remoting.server.reply import Reply
    from gantrymq.remoting.server.tools import Tools

GROUPS_PER_REQUEST_MAX: Final = 10_000
"""Groups of one UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST."""

GROUPS_PER_STEP: Final = 200
"""Groups rendered in one go: some 400 us."""


class _Delete(msgspec.Struct, rename="camel"):
    group_name: str
    clean_offset: bool = False


class _Group(msgspec.Struct):
    group: str


def update_group(command: Command, reply: Reply, services: Tools) -> None:
    """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP; answered when it is as safe as an acknowledged message."""
    _update(command, reply, services, [bodies.decode(command.body, GroupConfig)])


def update_groups(command: Command, reply: Reply, services: Tools) -> None:
    """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: all or, if one name is refused, none."""
    wanted = bodies.decode(command.body, bodies.GroupConfigList).group_config_list
    if len(wanted) > GROUPS_PER_REQUEST_MAX:
        raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, f"a request names at most {GROUPS_PER_REQUEST_MAX} groups")
    _update(command, reply, services, wanted)


def _update(command: Command, reply: Reply, services: Tools, wanted: list[GroupConfig]) -> None:
    try:
        services.groups.update(wanted)
    except GantryError as error:
        if error.code is not ErrorCode.NAME_INVALID:
            raise
        reply.refuse(command, ResponseCode.INVALID_PARAMETER, error.text)
        return
    reply.answer_when_stored(command)


def all_groups(command: Command, reply: Reply, services: Tools) -> None:
    """GET_ALL_SUBSCRIPTIONGROUP_CONFIG."""
    services.jobs.run(command, reply, _all_groups(services))


def _all_groups(services: Tools) -> Steps[bytes]:
    version = bodies.DataVersion(0, services.groups.changed_ms, services.groups.version)
    configs = list(services.groups.configs.items())
    parts: list[bytes] = []
    for first in range(0, len(configs), GROUPS_PER_STEP):
        if first:
            yield None
        parts.append(bodies.encode(dict(configs[first : first + GROUPS_PER_STEP]))[1:-1])
    return b'{"dataVersion":%b,"forbiddenTable":{},"subscriptionGroupTable":{%b}}' % (
        bodies.encode(version),
        b",".join(parts),
    )


def get_group(command: Command, reply: Reply, services: Tools) -> None:
    """GET_SUBSCRIPTIONGROUP_CONFIG."""
    name = parse(command.fields, _Group).group
    config = services.groups.get(name)
    if config is None:
        text = f"No group in this broker. group: {name[:255]}"
        reply.refuse(command, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, text)
        return
    reply.respond(command, body=bodies.encode(config))


def delete_group(command: Command, reply: Reply, services: Tools) -> None:
    """DELETE_SUBSCRIPTIONGROUP; answered as `update_group`."""
    header = parse(command.fields, _Delete)
    services.groups.delete(header.group_name, header.clean_offset)
    reply.answer_when_stored(command)


def request_modes(command: Command, reply: Reply, services: Tools) -> None:
    """GET_ALL_MESSAGE_REQUEST_MODE: by topic and group, what SET_MESSAGE_REQUEST_MODE said."""
    table: dict[str, dict[str, msgspec.Raw]] = {}
    for key, row in services.tables.rows(REQUEST_MODES).items():
        topic, _, group = key.partition("@")
        table.setdefault(topic, {})[group] = msgspec.Raw(row)
    reply.respond(command, body=bodies.encode({"messageRequestModeMap": table}))


HANDLERS: Final[dict[int, Handler[Reply, Tools]]] = {
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: update_group,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: update_groups,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: all_groups,
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: get_group,
    RequestCode.DELETE_SUBSCRIPTIONGROUP: delete_group,
    RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: request_modes,
}
