"""Single records, units and entries that a real broker wrote, as data: read and written alike."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from gantrymq.model import properties as props
from gantrymq.model.names import java_hash
from gantrymq.store.checkpoints.positions import CHECKPOINT
from gantrymq.store.index.geometry import ENTRY, HEADER
from gantrymq.store.index.key_hashes import key_hash
from gantrymq.store.log import record
from gantrymq.store.queues.consume_queue import HOLE, UNIT, pack_units
from gantrymq.store.schedule import schedule_code

VECTORS: dict[str, Any] = json.loads((Path(__file__).parent / "fixtures" / "vectors.json").read_text("utf-8"))


@pytest.mark.parametrize("vector", VECTORS["records"], ids=lambda vector: vector["name"])
def test_record(vector: dict[str, Any]) -> None:
    data, fields = bytes.fromhex(vector["hex"]), vector["fields"]
    message = record.decode(data)
    assert (message.topic, message.queue_id, message.queue_offset) == (
        fields["topic"],
        fields["queueId"],
        fields["queueOffset"],
    )
    assert (message.physical_offset, message.size, message.sys_flag) == (
        fields["commitLogOffset"], fields["storeSize"], fields["sysFlag"],
    )  # fmt: skip
    assert (message.born_ms, message.store_ms) == (fields["bornTimestamp"], fields["storeTimestamp"])
    assert (message.born_host.hex(), message.store_host.hex()) == (fields["bornHost"], fields["storeHost"])
    assert (message.reconsume_times, message.prepared_offset) == (
        fields["reconsumeTimes"],
        fields["preparedTransactionOffset"],
    )
    assert message.body == base64.b64decode(fields["body"])
    fields["properties"].pop(props.OWN_CRC, None)
    assert props.decode(message.properties) | props.decode(message.dispatch) == fields["properties"]
    if props.has_own_crc(data):
        assert props.own_crc_is_right(data)
        assert props.own_crc([data[:50], data[50 : -props.OWN_CRC_SIZE]], separated=True) == data[-props.OWN_CRC_SIZE :]
    elif not message.dispatch:
        assert record.encode(message) == data


@pytest.mark.parametrize("vector", VECTORS["records"], ids=lambda vector: vector["name"])
def test_a_record_cut_anywhere_is_none(vector: dict[str, Any]) -> None:
    data = bytes.fromhex(vector["hex"])
    for length in range(len(data)):
        with pytest.raises(record.RecordError):
            record.decode(data[:length])
    assert record.decode(data + b"behind").size == len(data)


def test_blank() -> None:
    assert record.blank(VECTORS["blank"]["size"]).hex() == VECTORS["blank"]["hex"]


@pytest.mark.parametrize("vector", VECTORS["units"], ids=lambda vector: vector["name"])
def test_unit(vector: dict[str, Any]) -> None:
    unit = UNIT.unpack(bytes.fromhex(vector["hex"]))
    assert list(unit) == vector["unit"]
    assert pack_units(list(unit)).hex() == vector["hex"]


def test_tag_codes() -> None:
    by_name = {vector["name"]: vector["unit"] for vector in VECTORS["units"]}
    assert by_name["pre-blank"] == list(HOLE)
    assert (by_name["tag A"][2], by_name["tag größe"][2], by_name["no tag"][2]) == (
        java_hash("A"),
        java_hash("größe"),
        0,
    )
    delayed = next(vector for vector in VECTORS["records"] if vector["name"] == "delay level 1")
    assert schedule_code(record.decode(bytes.fromhex(delayed["hex"]))) == by_name["time of delivery"][2]


def test_index() -> None:
    index = VECTORS["index"]
    assert list(HEADER.unpack(bytes.fromhex(index["header"]["hex"]))) == list(index["header"]["fields"].values())
    for entry, key in zip(index["entries"], index["keys"], strict=True):
        assert list(ENTRY.unpack(bytes.fromhex(entry["hex"]))) == entry["fields"]
        assert entry["fields"][0] == key_hash(key["topic"], key["key"])


def test_checkpoint() -> None:
    assert list(CHECKPOINT.unpack(bytes.fromhex(VECTORS["checkpoint"]["hex"]))) == VECTORS["checkpoint"]["fields"]
