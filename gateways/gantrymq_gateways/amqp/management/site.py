"""The management API of one process: who may ask, and the way from a request to its answer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from gantrymq.auth.resources import Action, Kind
from gantrymq.net.host_names import HostNames
from gantrymq.net.http.door import InSlices
from gantrymq.net.procedures.driver import run
from gantrymq_gateways.amqp.management import users
from gantrymq_gateways.amqp.management.api import Api, failure
from gantrymq_gateways.amqp.management.http import Answer, ManagementDoor, Request, error_body

if TYPE_CHECKING:
    from gantrymq.auth.authority import Authority, Identity
    from gantrymq.net.api import Link
    from gantrymq_gateways.amqp.gateway import Gateway

log = logging.getLogger(__name__)

DOOR: Final = "management"
"""What the audit trail calls it."""


class ManagementSite:
    """See `http.Site`."""

    def __init__(self, gateway: Gateway, bound: str, host_names: Iterable[str]) -> None:
        self._gateway = gateway
        self._names = HostNames(bound, host_names)
        self._api = Api(gateway)
        self.connections = 0

    def door(self, now_ms: Callable[[], int], in_slices: InSlices) -> ManagementDoor:
        """One connection."""
        return ManagementDoor(self, now_ms, in_slices)

    def refusal(self, host: bytes | None) -> str:
        """See `http.Site`."""
        return self._names.refusal(host)

    def log_in(self, user: str, password: str, method: str, link: Link, answer: Callable[[str], None]) -> None:
        """See `http.Site`. With authentication only administrators change anything, and `get` on `cluster:*` lets others look."""
        authority = self._gateway.authority
        if authority is None:
            answer(user if self._gateway.may_log_in(user, password, link.peer, link.peer_is_loopback) else "")
            return

        def known(identity: Identity | None, why: str) -> None:
            looks = method in ("GET", "HEAD")
            good = identity is not None and (identity.is_admin or (looks and _reads_all(authority, identity)))
            authority.audit.login(DOOR, identity.name if identity is not None else user, link.peer, why)
            if not good:
                log.warning("%s: management: %s", link.peer, why or f"user {user} may not do this")
            if identity is not None and not good:
                identity.refused(DOOR, method, "", "no administrator" if not looks else "no right get on cluster:*")
            answer(identity.name if good and identity is not None else "")

        authority.login(user, password, "", link.peer, known)

    def handle(self, request: Request, answer: Answer) -> None:
        """See `http.Site`."""
        authority = self._gateway.authority
        if authority is not None and request.method not in ("GET", "HEAD"):
            what = "/".join(request.parts)
            authority.audit.changed(DOOR, request.user, request.peer, request.method, what)
        if not self._gateway.ready:
            answer(503, error_body("unavailable", "the broker is not reachable"), ())
            return
        run(self._api.answer(request), partial(_finish, request, answer), Exception)


def _reads_all(authority: Authority, identity: Identity) -> bool:
    return identity.may(Action.GET, Kind.CLUSTER, "") or (
        identity.token is None and users.monitors(authority, identity.name)
    )


def _finish(request: Request, answer: Answer, result: Any) -> None:
    if isinstance(result, Exception):
        status, word, reason = failure(result)
        if status == 500:
            log.error("%s /%s failed: %s: %s", request.method, "/".join(request.parts), type(result).__name__, result)
            log.debug("traceback", exc_info=result)
        answer(status, error_body(word, reason), ())
        return
    status, body, place = result
    more = ((b"location", place.encode()),) if place else ()
    answer(status, body, more)
