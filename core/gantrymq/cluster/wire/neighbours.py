"""The IO side of founding a table of slots: asks every other broker that the nameservers know for its copy, over connections as gateways have them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio

from gantrymq.broker.tables.slot_table import SLOTS_TABLE
from gantrymq.cluster.wire.codec import ForeignBrokerError
from gantrymq.cluster.wire.dial import Dialer, find_groups
from gantrymq.model.errors import GantryError

if TYPE_CHECKING:
    from gantrymq.auth.members.key import ClusterKey
    from gantrymq.broker.port import Done
    from gantrymq.net.tls.contexts import Outgoing

log = logging.getLogger(__name__)

ASK_S: Final = 5.0
"""A broker that has not answered by then has not said; it is asked again."""


class Neighbours:
    """See the module. `own`: the name of this broker group, which is not asked; `spawn`: see `ServiceContext`."""

    def __init__(
        self,
        nameservers: list[str],
        own: str,
        key: ClusterKey | None,
        tls: Outgoing | None,
        spawn: Callable[..., None],
    ) -> None:
        self._nameservers = nameservers
        self._own = own
        self._key = key
        self._tls = tls
        self._spawn = spawn

    def survey(self, token: Any, on_done: Done) -> None:
        """As `Survey`. Where no nameserver answers there are no others."""
        self._spawn(self._survey, token, on_done)

    async def _survey(self, token: Any, on_done: Done) -> None:
        said: dict[str, dict[str, bytes] | str] = {}
        try:
            found = await find_groups(self._nameservers, self._key, self._tls)
        except GantryError as error:
            log.debug("slots: %s", error.text)
            found = {}
        async with anyio.create_task_group() as tasks:
            for name in found:
                if name != self._own:
                    tasks.start_soon(self._ask, name, said)
        on_done(token, said)

    async def _ask(self, name: str, said: dict[str, dict[str, bytes] | str]) -> None:
        dialer = Dialer(self._nameservers, name, self._key, self._tls, lambda: False)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        result: Any
        try:
            with anyio.fail_after(ASK_S):
                await dialer.dial()
                dialer.port.watch_table(SLOTS_TABLE, None, None, partial(_answered, answer))
                result = await answer
        except ForeignBrokerError:
            result = {}
        except TimeoutError:
            result = f"no answer within {ASK_S:g} s"
        except (GantryError, OSError) as error:
            result = str(error)
        finally:
            dialer.close()
        said[name] = str(result) if isinstance(result, GantryError) else result


def _answered(answer: asyncio.Future[Any], _token: Any, result: Any) -> None:
    if not answer.done():
        answer.set_result(result)
