"""What the producers, consumers and the administration of one process share: links, routes, and the groups they belong to."""

from __future__ import annotations

import os
import ssl
from typing import Self

from gantrymq.client.connecting.link import REQUEST_TIMEOUT_S, Link, Links
from gantrymq.client.connecting.nameservers import DEFAULT_NAMESERVER, is_page, parse_nameservers
from gantrymq.client.connecting.routes import MessageQueue, RouteCache
from gantrymq.client.connecting.signing import Signer, tls_of_environment
from gantrymq.client.errors import expect_success
from gantrymq.client.membership import Membership
from gantrymq.model.errors import GantryError
from gantrymq.remoting.codec import Command
from gantrymq.remoting.constants import MASTER_ID


class Client:
    """Links and routes under one set of nameservers: `HOST:PORT`, several joined by `;`, or `http://...`, a page that names them; default
    `NAMESRV_ADDR`, else 127.0.0.1:9876.

    Belongs to one event loop. Producers, consumers and `Admin` make one of their own unless one is handed to them.

    Arguments:
        nameserver: As above; empty: `NAMESRV_ADDR`, else 127.0.0.1:9876.
        user: Who signs the requests, for servers that authenticate; empty: `GANTRY_USER`, and nobody where that is not set.
        password: What it signs with; empty: `GANTRY_PASSWORD`.
        tls: How connections are encrypted; None: as `GANTRY_TLS_CA` says, a file with the CAs to trust, and not at all where that is not set.
        token: Instead of both: a JWT, or one of `gantry token add`; empty: `GANTRY_TOKEN` where no user is given. Use TLS: it crosses the wire.

    Attributes:
        links (Links): Connections by address.
        routes (RouteCache): Routes by topic, and the nameservers.
        members (Membership): The groups that this process belongs to, and their heartbeats.
    """

    def __init__(
        self, nameserver: str = "", user: str = "", password: str = "", tls: ssl.SSLContext | None = None, token: str = ""
    ) -> None:  # fmt: skip
        tls = tls or tls_of_environment()
        self.links = Links(Signer.of(user, password, token), tls, self._serve, self._opened)
        where = nameserver or os.environ.get("NAMESRV_ADDR", "") or DEFAULT_NAMESERVER
        page = where.strip() if is_page(where) else ""
        self.routes = RouteCache([] if page else parse_nameservers(where), self.links, page)
        self.members = Membership(self.links, self.routes)

    def _serve(self, link: Link, command: Command) -> bool:
        return self.members.serve(link, command)

    def _opened(self, link: Link) -> None:
        self.members.opened(link)

    async def link_of(self, queue: MessageQueue, master_only: bool = False) -> Link:
        """Open link to the broker that has `queue`, at its new address if it has moved."""
        link = self.open_link_of(queue)
        if link is not None:
            return link
        route = await self.routes.publish_route(queue.topic)
        try:
            return await self.links.get(route.address(queue.broker, master_only), patient=False)
        except GantryError:
            route = await self.routes.publish_route(queue.topic, fresh=True)
        return await self.links.get(route.address(queue.broker, master_only))

    def open_link_of(self, queue: MessageQueue) -> Link | None:
        """The same if its route is fresh, its broker has a master, and the link to that is open now."""
        kept = self.routes.fresh_route(queue.topic)
        addresses = kept.brokers.get(queue.broker) if kept is not None else None
        address = addresses.get(MASTER_ID) if addresses is not None else None
        return self.links.open_link(address) if address is not None else None

    async def ask(self, address: str, command: Command, what: str, timeout_s: float = REQUEST_TIMEOUT_S) -> Command:
        """A successful answer of the server at `address`; raises `BrokerError` or UNAVAILABLE. `what`: for the error's text."""
        link = await self.links.get(address, timeout_s)
        return expect_success(await link.request(command, timeout_s), what, address)

    async def close(self) -> None:
        """Leave all groups and close all links; cancelled meanwhile, it closes them all the same."""
        try:
            await self.members.close()
        finally:
            try:
                await self.routes.close()
            finally:
                await self.links.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Part:
    """Base of what works on a `Client`: closes it only if it is its own."""

    def __init__(self, nameserver: str = "", client: Client | None = None) -> None:
        self._own = client is None
        self.client = Client(nameserver) if client is None else client

    async def close(self) -> None:
        """Close the links, if they are this object's own."""
        if self._own:
            await self.client.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
