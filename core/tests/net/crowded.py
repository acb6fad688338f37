"""A program for `test_crowd.py`: an echo listener in a process with 40 open files; prints its port, then its CPU time at the end."""

from __future__ import annotations

import asyncio
import resource
import sys
import time
from pathlib import Path

import uvloop

sys.path.insert(0, str(Path(__file__).parent))

from test_pump import Bench  # type: ignore[import-not-found]


async def main() -> None:
    async with Bench() as bench:
        resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
        sys.stdout.write(f"{bench.listener.address[1]}\n")
        sys.stdout.flush()
        begun_s = time.process_time()
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
        sys.stdout.write(f"{time.process_time() - begun_s} {bench.host.traffic.accepted}\n")


uvloop.run(main())
