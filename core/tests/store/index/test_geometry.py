"""The number of slots of an index file is found from its entries."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantrymq.store.files import OsFileSystem
from gantrymq.store.index.geometry import IndexBytes, find_slots, unreachable
from gantrymq.store.index.index_file import Index
from gantrymq.store.testing import MemoryFileSystem
from tests.store.rocketmq_fixture import unpack


def made(slots: int, entries: int, keys: int) -> IndexBytes:
    files = MemoryFileSystem()
    index = Index(files, Path("/i"), slots, entries)
    index.open(False)
    index.add([("T", (f"key{number}",), number * 100, 1_700_000_000_000) for number in range(keys)])
    index.write_pending()
    return IndexBytes(files, files.open(index.list[-1].path, False))


@given(st.integers(1, 400), st.integers(40, 300), st.integers(20, 39))
def test_found_without_a_hint(slots: int, entries: int, keys: int) -> None:
    found = find_slots(made(slots, entries, keys), ())
    assert found == slots


def test_an_empty_file_has_any_geometry_that_fits() -> None:
    files = MemoryFileSystem()
    files.make_dirs(Path("/d"))
    handle = files.open(Path("/d/i"), True)
    files.truncate(handle, 40 + 4 * 7 + 20 * 9)
    assert find_slots(IndexBytes(files, handle), (5, 7)) == 7
    assert find_slots(IndexBytes(files, handle), (5,)) == 0


def test_a_wrong_hint_is_passed_over() -> None:
    assert find_slots(made(100, 400, 50), (95, 105)) == 100


def test_an_unreachable_entry_is_counted() -> None:
    index = made(100, 400, 50)
    index._files.pwrite(index._handle, bytes(4), 40 + 4 * 100 + 20 * 50 + 16)  # type: ignore[attr-defined]
    index._files.pwrite(index._handle, (12345).to_bytes(4, "big"), 40 + 4 * 100 + 20 * 50)  # type: ignore[attr-defined]
    assert unreachable(index, 100) > 0
    assert find_slots(index, (100,)) == 0


@pytest.mark.parametrize("state", ["clean", "killed"])
def test_a_real_brokers_files(tmp_path: Path, state: str) -> None:
    unpack(state, tmp_path)
    files = OsFileSystem()
    found = []
    for path in sorted((tmp_path / "index").iterdir()):
        handle = files.open(path, False)
        found.append(find_slots(IndexBytes(files, handle), (5_000_000,)))
        files.close(handle)
    assert found
    assert set(found) == {100}
