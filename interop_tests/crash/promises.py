"""The checker of the fault tests: what was sent, what was acknowledged, and whether what is stored keeps those promises.

A message is (who, number): its publisher and a number that this publisher counts up and never sends twice. What was sent and not
acknowledged may be stored or not. Nothing here knows how anything is stored; `test_promises.py` plants every kind of fault.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

Id = tuple[str, int]
Queue = tuple[str, int]
"""Topic and queue id."""


@dataclass
class Ledger:
    """What publishers know. `places`: where acknowledgements said that a message is."""

    sent: set[Id] = field(default_factory=set)
    acknowledged: set[Id] = field(default_factory=set)
    places: dict[Id, tuple[int, int]] = field(default_factory=dict)
    """Queue id and queue offset."""

    def add(self, other: Ledger) -> None:
        self.sent |= other.sent
        self.acknowledged |= other.acknowledged
        self.places.update(other.places)


@dataclass(frozen=True)
class Finding:
    """A broken promise. `kind`: lost, invented, twice, hole, reordered or moved."""

    kind: str
    text: str


def check_queues(ledger: Ledger, queues: Mapping[Queue, list[tuple[int, Id]]]) -> list[Finding]:
    """`queues`: every (offset, message) that is stored, from offset 0 on."""
    findings: list[Finding] = []
    everything = [one for rows in queues.values() for _, one in rows]
    findings += compare(ledger.acknowledged, ledger.sent, everything, "the log")
    for queue, rows in queues.items():
        offsets = [offset for offset, _ in rows]
        if offsets != list(range(len(offsets))):
            findings.append(Finding("hole", f"{queue}: offsets {_first_hole(offsets)}"))
        findings += check_order([one for _, one in rows], str(queue))
    stored = {one: (queue[1], offset) for queue, rows in queues.items() for offset, one in rows}
    for one, place in ledger.places.items():
        if one in stored and stored[one] != place:
            findings.append(Finding("moved", f"{one}: acknowledged at {place}, stored at {stored[one]}"))
    return findings


def compare(wanted: set[Id], allowed: set[Id], got: Iterable[Id], where: str) -> list[Finding]:
    """Everything `wanted` is there, nothing but what is `allowed`, nothing twice."""
    counts = Counter(got)
    findings = [Finding("lost", f"{one} is not in {where}") for one in sorted(wanted - counts.keys())]
    findings += [Finding("invented", f"{one} is in {where}") for one in sorted(counts.keys() - allowed)]
    return findings + [Finding("twice", f"{one} is {n} times in {where}") for one, n in counts.items() if n > 1]


def check_order(got: Iterable[Id], where: str) -> list[Finding]:
    """Every publisher's messages stand in the order in which it sent them."""
    newest: dict[str, int] = {}
    findings = []
    for who, number in got:
        if number <= newest.get(who, -1):
            findings.append(Finding("reordered", f"{where}: {who} {number} after {newest[who]}"))
        newest[who] = max(number, newest.get(who, -1))
    return findings


def _first_hole(offsets: list[int]) -> str:
    place = next(index for index, offset in enumerate(offsets) if offset != index)
    return f"{offsets[place]} where {place} is due"
