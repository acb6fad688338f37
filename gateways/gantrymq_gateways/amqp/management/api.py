"""What the API answers: a table of paths, and the requests that change something."""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final
from urllib.parse import quote

from gantrymq.auth.expressions import ExpressionError, matches
from gantrymq.broker.port import Outcome
from gantrymq.model.errors import GantryError
from gantrymq.net.procedures.driver import Steps
from gantrymq_gateways.amqp.gateway import Gateway
from gantrymq_gateways.amqp.management import policies, users, views, virtual_hosts
from gantrymq_gateways.amqp.management.definitions_file import export, import_
from gantrymq_gateways.amqp.management.http import Request
from gantrymq_gateways.amqp.management.inside import Fetched, Inside
from gantrymq_gateways.amqp.management.values import plain_properties, properties_of, table_of, truth
from gantrymq_gateways.amqp.origin import ROOT, full_name, prefix_of
from gantrymq_gateways.amqp.rows import Binding
from gantrymq_gateways.amqp.vhosts.registry import said_in
from gantrymq_gateways.amqp.wire.constants import NOT_FOUND, AmqpError
from gantrymq_gateways.amqp.wire.values import encode_table

GET_MAX: Final = 1000
"""Messages of one request."""

Reply = tuple[int, bytes, str]
"""Status, body, place of what was made (or empty)."""
Handler = Callable[["Api", Request, list[str]], Steps | Reply]

DEFAULT_NAME: Final = "amq.default"
"""The default exchange in paths."""


class NotFoundError(Exception):
    """There is no such thing."""


class Api:
    """See the module. One for all connections."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway

    def answer(self, request: Request) -> Steps:
        """Returns a `Reply`. Raises what `failure` understands."""
        parts = request.parts
        if parts[:1] != ["api"]:
            raise NotFoundError
        if request.method in ("GET", "HEAD") and parts[1:2] == ["health"]:
            return 200, b'{"status":"ok"}', ""
        method = "GET" if request.method == "HEAD" else request.method
        known = False
        for wanted, pattern, handler in TABLE:
            values = _match(pattern, parts[1:])
            if values is None:
                continue
            known = True
            if wanted == method:
                placed = "{vhost}" in pattern
                if placed and self.gateway.definitions.vhosts.get(values[0]) is None:
                    if method == "PUT":
                        raise AmqpError(NOT_FOUND, "vhost_not_found")
                    raise NotFoundError
                try:
                    found = handler(self, request, values)
                    return found if isinstance(found, tuple) else (yield from found)
                except AmqpError as error:
                    raise said_in(error, values[0] if placed else ROOT) from None
        if known:
            raise PermissionError(f"{request.method} is not allowed here")
        raise NotFoundError

    def listed(self, request: Request, items: Iterable[dict[str, Any]]) -> Steps:
        """A list, or a page of it."""
        query = request.query
        columns = query.get("columns", "")
        found: Any = items
        if "name" in query:
            wanted = name_filter(query["name"], query.get("use_regex") == "true")
            found = [item for item in items if wanted(str(item.get("name", "")))]
        if "sort" in query:
            key = query["sort"]
            backwards = query.get("sort_reverse") == "true"
            found = sorted(found, key=lambda item: str(item.get(key, "")), reverse=backwards)
        if "page" not in query:
            return 200, (yield from views.encoded(self.gateway, found, columns)), ""
        every = list(found)
        size = min(max(int(query.get("page_size", 100)), 1), 500)
        page = max(int(query["page"]), 1)
        pages = max(-(-len(every) // size), 1)
        if page > pages:
            raise ValueError(f"page {page} of {pages}")
        part = every[(page - 1) * size : page * size]
        text = yield from views.encoded(self.gateway, part, columns)
        head = {
            "filtered_count": len(every), "item_count": len(part), "page": page, "page_count": pages,
            "page_size": size, "total_count": len(every),
        }  # fmt: skip
        return 200, json.dumps(head).encode()[:-1] + b', "items":' + text + b"}", ""


_LETTERS: Final = re.compile(r"\\.|[A-Z]+")
"""Of an expression: large letters, and what stands behind a backslash (`\\D` is not `\\d`)."""


def name_filter(name: str, is_expression: bool) -> Callable[[str], bool]:
    """What names a list is asked for: those with this text in them, or that this expression matches; large letters are as small ones. Raises ValueError."""
    if not is_expression:
        return lambda found: name.lower() in found.lower()
    small = _LETTERS.sub(lambda part: part[0] if part[0][0] == "\\" else part[0].lower(), name)
    try:
        matches(small, "")
    except ExpressionError as error:
        raise ValueError(f"name {name!r}: {error}") from None
    return lambda found: matches(small, found.lower())


def failure(error: Exception) -> tuple[int, str, str]:
    """Status, RabbitMQ's word and the reason; 500 for what is a fault of ours."""
    if isinstance(error, AmqpError):
        if error.code == NOT_FOUND:
            return 404, "not_found", error.text
        return (500, "internal_error", error.text) if error.code >= 541 else (400, "bad_request", error.text)
    if isinstance(error, NotFoundError):
        return 404, "Object Not Found", "Not Found"
    if isinstance(error, PermissionError):
        return 405, "method_not_allowed", str(error)
    if isinstance(error, GantryError):
        return 503, "unavailable", error.text
    if isinstance(error, ValueError):
        return 400, "bad_request", str(error)
    return 500, "internal_error", type(error).__name__


