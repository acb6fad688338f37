"""How many requests at a time a sink gets: half when it refuses for its load, one more with each success, one first after a pause."""

from __future__ import annotations


class Pace:
    """Of one subscription. `most`: requests in flight at most."""

    __slots__ = ("_is_probing", "_most", "_parallel", "cuts", "refusals")

    def __init__(self, most: int) -> None:
        self._most = most
        self._parallel = most
        self._is_probing = False
        self.cuts = 0
        """Number of halvings; who sends remembers it, so that the refusals of one burst halve once."""
        self.refusals = 0
        """Halvings since the last success."""

    @property
    def limit(self) -> int:
        """Requests that may be in flight now."""
        return 1 if self._is_probing else self._parallel

    def refused(self, cuts_when_sent: int) -> None:
        """The sink asked for fewer requests."""
        if cuts_when_sent == self.cuts:
            self.cuts += 1
            self.refusals += 1
            self._parallel = max(self._parallel // 2, 1)

    def answered(self, well: bool) -> None:
        """Anything but a refusal came."""
        self._is_probing = False
        if well:
            self.refusals = 0
            self._parallel = min(self._parallel + 1, self._most)

    def pause_ended(self) -> None:
        """One request shall tell whether the sink is ready."""
        self._is_probing = True
