"""Shapes of headers that were learned, by the length of the header; see ack_shapes.py and end_shapes.py."""

from __future__ import annotations

from typing import Final, Generic, TypeVar

SHAPES_MAX: Final = 1024
"""Of one kind in the process, forgotten all at once beyond it: two mebibytes with `HEADER_BYTES_MAX`. A connection may keep the last one that it used."""
SHAPES_PER_LENGTH: Final = 8
"""Of headers of one length, the newest: those of other groups, topics and numbers of digits. More of them would be compared in vain."""

Shape = TypeVar("Shape")


class ShapeTable(Generic[Shape]):
    """Those of all connections."""

    __slots__ = ("_count", "_shapes")

    def __init__(self) -> None:
        self._shapes: dict[int, list[Shape]] = {}
        self._count = 0

    def forget(self) -> None:
        """Know none."""
        self._shapes.clear()
        self._count = 0

    def _keep(self, length: int, shape: Shape) -> None:
        if self._count >= SHAPES_MAX:
            self.forget()
        shapes = self._shapes.setdefault(length, [])
        if len(shapes) >= SHAPES_PER_LENGTH:
            del shapes[0]
            self._count -= 1
        shapes.append(shape)
        self._count += 1
