"""The native client's own three seconds for a request, which are RocketMQ's, pass on a machine that does other work, or while a Java broker compiles
itself. Tests with a running server give it longer, where they do not say how long."""

from __future__ import annotations

import pytest

from gantrymq.client.client import Client
from gantrymq.client.connecting import routes
from gantrymq.client.connecting.link import Link, Links
from gantrymq.client.consuming import pulling, simple
from gantrymq.client.producing.producer import Producer

PATIENCE_S = 30.0
"""For one request."""


def lend(patch: pytest.MonkeyPatch) -> None:
    """Until `patch` is undone."""
    for call in (Client.ask, Link.post, Link.request):
        patch.setattr(call, "__defaults__", (PATIENCE_S,))
    for module, name in ((routes, "ASK_TIMEOUT_S"), (pulling, "REQUEST_TIMEOUT_S"), (simple, "REQUEST_TIMEOUT_S")):
        patch.setattr(module, name, PATIENCE_S)
    patch.setattr(Links.get, "__defaults__", (PATIENCE_S, True))
    group = Producer.__init__.__defaults__
    patch.setattr(Producer.__init__, "__defaults__", (*group[:3], PATIENCE_S, *group[4:]))