def _match(pattern: tuple[str, ...], parts: list[str]) -> list[str] | None:
    """Values of the places in braces; None if the path is another one."""
    if len(parts) != len(pattern):
        return None
    values = []
    for place, part in zip(pattern, parts, strict=True):
        if place.startswith("{"):
            values.append(part)
        elif place != part:
            return None
    return values


def _body(request: Request) -> dict[str, Any]:
    if not request.body:
        return {}
    body = json.loads(request.body)
    if not isinstance(body, dict):
        raise ValueError("the body is no object of JSON")
    return body


def _json(value: Any) -> Reply:
    return 200, json.dumps(value).encode(), ""


def _exchange_name(name: str) -> str:
    return "" if name == DEFAULT_NAME else name


# Reading.


def _overview(api: Api, request: Request, _values: list[str]) -> Steps:
    queues = yield from views.queue_views(api.gateway, views.visible_queues(api.gateway))
    return _json(views.overview(api.gateway, queues, request.user))


def _fixed(make: Callable[[Api, Request], Any]) -> Handler:
    def handler(api: Api, request: Request, _values: list[str]) -> Reply:
        return _json(make(api, request))

    return handler


def _nodes(api: Api, _request: Request) -> Any:
    name = views.node_name(api.gateway)
    return [
        {
            "name": name,
            "type": "disc",
            "running": True,
            "mem_alarm": False,
            "disk_free_alarm": False,
            "being_drained": False,
            "rates_mode": "none",
            "applications": [],
        }
    ]


def _full(values: list[str], name: str) -> str:
    """Of a name in the vhost of the path."""
    return full_name(prefix_of(values[0]), name)


def _in(values: list[str]) -> str | None:
    """The vhost of the path; None: all are meant."""
    return values[0] if values else None


def _vhosts(api: Api, request: Request, _values: list[str]) -> Steps:
    return (yield from api.listed(request, virtual_hosts.views(api.gateway)))


def _vhost(api: Api, _request: Request, values: list[str]) -> Reply:
    row = api.gateway.definitions.vhosts.get(values[0])
    if row is None:
        raise NotFoundError
    return _json(virtual_hosts.view(values[0], row))


def _put_vhost(api: Api, request: Request, values: list[str]) -> Steps:
    new = yield from virtual_hosts.put(api.gateway, values[0], _body(request))
    return (201 if new else 204), b"", ""


def _delete_vhost(api: Api, _request: Request, values: list[str]) -> Steps:
    if not (yield from virtual_hosts.delete(api.gateway, values[0])):
        raise NotFoundError
    return 204, b"", ""


def _limits(api: Api, request: Request, values: list[str]) -> Steps:
    return (yield from api.listed(request, virtual_hosts.limit_views(api.gateway, _in(values))))


