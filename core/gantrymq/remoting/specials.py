"""What a sender's properties ask for beyond storing the message: later delivery, a transaction, light queues of its own.

Looked at only if the text holds one of the names (`Sends.message`); each check is a search in the text.
"""

from __future__ import annotations

from typing import Final

from gantrymq.model import names, sysflag
from gantrymq.model import properties as props
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.message import DELAYED, HALF, PLAIN

TIMER_PROPERTIES: Final = ("TIMER_DELIVER_MS", "TIMER_DELAY_MS", "TIMER_DELAY_SEC")
LMQ_MAX: Final = 64
"""Light queues that one message may name: as many as stand in a record's properties."""


def value_of(text: str, mark: str) -> str:
    """Value of the last pair whose name is `mark` without its end, or an empty string."""
    at = text.rfind(mark)
    while at > 0 and text[at - 1] != "\x02":  # found inside a longer name or a value
        at = text.rfind(mark, 0, at)
    if at < 0:
        return ""
    at += len(mark)
    end = text.find("\x02", at)
    return text[at:] if end < 0 else text[at:end]


def specials(text: str, flags: int) -> tuple[int, tuple[str, ...]]:
    """(intake, light queues) of a message with these properties and this sysFlag; raises MESSAGE_ILLEGAL."""
    for name in (props.MULTI_QUEUE_OFFSET, "GANTRY_DISPATCH_MORE"):
        if value_of(text, name + "\x01"):
            raise GantryError(ErrorCode.MESSAGE_ILLEGAL, f"property {name} is the broker's own; send without it")
    queues = value_of(text, props.MULTI_DISPATCH + "\x01")
    lmq = tuple(dict.fromkeys(queues.split(","))) if queues else ()
    for queue in lmq:
        if not queue.startswith(names.LMQ_PREFIX) or queue.startswith(names.OWN_LIGHT_PREFIX):
            raise GantryError(
                ErrorCode.MESSAGE_ILLEGAL,
                f"property {props.MULTI_DISPATCH} names {queue[:80]!r}; allowed are names that begin with {names.LMQ_PREFIX} "
                f"and not with {names.OWN_LIGHT_PREFIX}",
            )
        names.check_topic(queue)
    if len(lmq) > LMQ_MAX:
        raise GantryError(ErrorCode.MESSAGE_ILLEGAL, f"a message enters at most {LMQ_MAX} light queues, not {len(lmq)}")
    prepared = (
        value_of(text, props.TRAN_MSG + "\x01") == "true"
        or flags & sysflag.TRANSACTION_MASK == sysflag.TRANSACTION_PREPARED
    )
    if prepared:
        return HALF, lmq  # RocketMQ: a delay of a half message is ignored
    if value_of(text, props.DELAY + "\x01") not in ("", "0") or any(
        value_of(text, f"{name}\x01") for name in TIMER_PROPERTIES
    ):
        return DELAYED, lmq
    return PLAIN, lmq
