"""Request codes of ours between processes of a cluster (docs/formats/gateway.md)."""

from __future__ import annotations

from typing import Final

FIRST_CODE: Final = 60000


LAST_CODE: Final = 60099

MEMBER_BEGIN: Final = 60100
MEMBER_PROVE: Final = 60101
"""Who connects shows that it has the cluster's key, and is shown that (`auth.members.handshake`)."""
MEMBER_CODES: Final = frozenset({MEMBER_BEGIN, MEMBER_PROVE})