def _user_limits(api: Api, request: Request, values: list[str]) -> Steps:
    return (yield from api.listed(request, virtual_hosts.user_limit_views(api.gateway, _in(values))))


def _set_limit(
    change: Callable[[Gateway, str, str, Any], Steps], api: Api, request: Request, values: list[str]
) -> Steps:
    value = None
    if request.method == "PUT":
        value = _body(request).get("value")
        if value is None:
            raise ValueError("value: a whole number is needed")
    yield from change(api.gateway, values[0], values[1], value)
    return 204, b"", ""


def _whoami(api: Api, request: Request) -> dict[str, Any]:
    found = users.view(api.gateway, request.user)
    return found if found is not None else {"name": request.user, "tags": ["administrator"], "limits": {}}


def _users(api: Api, request: Request, _values: list[str]) -> Steps:
    return (yield from api.listed(request, users.views(api.gateway)))


def _user(api: Api, _request: Request, values: list[str]) -> Reply:
    found = users.view(api.gateway, values[0])
    if found is None:
        raise NotFoundError
    return _json(found)


def _put_user(api: Api, request: Request, values: list[str]) -> Steps:
    new = yield from users.put(api.gateway, values[0], _body(request))
    return (201 if new else 204), b"", ""


def _delete_user(api: Api, _request: Request, values: list[str]) -> Steps:
    if not (yield from users.delete(api.gateway, values[0])):
        raise NotFoundError
    return 204, b"", ""


def _delete_users(api: Api, request: Request, _values: list[str]) -> Steps:
    names = _body(request).get("users")
    if not isinstance(names, list):
        raise ValueError("users: a list of names is needed")
    for name in names:
        yield from users.delete(api.gateway, str(name))
    return 204, b"", ""


Listing = Callable[[Gateway, str | None, str | None], list[dict[str, Any]]]


def _rights(found: Listing, by: str, api: Api, request: Request, values: list[str]) -> Steps:
    """Permissions of a sort: all, or those `by` vhost or user, or of one user in one vhost."""
    vhost = values[0] if by in ("vhost", "both") else None
    user = values[-1] if by in ("user", "both") else None
    return (yield from api.listed(request, found(api.gateway, vhost, user)))


def _permission(api: Api, _request: Request, values: list[str]) -> Reply:
    found = users.permissions(api.gateway, *values)
    if not found:
        raise NotFoundError
    return _json(found[0])


def _put_right(put: Callable[[Gateway, str, str, Any], Steps], api: Api, request: Request, values: list[str]) -> Steps:
    new = yield from put(api.gateway, values[0], values[1], _body(request))
    return (201 if new else 204), b"", ""


def _delete_right(delete: Callable[..., Steps], api: Api, _request: Request, values: list[str]) -> Steps:
    if not (yield from delete(api.gateway, *values)):
        raise NotFoundError
    return 204, b"", ""


def _user_rows() -> list[tuple[str, tuple[str, ...], Handler]]:
    one, topics = "permissions/{vhost}/{user}", "topic-permissions/{vhost}/{user}"
    rows = [
        _row("GET", "whoami", _fixed(_whoami)),
        _row("GET", "users", _users),
        _row("POST", "users/bulk-delete", _delete_users),
        _row("GET", "users/{user}", _user),
        _row("PUT", "users/{user}", _put_user),
        _row("DELETE", "users/{user}", _delete_user),
        _row("GET", one, _permission),
        _row("PUT", one, partial(_put_right, users.put_permission)),
        _row("DELETE", one, partial(_delete_right, users.delete_permission)),
        _row("GET", topics, partial(_rights, users.topic_permissions, "both")),
        _row("PUT", topics, partial(_put_right, users.put_topic_permission)),
        _row("DELETE", topics, partial(_delete_right, users.delete_topic_permission)),
        _row("DELETE", topics + "/{exchange}", partial(_delete_right, users.delete_topic_permission)),
    ]
    for word, found in (("permissions", users.permissions), ("topic-permissions", users.topic_permissions)):
        rows += [
            _row("GET", word, partial(_rights, found, "")),
            _row("GET", "vhosts/{vhost}/" + word, partial(_rights, found, "vhost")),
            _row("GET", "users/{user}/" + word, partial(_rights, found, "user")),
        ]
    return rows


