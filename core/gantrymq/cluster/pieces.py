"""A batch with settlements and rows over several broker groups: one piece where one group has all of it.

Elsewhere the messages go first, each group's with what of the rest lies there; when all of them are stored the rest follows, once. So nothing is
settled whose messages were refused; a crash in between leaves it unsettled, and it is delivered again.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from gantrymq.broker.port import ONE_PIECE
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.message import Message
from gantrymq.net.procedures.driver import Gathering

if TYPE_CHECKING:
    from gantrymq.broker.port import Done, Outcome
    from gantrymq.cluster.group import Group

Settled = tuple[int, int, "Outcome"]
Row = tuple[str, str, bytes | None]


class Piece:
    """What one group gets."""

    __slots__ = ("group", "places", "rows", "settle")

    def __init__(self, group: Group) -> None:
        self.group = group
        self.places: list[int] = []
        self.settle: list[Settled] = []
        self.rows: list[Row] = []


def submit_pieces(pieces: Sequence[Piece], batch: Sequence[Message], sender: object, token: Any, on_done: Done) -> None:
    """Hand every group its piece; the result is that of LogPort.submit."""
    first = [piece for piece in pieces if piece.places]
    rest = [piece for piece in pieces if not piece.places]
    results: list[Any] = [None] * len(batch)

    def send(piece: Piece, token: Any, done: Done) -> None:
        messages = [batch[place] for place in piece.places]
        piece.group.port.submit(messages, token, done, sender, settle=piece.settle or ONE_PIECE, rows=piece.rows)

    def stored(answers: list[Any]) -> None:
        for piece, answer in zip(first, answers, strict=True):
            for number, place in enumerate(piece.places):
                results[place] = answer.code if isinstance(answer, GantryError) else answer[number]
        if any(isinstance(result, ErrorCode) for result in results) or not rest:
            on_done(token, results)
        else:
            Gathering([partial(send, piece) for piece in rest], followed)

    def followed(answers: list[Any]) -> None:
        error = next((answer for answer in answers if isinstance(answer, GantryError)), None)
        on_done(token, error or results)

    if first:
        Gathering([partial(send, piece) for piece in first], stored)
    else:
        Gathering([partial(send, piece) for piece in rest], followed)
