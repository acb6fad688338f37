"""Output in an encoding that does not have everything."""

from __future__ import annotations

import io
import json
import sys

import pytest

from gantrymq.cli.main import encode_everything


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_what_the_encoding_does_not_have_is_written_as_json_does(
    monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    text = 'ü "漢" \N{GRINNING FACE} \udc80'
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding=encoding))
    encode_everything()
    sys.stdout.write(json.dumps(text, ensure_ascii=False))
    sys.stdout.flush()
    assert json.loads(raw.getvalue().decode(encoding)) == text
