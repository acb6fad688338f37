"""Request codes of ours for people who look at a broker, for server and clients (docs/operations/cli.md)."""

from __future__ import annotations

from typing import Final

LIST_TRANSACTIONS: Final = 60110
"""Undecided half messages of a broker, a page at a time (docs/formats/transactions.md)."""

SEND_HALF_ROWS: Final = 60111
"""Many messages as one half message, decided together (docs/formats/transactions.md)."""
SEND_ROWS_ONCE: Final = 60112
"""SEND_BATCH_MESSAGE of messages whose UNIQ_KEYs the sender chose: stored unless they are already."""
SEND_BLOCK: Final = 60114
"""SEND_BATCH_MESSAGE of a block (docs/formats/blocks.md): the answer's body has 8 bytes a message, its position in the log."""
LIST_OWN_TRANSACTIONS: Final = 60113
"""LIST_TRANSACTIONS for those whose groups begin with a text that the asker knows."""

OVERVIEW: Final = 60120
"""A broker at a glance: totals, positions, connections, busiest topics, groups that are behind. Field `backlog=true`: what cursors still
owe, too."""

DRAIN: Final = 60121
"""Field `on`: `true` takes no new messages from gateways and producers from now on, `false` takes them again. Outlives a restart."""

GROUP_WISHES: Final = 60122
"""Field `group`: what each connected member of a consumer group wants of each topic."""

TOPIC_LIST: Final = 60123
"""All topics: `{"topics": [[name, queues, messages or null], ...]}`; null: nobody has used the topic since a start after a crash."""

GROUP_LIST: Final = 60124
"""All groups, those that only have offsets, too: `{"groups": [{"group", "lag", "rate", "topics", "members": [client id, ...]}, ...]}`; lag null:
as above."""

PRUNE_TOPICS: Final = 60125
"""Topics that came into being at their first use and that nobody needs: `{"unused": [[name, ms or 0], ...], "kept": [[name, why], ...], "named":
[topic, ...]}`; ms: when it was made; kept: the other topics, also those that somebody created; named: topics in rows of doors. Field `olderMs`: made and asked for at least so long ago. Field `remove=true`:
those named in the body (a JSON list), `unused` then are those that were removed."""

DAMAGE_LIST: Final = 60126
"""Damaged records that the broker has met, each looked at once more: `{"records": [{"position", "bytes", "queue", "offset", "unit", "what",
"found", "skipped", "waiting": [{"queue", "group", "offset"}, ...]}, ...]}`; offset -1: not known. What is whole again is delivered and left out."""

DAMAGE_SKIP: Final = 60127
"""Field `position`: whoever waits for what is damaged there shall wait no more; it is as acknowledged, unread. `{"skipped": entries}`."""

AUDIT: Final = 60129
"""Field `offset`: events of the audit trail from this one on (below 0: so many before the end), `{"begin", "next", "end", "events": [[offset, event],
...]}`; `event` as docs/operations/security.md says."""

AUTH_STATUS: Final = 60130
"""What is open to whom: `{"enabled", "clusterKey", "users", "administrators", "anonymous", "failed", "waiting", "audit": {"written", "waiting", "leftOut"}, "doors":
[{"door", "place", "reach", "tls", "clientCert", "asks", "connections"}, ...], "weak": [text, ...]}`, of the process of a broker; clientCert:
none, optional, required, or psk for a listener with pre-shared keys."""

ADD_TOKEN: Final = 60131
"""Field `username`; body `{"id", "hash", "expiresMs", "note"}`: a token of that user is good from now on (docs/operations/security.md)."""
LIST_TOKENS: Final = 60132
"""Field `username`, empty for all: `[{"id", "username", "madeMs", "expiresMs", "note", "state"}, ...]`; state: `good`, `expired`, `no user`."""
DELETE_TOKEN: Final = 60133
"""Field `tokenId`."""

EXPLAIN: Final = 60128
"""Fields `user`, `action`, `resource`, `address`, `clientId`, `topic` (native, behind an MQTT resource): `{"allowed", "rule"}`, as a door would decide
(docs/operations/security.md). With `vhost`: `action` configure, write or read, `resource` exchange:NAME or queue:NAME."""
