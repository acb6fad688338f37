"""`./run sim`: simulations under seeds.

usage: sim SEED          replay one seed and print what went wrong
       sim               new seeds for a minute
       sim --seeds K     seeds 0 to K-1; --from N: from N on
       sim --cluster N   the model of owners, slots and forward queues: N seeds, from --from on
"""

from __future__ import annotations

import argparse
import random
import sys
import time

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from interop_tests.sim.owners.simulation import ClusterSimulation
from interop_tests.sim.simulation import STEPS, Result, Simulation

SECONDS = 60.0
SEED_MAX = 10**9


def told(result: Result) -> str:
    """One line."""
    flush = "sync" if result.sync else "async"
    return (
        f"seed {result.seed}: {result.steps} steps, {result.virtual_ms / 1000:.0f} s of virtual time, flush {flush}, "
        f"{result.acks} acknowledged, {result.deliveries} deliveries, {result.crashes} crashes ({result.losses} power losses), "
        f"events {result.digest}"
    )


def show_failure(result: Result, steps: int) -> None:
    """The end of the log of events, and what does not hold."""
    for line in result.events:
        print(line)
    print(told(result))
    print(f"FAILED at step {result.steps}: {result.failure}")
    print(f"replay: ./run sim {result.seed}" + (f" --steps {steps}" if steps != STEPS else ""))


def many(first: int, count: int, steps: int) -> int:
    """New seeds, or those asked for; stops at the first failure."""
    begun = time.monotonic()
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[rate]}"), TimeElapsedColumn())
    lot = random.SystemRandom()
    done = 0
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("simulating", total=count or SECONDS, rate="")
        while done < count if count else time.monotonic() - begun < SECONDS:
            seed = first + done if count else lot.randrange(SEED_MAX)
            result = Simulation(seed, steps).run()
            if result.failure:
                progress.stop()
                show_failure(result, steps)
                return 1
            done += 1
            spent = time.monotonic() - begun
            progress.update(bar, completed=done if count else spent, rate=f"{done} seeds, {done / spent:.1f}/s")
    spent = time.monotonic() - begun
    print(f"{done} seeds in {spent:.0f} s ({done / spent:.2f} seeds/s), all invariants hold")
    return 0


def clusters(first: int, count: int) -> int:
    """Seeds of the model of owners; stops at the first failure."""
    begun = time.monotonic()
    due = forbidden = moves = 0
    for seed in range(first, first + count):
        result = ClusterSimulation(seed).run()
        if result.failure:
            for line in result.events:
                print(line)
            print(
                f"seed {seed}: faults {', '.join(result.faults)}; {result.steps} events, {result.virtual_ms / 1000:.0f} s of virtual time"
            )
            print(f"FAILED: {result.failure}")
            print(f"replay: ./run sim --cluster 1 --from {seed}")
            return 1
        due += result.due
        forbidden += result.forbidden
        moves += result.moves
    spent = time.monotonic() - begun
    print(
        f"{count} seeds in {spent:.0f} s: {due} deliveries that were due, {forbidden} that were not, {moves} moves, all invariants hold"
    )
    return 0


def main(arguments: list[str] | None = None) -> int:
    """See the module."""
    parser = argparse.ArgumentParser(
        prog="./run sim", description="Simulations of broker, clients, network and disk under a seed."
    )
    parser.add_argument("seed", nargs="?", type=int, help="replay this seed; without it: new ones for a minute")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"events with faults (default {STEPS})")
    parser.add_argument("--seeds", type=int, default=0, help="run so many seeds, beginning at --from")
    parser.add_argument("--from", dest="first", type=int, default=0, help="first of --seeds")
    parser.add_argument(
        "--cluster", type=int, default=0, help="run so many seeds of the model of owners, beginning at --from"
    )
    options = parser.parse_args(arguments)
    if options.cluster:
        return clusters(options.first, options.cluster)
    if options.seed is None:
        return many(options.first, options.seeds, options.steps)
    result = Simulation(options.seed, options.steps).run()
    if result.failure:
        show_failure(result, options.steps)
        return 1
    print(told(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
