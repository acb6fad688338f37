"""Rows of every table whose owner is in core: whether they can be read (broker/row_checks.py)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from gantrymq.auth import rows as auth_rows
from gantrymq.broker import own_rows
from gantrymq.broker.row_checks import RowCheck
from gantrymq.broker.tables.group_tables import LIGHTS_TABLE, STATE_TABLE, TAG
from gantrymq.broker.tables.slot_table import SLOTS_TABLE
from gantrymq.broker.tables.slot_table import check_row as check_slot
from gantrymq.model.groups import GroupConfig
from gantrymq.remoting.json_bodies import decode
from gantrymq.remoting.server.pop import modes as pop_modes


def _check_group(key: str, value: bytes) -> None:
    decode(value, GroupConfig)
    dict(json.loads(value))  # the broker and the export read it so


def _check_request_mode(key: str, value: bytes) -> None:
    decode(value, pop_modes.RequestMode)
    dict(json.loads(value))


def _check_light(key: str, value: bytes) -> None:
    int(key), int(value)


def _check_state(key: str, value: bytes) -> None:
    if key.startswith(TAG):
        int(key[len(TAG) :])
    value.decode()


CHECKS: Final[Mapping[str, RowCheck]] = {
    **own_rows.CHECKS,
    **auth_rows.CHECKS,
    "group": _check_group,
    pop_modes.TABLE: _check_request_mode,
    LIGHTS_TABLE: _check_light,
    STATE_TABLE: _check_state,
    SLOTS_TABLE: check_slot,
}
"""By table."""
