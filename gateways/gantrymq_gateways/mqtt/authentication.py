"""Who may connect: the one question that a CONNECT asks before its client id is touched, and the AUTH exchange of MQTT 5.0 (4.12).

`Authenticate` is the hook: it is asked with the CONNECT and answers now or later, once. An answer of `CONTINUE_AUTHENTICATION` goes out as AUTH with
its data, and `proceed` is asked with what the client says to it. The same way a client authenticates again while it is connected [MQTT5-4.12.1-1].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from gantrymq_gateways.mqtt.wire import properties as p
from gantrymq_gateways.mqtt.wire.packets import Connect
from gantrymq_gateways.mqtt.wire.reasons import Reason


@dataclass(slots=True)
class Answer:
    """`reason`: SUCCESS, CONTINUE_AUTHENTICATION or a failure. `user`: who it is. `data`: the method's, for AUTH or CONNACK."""

    reason: Reason = Reason.SUCCESS
    text: str = ""
    user: str = ""
    data: bytes | None = None
    proceed: Proceed | None = None
    """With CONTINUE_AUTHENTICATION: asked with the data of the client's AUTH."""


Answered = Callable[[Answer], None]


class Proceed(Protocol):
    """The next step of an exchange."""

    def __call__(self, data: bytes | None, on_answer: Answered) -> None: ...


class Authenticate(Protocol):
    """`from_here`: the client is of this machine. `on_answer` is called once, perhaps before this returns, on the loop."""

    def __call__(self, connect: Connect, from_here: bool, on_answer: Answered) -> None: ...


def anonymous(allowed: bool) -> Authenticate:
    """Without accounts: clients of this machine with any name and password, others where `allowed`; no enhanced methods."""

    def authenticate(connect: Connect, from_here: bool, on_answer: Answered) -> None:
        method = connect.properties.get(p.AUTH_METHOD)
        if method is not None:
            on_answer(Answer(Reason.BAD_AUTHENTICATION_METHOD, f"authentication method {method[:64]!r} is not known"))
        elif from_here or allowed:
            on_answer(Answer(user=connect.user_name or ""))
        else:
            text = "clients of other machines are refused; mqtt.allow_anonymous=true lets them in"
            on_answer(Answer(Reason.NOT_AUTHORIZED, text))

    return authenticate
