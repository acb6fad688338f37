"""Equal texts as one object, and no more of them than the limit says."""

from __future__ import annotations

from gantrymq.model.indexes import shared as module
from gantrymq.model.indexes.shared import TEXTS_MAX, shared


def test_equal_texts_are_one_object() -> None:
    first, second = "".join(["pi", "ka"]), "".join(["p", "ika"])
    assert first is not second
    assert shared(first) is shared(second)


def test_it_keeps_a_bounded_number() -> None:
    for number in range(3 * TEXTS_MAX):
        assert shared(f"client {number}") == f"client {number}"
        assert len(module._texts) <= TEXTS_MAX
