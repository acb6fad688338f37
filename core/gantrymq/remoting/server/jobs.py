"""Requests whose answer takes longer than a slice of the loop: worked on a step per turn, waiting for the disk where need be."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.remoting.constants import ResponseCode
from gantrymq.remoting.door import code_of
from gantrymq.store.cold import Cold

if TYPE_CHECKING:
    from gantrymq.administration.reading import Steps
    from gantrymq.remoting.codec import Command
    from gantrymq.remoting.server.reply import Reply

JOBS_MAX: Final = 32
"""At work at once, whole broker: each holds its answer so far, a few MiB for a table of 20,000 topics."""


class Jobs:
    """The jobs of one broker."""

    def __init__(
        self, fetch: Callable[[Cold, Any, Callable[[Any], None]], None], in_slices: Callable[[Callable[[], None]], None]
    ) -> None:
        """`fetch`: as `Broker.fetch`; `in_slices(call)`: later in this turn, or in the next."""
        self._fetch = fetch
        self._in_slices = in_slices
        self.running = 0

    def run(self, command: Command, reply: Reply, steps: Steps[bytes]) -> None:
        """Answer `command` with what `steps` returns; the first step is done at once. Raises BUSY."""
        if self.running >= JOBS_MAX:
            steps.close()
            raise GantryError(ErrorCode.BUSY, f"{JOBS_MAX} long requests are being worked on; try again")
        self.running += 1
        self._step((command, reply, steps))

    def _step(self, job: tuple[Command, Reply, Steps[bytes]]) -> None:
        command, reply, steps = job
        if not reply.open:
            steps.close()
            self.running -= 1
            return
        try:
            wanted = next(steps)
        except StopIteration as end:
            reply.respond(command, body=end.value)
        except GantryError as error:
            reply.refuse(command, code_of(error.code), error.text)
        except OSError as error:  # the disk could not read something
            reply.refuse(command, ResponseCode.SYSTEM_ERROR, str(error))
        else:
            if wanted is None:
                self._in_slices(lambda: self._step(job))
            else:
                self._fetch(wanted, job, self._step)
            return
        self.running -= 1
