"""<TAB> as bash presses it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

GANTRY = Path(sys.executable).with_name("gantry")


def press_tab(line: str, nameserver: str) -> list[str]:
    """What is offered for the last word of a line, which a blank behind it makes an empty one."""
    words = line.split(" ")
    done = subprocess.run(
        [GANTRY], capture_output=True, stdin=subprocess.DEVNULL, text=True,
        env=os.environ | {
            "NAMESRV_ADDR": nameserver, "_GANTRY_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1),
        },
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()