def _queues(api: Api, request: Request, values: list[str]) -> Steps:
    items = yield from views.queue_views(api.gateway, views.visible_queues(api.gateway, _in(values)))
    return (yield from api.listed(request, items))


def _queue(api: Api, _request: Request, values: list[str]) -> Steps:
    definition = api.gateway.definitions.queues.get(_full(values, values[1]))
    if definition is None:
        raise NotFoundError
    (item,) = yield from views.queue_views(api.gateway, [definition])
    item["consumer_details"] = [
        consumer
        for consumer in views.consumer_views(api.gateway)
        if consumer["queue"] == {"name": values[1], "vhost": values[0]}
    ]
    return _json(item)


def _exchanges(api: Api, request: Request, values: list[str]) -> Steps:
    found = views.exchanges(api.gateway, _in(values))
    return (yield from api.listed(request, [views.exchange_view(api.gateway, each) for each in found]))


def _exchange(api: Api, _request: Request, values: list[str]) -> Steps:
    own = _exchange_name(values[1])
    name = _full(values, own)
    for exchange in views.exchanges(api.gateway, values[0]):
        if exchange.name == name:
            return _json(views.exchange_view(api.gateway, exchange))
    found = (yield from api.gateway.definitions.find_exchange(name)) if own else None
    if found is None:
        raise NotFoundError
    return _json(views.exchange_view(api.gateway, found))


def _bindings(choose: Callable[[Binding, list[str]], bool]) -> Handler:
    def handler(api: Api, request: Request, values: list[str]) -> Steps:
        found = [binding for binding in views.bindings(api.gateway, _in(values)) if choose(binding, values)]
        return (yield from api.listed(request, map(views.binding_view, found)))

    return handler


def _between(binding: Binding, values: list[str], to_queue: bool) -> bool:
    source, destination = _full(values, _exchange_name(values[1])), _full(values, values[2])
    return binding.to_queue is to_queue and binding.source == source and binding.destination == destination


def _connections(api: Api, request: Request, values: list[str]) -> Steps:
    found = [door for door in views.connections(api.gateway) if not values or door.vhost == values[0]]
    return (yield from api.listed(request, map(views.connection_view, found)))


def _connections_of(api: Api, request: Request, values: list[str]) -> Steps:
    found = [door for door in views.connections(api.gateway) if door.wire.user == values[0]]
    return (yield from api.listed(request, map(views.connection_view, found)))


def _connection(api: Api, request: Request, values: list[str]) -> Reply:
    for door in views.connections(api.gateway):
        if views.connection_name(door) == values[0]:
            if request.method == "DELETE":
                door.close_for("Closed via management API")
                return 204, b"", ""
            return _json(views.connection_view(door))
    raise NotFoundError


def _channels(api: Api, request: Request, _values: list[str]) -> Steps:
    found = [
        views.channel_view(door, channel)
        for door in views.connections(api.gateway)
        for channel in list(door.channels.values())
    ]
    return (yield from api.listed(request, found))


def _consumers(api: Api, request: Request, values: list[str]) -> Steps:
    found = [each for each in views.consumer_views(api.gateway) if not values or each["queue"]["vhost"] == values[0]]
    return (yield from api.listed(request, found))


# Changing.


def _declare_queue(api: Api, request: Request, values: list[str]) -> Steps:
    name, body = values[1], _body(request)
    known = _full(values, name) in api.gateway.definitions.queues
    inside = Inside(api.gateway, request.user, values[0])
    durable, auto_delete = truth(body.get("durable"), True), truth(body.get("auto_delete"))
    arguments = table_of(body.get("arguments"))
    yield from inside.call("queue.declare", 0, name, False, durable, False, auto_delete, False, arguments)
    return (204 if known else 201), b"", ""


