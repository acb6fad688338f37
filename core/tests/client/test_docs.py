"""The examples of docs/client.md, run as they stand, and what they print."""

import contextlib
import io
import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[3] / "docs" / "client.md").read_text()
EXAMPLES = re.findall(r"### (\d+\. .*?)\n.*?```python\n(.*?)```\n\n```text\n(.*?)```", PAGE, re.DOTALL)


def test_there_are_eleven() -> None:
    assert [int(title.split(".")[0]) for title, _, _ in EXAMPLES] == list(range(1, 12))
    assert PAGE.count("```python") == 11


@pytest.mark.parametrize(("title", "code", "printed"), EXAMPLES, ids=[title for title, _, _ in EXAMPLES])
def test_example(title: str, code: str, printed: str, nameserver: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", nameserver)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, title, "exec"), {"__name__": "__main__"})
    assert out.getvalue() == printed
