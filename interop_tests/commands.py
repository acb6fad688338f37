"""`gantry` commands in this process. A start of Python with what commands import takes half a second of a processor, and most tests ask what a command says
and does. That they start as processes, in whatever surroundings, is for test_surroundings.py, test_cli.py and test_secrets.py."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading

import pytest

from gantrymq.cli.main import main

WIDTH = "80"
"""Columns of what is not shown on a terminal."""

OWN = ("GANTRY_", "NAMESRV_ADDR", "ROCKETMQ_")
"""How names of variables begin that a command reads: those of whoever runs the tests are not for it."""

_ONE_AT_A_TIME = threading.Lock()
"""Where a process prints to is one thing."""


def gantry(*words: str, given: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    """As a process with these variables and nothing else would end that is `given` this to read."""
    out, err, into = (io.TextIOWrapper(io.BytesIO(), "utf-8", newline="") for _ in range(3))
    into.write(given)
    into.seek(0)
    with _ONE_AT_A_TIME, pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(OWN)]:
            patch.delenv(name)
        for name, value in {"COLUMNS": WIDTH, **variables}.items():
            patch.setenv(name, value)
        for name, stream in (("stdin", into), ("stdout", out), ("stderr", err)):
            patch.setattr(sys, name, stream)
        code = main(list(words))
    texts = []
    for stream in (out, err):
        stream.flush()
        texts.append(stream.buffer.getvalue().decode())  # type: ignore[attr-defined]
    return subprocess.CompletedProcess(words, code, *texts)