def _declare_exchange(api: Api, request: Request, values: list[str]) -> Steps:
    name, body = values[1], _body(request)
    known = api.gateway.definitions.known_exchange(_full(values, name)) is not None
    inside = Inside(api.gateway, request.user, values[0])
    flags = truth(body.get("durable"), True), truth(body.get("auto_delete")), truth(body.get("internal"))
    kind = str(body.get("type", "direct"))
    yield from inside.call("exchange.declare", 0, name, kind, False, *flags, False, table_of(body.get("arguments")))
    return (204 if known else 201), b"", ""


def _delete_queue(api: Api, request: Request, values: list[str]) -> Steps:
    if _full(values, values[1]) not in api.gateway.definitions.queues:
        raise NotFoundError
    unused, empty = truth(request.query.get("if-unused")), truth(request.query.get("if-empty"))
    yield from Inside(api.gateway, request.user, values[0]).call("queue.delete", 0, values[1], unused, empty, False)
    return 204, b"", ""


def _delete_exchange(api: Api, request: Request, values: list[str]) -> Steps:
    if api.gateway.definitions.known_exchange(_full(values, values[1])) is None:
        raise NotFoundError
    unused = truth(request.query.get("if-unused"))
    yield from Inside(api.gateway, request.user, values[0]).call("exchange.delete", 0, values[1], unused, False)
    return 204, b"", ""


def _purge(api: Api, request: Request, values: list[str]) -> Steps:
    yield from Inside(api.gateway, request.user, values[0]).call("queue.purge", 0, values[1], False)
    return 204, b"", ""


def _bind(to_queue: bool, api: Api, request: Request, values: list[str]) -> Steps:
    _, source, destination = values
    body = _body(request)
    key, table = str(body.get("routing_key", "")), table_of(body.get("arguments"))
    method = "queue.bind" if to_queue else "exchange.bind"
    inside = Inside(api.gateway, request.user, values[0])
    yield from inside.call(method, 0, destination, _exchange_name(source), key, False, table)
    binding = Binding(source, to_queue, destination, key, encode_table(table))
    return 201, b"", views.binding_view(binding)["properties_key"]


def _unbind(to_queue: bool, api: Api, request: Request, values: list[str]) -> Steps:
    found = _one_binding(api, values, to_queue)
    steps = api.gateway.definitions
    yield steps.lock.take("definitions")
    try:
        yield from steps.unbind(found)
    finally:
        steps.lock.free("definitions")
    return 204, b"", ""


def _one_binding(api: Api, values: list[str], to_queue: bool) -> Binding:
    *ends, wanted = values
    names = (wanted, quote(wanted, safe=""))  # some tools quote it once, though it is quoted already
    for binding in views.bindings(api.gateway):
        if _between(binding, ends, to_queue) and views.binding_view(binding)["properties_key"] in names:
            return binding
    raise NotFoundError


def _show_binding(to_queue: bool, api: Api, _request: Request, values: list[str]) -> Reply:
    return _json(views.binding_view(_one_binding(api, values, to_queue)))


def _publish(api: Api, request: Request, values: list[str]) -> Steps:
    body = _body(request)
    payload = str(body.get("payload", ""))
    encoding = body.get("payload_encoding", "string")
    if encoding not in ("string", "base64"):
        raise ValueError(f"payload_encoding {str(encoding)[:40]!r} is neither string nor base64")
    data = b64decode(payload, validate=True) if encoding == "base64" else payload.encode()
    inside = Inside(api.gateway, request.user, values[0])
    properties = properties_of(body.get("properties"))
    routed = yield from inside.publish(_exchange_name(values[1]), str(body.get("routing_key", "")), properties, data)
    return _json({"routed": routed})


_ACK_MODES: Final = {
    "ack_requeue_true": Outcome.REQUEUE, "reject_requeue_true": Outcome.REQUEUE, "ack_requeue_false": Outcome.ACK,
    "reject_requeue_false": Outcome.DROP,
}  # fmt: skip


