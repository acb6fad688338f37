"""`./run demo`: exit code 0 if every consumer received exactly what was acknowledged, 1 if not, 130 after Ctrl-C."""

from __future__ import annotations

import argparse
import asyncio
import logging
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from interop_tests import guard
from interop_tests.demo.server import ServerError
from interop_tests.demo.sources import SourceError
from interop_tests.demo.story import DemoError, Options, Story, check_out

SECONDS = 60.0
SECONDS_MIN = 6.0
"""Less would leave nothing on either side of the kill."""
WIDTH_MIN, WIDTH_MAX = 80, 120
EXIT_WRONG, EXIT_INTERRUPTED = 1, 130


def parse(arguments: list[str]) -> Options:
    parser = argparse.ArgumentParser(
        prog="./run demo", description="One log, every door, on real input, with a kill -9 half-way."
    )
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"how long to publish (default {SECONDS:.0f})")
    parser.add_argument("--no-spark", action="store_true", help="leave Spark out: quicker, but not the whole story")
    parser.add_argument("--keep", action="store_true", help="keep the server's directory and the logs, and say where")
    parser.add_argument("--out", type=Path, default=Path(), help="folder of gantry-demo.png (default: here)")
    given = parser.parse_args(arguments)
    if given.seconds < SECONDS_MIN:
        parser.error(f"--seconds {given.seconds:g}: at least {SECONDS_MIN:g}")
    root = Path(__file__).resolve().parents[2]
    return Options(given.seconds, not given.no_spark, given.keep, given.out.resolve(), root)


def texts(error: BaseException) -> list[str]:
    """One line for each thing that went wrong."""
    if isinstance(error, BaseExceptionGroup):
        return [line for inner in error.exceptions for line in texts(inner)]
    if isinstance(error, DemoError | ServerError | SourceError | TimeoutError) and str(error):
        return [str(error)]
    return [f"{type(error).__name__}: {error}"]


async def interruptible(story: Story) -> list[str]:
    """The story as a task that SIGTERM and a closed terminal end as Ctrl-C does."""
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    try:
        return await story.run()
    finally:
        await story.kill()


def tell(options: Options, console: Console, directory: Path) -> list[str]:
    """Run the story; whatever happens, no process is left. Returns what is wrong."""
    try:
        check_out(options.out)
        story = Story(options, console, directory)
    except (DemoError, SourceError, OSError) as error:
        return [str(error)]
    try:
        return asyncio.run(interruptible(story))
    except Exception as error:  # everything becomes a line and the exit code
        return list(dict.fromkeys([*texts(error), *story.problems]))
    finally:
        story.end()


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    guard.begin()  # also when this process is killed, server and Spark end
    console = Console()
    if not console.is_terminal or not WIDTH_MIN <= console.width <= WIDTH_MAX:
        console = Console(width=min(max(console.width, WIDTH_MIN), WIDTH_MAX) if console.is_terminal else 100)
    for name in ("aiormq", "pika", "paho"):  # a lost connection is part of the story
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    directory = Path(tempfile.mkdtemp(prefix="gantry-demo-"))
    try:
        problems = tell(options, console, directory)
    except (KeyboardInterrupt, asyncio.CancelledError):
        console.print("interrupted")
        return EXIT_INTERRUPTED
    finally:
        if options.keep:
            console.print(f"Kept: {directory}", highlight=False, soft_wrap=True)
        else:
            shutil.rmtree(directory, ignore_errors=True)
    if problems:
        console.print("\n[bold red]Wrong:[/bold red]")
        for problem in problems:
            console.print(f"  {problem}", markup=False, highlight=False, soft_wrap=True)
        return EXIT_WRONG
    console.print("[bold green]Every consumer received exactly what was acknowledged.[/bold green]")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
