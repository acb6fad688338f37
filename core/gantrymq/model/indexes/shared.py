"""One object for equal texts that many things hold and clients choose: `sys.intern` keeps each for ever with Python 3.12."""

from __future__ import annotations

from typing import Final

TEXTS_MAX: Final = 4_096
"""Texts known at once; when there are more, all are forgotten, and those that come then are other objects than the same of before."""

_texts: dict[str, str] = {}


def shared(text: str) -> str:
    """The same text: the object that was given before, if it is known."""
    found = _texts.get(text)
    if found is None:
        if len(_texts) >= TEXTS_MAX:
            _texts.clear()
        found = _texts[text] = text
    return found