def _get(api: Api, request: Request, values: list[str]) -> Steps:
    body = _body(request)
    mode = body.get("ackmode", "ack_requeue_true" if truth(body.get("requeue"), True) else "ack_requeue_false")
    if mode not in _ACK_MODES:
        raise ValueError(f"ackmode {str(mode)[:40]!r} is none of {', '.join(_ACK_MODES)}")
    count = min(int(body.get("count", 1)), GET_MAX)
    longest = int(body["truncate"]) if "truncate" in body else None
    inside = Inside(api.gateway, request.user, values[0])
    try:
        found = yield from inside.get(values[1], count)
        text = body.get("encoding", "auto") == "auto"
        reply = _json([_message(each, text, longest) for each in found])
        inside.answer(_ACK_MODES[mode])
    finally:
        inside.leave()
    return reply


def _message(fetched: Fetched, text: bool, longest: int | None) -> dict[str, Any]:
    body = fetched.body if longest is None else fetched.body[: max(longest, 0)]
    payload, encoding = b64encode(body).decode(), "base64"
    if text:
        try:
            payload, encoding = body.decode(), "string"
        except UnicodeDecodeError:
            pass
    return {
        "payload_bytes": len(fetched.body), "redelivered": fetched.redelivered, "exchange": fetched.exchange,
        "routing_key": fetched.key, "message_count": fetched.ready, "payload": payload, "payload_encoding": encoding,
        "properties": plain_properties(fetched.properties),
    }  # fmt: skip


def _export(api: Api, _request: Request, values: list[str]) -> Reply:
    return _json(export(api.gateway, _in(values)))


def _import(api: Api, request: Request, values: list[str]) -> Steps:
    yield from import_(api.gateway, request.user, _body(request), _in(values))
    return 204, b"", ""


def _alive(api: Api, _request: Request, _values: list[str]) -> Reply:
    if not api.gateway.ready:
        raise ValueError("the broker is not reachable")
    return _json({"status": "ok"})


def _row(method: str, path: str, handler: Handler) -> tuple[str, tuple[str, ...], Handler]:
    return method, tuple(path.split("/")), handler


def _policies(sort: str, api: Api, request: Request, values: list[str]) -> Steps:
    found = api.gateway.definitions.policies.all(sort, _in(values))
    return (yield from api.listed(request, [policies.view(*each) for each in found]))


def _policy(sort: str, api: Api, _request: Request, values: list[str]) -> Reply:
    found = api.gateway.definitions.policies.get(sort, _full(values, values[1]))
    if found is None:
        raise NotFoundError
    return _json(policies.view(_full(values, values[1]), found))


def _put_policy(sort: str, api: Api, request: Request, values: list[str]) -> Steps:
    new = yield from policies.put(api.gateway, sort, _full(values, values[1]), _body(request))
    return (201 if new else 204), b"", ""


def _delete_policy(sort: str, api: Api, _request: Request, values: list[str]) -> Steps:
    if not (yield from policies.delete(api.gateway, sort, _full(values, values[1]))):
        raise NotFoundError
    return 204, b"", ""


def _policy_rows(word: str) -> list[tuple[str, tuple[str, ...], Handler]]:
    sort = policies.SORTS[word]
    one = word + "/{vhost}/{name}"
    return [
        _row("GET", word, partial(_policies, sort)),
        _row("GET", word + "/{vhost}", partial(_policies, sort)),
        _row("GET", one, partial(_policy, sort)),
        _row("PUT", one, partial(_put_policy, sort)),
        _row("DELETE", one, partial(_delete_policy, sort)),
    ]


_QUEUE = "queues/{vhost}/{name}"
_EXCHANGE = "exchanges/{vhost}/{name}"
_TO_QUEUE = "bindings/{vhost}/e/{source}/q/{queue}"
_TO_EXCHANGE = "bindings/{vhost}/e/{source}/e/{exchange}"

