"""Request codes of ours for gateway processes (docs/formats/gateway.md)."""

from __future__ import annotations

from typing import Final

FIRST_CODE: Final = 60000


LAST_CODE: Final = 60099
