"""Who logs in: what the SASL mechanisms PLAIN, AMQPLAIN and EXTERNAL carry."""

from __future__ import annotations

from gantrymq_gateways.amqp.wire.values import Field, lookup, read_table


def text_or_empty(value: Field | None) -> str:
    """A text field; empty for anything else."""
    return bytes(value.value).decode("utf-8", "replace") if value is not None and value.kind == "S" else ""


def credentials_of(mechanism: str, response: bytes) -> tuple[str, str] | None:
    """User and password, None for a mechanism or response that makes no sense."""
    try:
        if mechanism == "PLAIN":  # RFC 4616
            _authorization, user, password = response.split(b"\0")
            return user.decode(), password.decode()
        if mechanism == "EXTERNAL":  # RFC 4422 appendix A; who it is, the certificate says
            return response.decode(), ""
        if mechanism == "AMQPLAIN":
            table, _ = read_table(len(response).to_bytes(4, "big") + response, 0, 4 + len(response))
            user_field, password_field = lookup(table, "LOGIN"), lookup(table, "PASSWORD")
            if user_field is not None and password_field is not None:
                return text_or_empty(user_field), text_or_empty(password_field)
    except ValueError:
        return None
    return None