TABLE: Final = (
    _row("GET", "overview", _overview),
    *_user_rows(),
    _row("GET", "cluster-name", _fixed(lambda api, request: {"name": views.node_name(api.gateway)})),
    _row("GET", "extensions", _fixed(lambda api, request: [])),
    _row("GET", "nodes", _fixed(_nodes)),
    _row("GET", "nodes/{name}", _fixed(lambda api, request: _nodes(api, request)[0])),
    _row("GET", "vhosts", _vhosts),
    _row("GET", "vhosts/{name}", _vhost),
    _row("PUT", "vhosts/{name}", _put_vhost),
    _row("DELETE", "vhosts/{name}", _delete_vhost),
    _row("GET", "vhost-limits", _limits),
    _row("GET", "vhost-limits/{vhost}", _limits),
    _row("PUT", "vhost-limits/{vhost}/{name}", partial(_set_limit, virtual_hosts.set_limit)),
    _row("DELETE", "vhost-limits/{vhost}/{name}", partial(_set_limit, virtual_hosts.set_limit)),
    _row("GET", "user-limits", _user_limits),
    _row("GET", "user-limits/{user}", _user_limits),
    _row("PUT", "user-limits/{user}/{name}", partial(_set_limit, virtual_hosts.set_user_limit)),
    _row("DELETE", "user-limits/{user}/{name}", partial(_set_limit, virtual_hosts.set_user_limit)),
    _row("GET", "parameters", _fixed(lambda api, request: policies.parameters(api.gateway))),
    _row("GET", "global-parameters", _fixed(lambda api, request: [])),
    *_policy_rows("policies"),
    *_policy_rows("operator-policies"),
    _row("GET", "feature-flags", _fixed(lambda api, request: [])),
    _row("GET", "deprecated-features", _fixed(lambda api, request: [])),
    _row("GET", "deprecated-features/used", _fixed(lambda api, request: [])),
    _row("GET", "aliveness-test/{vhost}", _alive),
    _row("GET", "queues", _queues),
    _row("GET", "queues/{vhost}", _queues),
    _row("GET", _QUEUE, _queue),
    _row("PUT", _QUEUE, _declare_queue),
    _row("DELETE", _QUEUE, _delete_queue),
    _row("DELETE", _QUEUE + "/contents", _purge),
    _row("POST", _QUEUE + "/get", _get),
    _row("GET", _QUEUE + "/bindings", _bindings(lambda b, v: b.to_queue and b.destination == _full(v, v[1]))),
    _row("GET", "exchanges", _exchanges),
    _row("GET", "exchanges/{vhost}", _exchanges),
    _row("GET", _EXCHANGE, _exchange),
    _row("PUT", _EXCHANGE, _declare_exchange),
    _row("DELETE", _EXCHANGE, _delete_exchange),
    _row("POST", _EXCHANGE + "/publish", _publish),
    _row("GET", _EXCHANGE + "/bindings/source", _bindings(lambda b, v: b.source == _full(v, _exchange_name(v[1])))),
    _row(
        "GET",
        _EXCHANGE + "/bindings/destination",
        _bindings(lambda b, v: not b.to_queue and b.destination == _full(v, v[1])),
    ),
    _row("GET", "bindings", _bindings(lambda b, v: True)),
    _row("GET", "bindings/{vhost}", _bindings(lambda b, v: True)),
    _row("GET", _TO_QUEUE, _bindings(lambda b, v: _between(b, v, True))),
    _row("POST", _TO_QUEUE, partial(_bind, True)),
    _row("GET", _TO_QUEUE + "/{props}", partial(_show_binding, True)),
    _row("DELETE", _TO_QUEUE + "/{props}", partial(_unbind, True)),
    _row("GET", _TO_EXCHANGE, _bindings(lambda b, v: _between(b, v, False))),
    _row("POST", _TO_EXCHANGE, partial(_bind, False)),
    _row("GET", _TO_EXCHANGE + "/{props}", partial(_show_binding, False)),
    _row("DELETE", _TO_EXCHANGE + "/{props}", partial(_unbind, False)),
    _row("GET", "connections", _connections),
    _row("GET", "vhosts/{vhost}/connections", _connections),
    _row("GET", "connections/username/{user}", _connections_of),
    _row("GET", "connections/{name}", _connection),
    _row("DELETE", "connections/{name}", _connection),
    _row("GET", "channels", _channels),
    _row("GET", "consumers", _consumers),
    _row("GET", "consumers/{vhost}", _consumers),
    _row("GET", "definitions", _export),
    _row("GET", "definitions/{vhost}", _export),
    _row("POST", "definitions", _import),
    _row("POST", "definitions/{vhost}", _import),
)
"""Method, path and who answers; `{vhost}` must be one that exists."""
