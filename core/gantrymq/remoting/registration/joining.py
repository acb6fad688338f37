"""What a process of a cluster says first on a connection to another: that it has the key, and it hears the same."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from gantrymq.auth.members.handshake import Applicant, MemberError
from gantrymq.auth.members.key import ClusterKey
from gantrymq.remoting.codec import Command
from gantrymq.remoting.constants import ResponseCode
from gantrymq.remoting.gateway_codes import MEMBER_BEGIN, MEMBER_PROVE


async def join(key: ClusterKey, name: str, ask: Callable[[Command], Awaitable[Command]]) -> None:
    """`ask(request)`: its answer, over that connection. Raises `MemberError` with what to do, and what `ask` raises."""
    applicant = Applicant(key, name)
    begun = await ask(Command(MEMBER_BEGIN, applicant.begin()))
    _check(begun)
    _check(await ask(Command(MEMBER_PROVE, applicant.finish(begun.fields))))


def _check(answer: Command) -> None:
    if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        raise MemberError(
            "it knows no cluster key, and auth.cluster_key_file names one here: is it a process of this cluster, and as new?"
        )
    if answer.code != ResponseCode.SUCCESS:
        raise MemberError(answer.remark or f"code {answer.code}")
