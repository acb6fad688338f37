"""Every method that the door takes has a declared right."""

from __future__ import annotations

from gantrymq_gateways.amqp.access import NEEDS
from gantrymq_gateways.amqp.door import HANDLERS


def test_auth_matrix_methods() -> None:
    assert not HANDLERS.keys() - NEEDS.keys(), "methods without a declared right"
