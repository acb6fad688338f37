"""Users and policies of a cluster: every broker is told, as each asks for itself."""

from __future__ import annotations

from typing import Any

import msgspec

from gantrymq.auth.tokens import own
from gantrymq.client.admin import Admin
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.remoting.codec import Command
from gantrymq.remoting.constants import RequestCode
from gantrymq.remoting.overview_codes import ADD_TOKEN, AUDIT, AUTH_STATUS, DELETE_TOKEN, EXPLAIN, LIST_TOKENS


class Accounts:
    """Over an `Admin`, whose user is an administrator. Every method raises GantryError with the server's own text."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin

    async def users(self, part: str = "") -> list[dict[str, Any]]:
        """All users with `part` in their names, without passwords."""
        found: list[dict[str, Any]] = await self._ask(RequestCode.AUTH_LIST_USER, {"filter": part}, "users")
        return found

    async def user(self, name: str) -> dict[str, Any]:
        """One. Raises NOT_FOUND."""
        found: dict[str, Any] | None = await self._ask(RequestCode.AUTH_GET_USER, {"username": name}, f"user {name}")
        if found is None:
            raise GantryError(ErrorCode.NOT_FOUND, f"there is no user {name!r}")
        return found

    async def create_user(self, name: str, **info: Any) -> None:
        """`info`: fields of UserInfo, such as `password`, `userType`, `groups`. Raises ALREADY_EXISTS."""
        await self._tell(RequestCode.AUTH_CREATE_USER, {"username": name}, info, f"user {name}")

    async def update_user(self, name: str, **info: Any) -> None:
        """What `info` names is so from now on. Raises NOT_FOUND."""
        await self._tell(RequestCode.AUTH_UPDATE_USER, {"username": name}, info, f"user {name}")

    async def delete_user(self, name: str) -> None:
        """With its policy."""
        await self._tell(RequestCode.AUTH_DELETE_USER, {"username": name}, None, f"user {name}")

    async def policies(self, subject: str = "", resource: str = "") -> list[dict[str, Any]]:
        """All, or those with these parts in them."""
        fields = {"subjectFilter": subject, "resourceFilter": resource}
        found: list[dict[str, Any]] = await self._ask(RequestCode.AUTH_LIST_ACL, fields, "policies")
        return found

    async def groups(self) -> dict[str, list[str]]:
        """Groups that users are in or policies are for, and their users' names, sorted."""
        found: dict[str, list[str]] = {}
        for user in await self.users():
            for group in user.get("groups") or ():
                found.setdefault(group, []).append(user["username"])
        for policy in await self.policies("group:"):
            word, _, name = policy["subject"].partition(":")
            if word.lower() == "group":
                found.setdefault(name, [])
        return {name: sorted(found[name]) for name in sorted(found)}

    async def add_rules(self, subject: str, rules: list[dict[str, Any]]) -> None:
        """Rules of `resource`, `actions`, `decision`, `sourceIps`; they replace those for the same resources."""
        body = {"subject": subject, "policies": [{"policyType": "Custom", "entries": rules}]}
        await self._tell(RequestCode.AUTH_UPDATE_ACL, {"subject": subject}, body, f"policy of {subject}")

    async def delete_rules(self, subject: str, resource: str = "") -> None:
        """Those for a resource, or all."""
        fields = {"subject": subject, "policyType": "Custom", "resource": resource}
        await self._tell(RequestCode.AUTH_DELETE_ACL, fields, None, f"policy of {subject}")

    async def add_token(self, user: str, expires_ms: int, note: str = "") -> tuple[str, str]:
        """A token that stands for the user until then (the wall clock): its id, and its text, which no server is told and nobody can ask for
        later."""
        name, text = own.make()
        body = {"id": name, "hash": own.parse(text)[1], "expiresMs": expires_ms, "note": note}
        await self._tell(ADD_TOKEN, {"username": user}, body, f"a token of {user}")
        return name, text

    async def tokens(self, user: str = "") -> list[dict[str, Any]]:
        """Of a user, or all: `id`, `username`, `madeMs`, `expiresMs`, `note`, `state`."""
        found: list[dict[str, Any]] = await self._ask(LIST_TOKENS, {"username": user}, "tokens")
        return found

    async def delete_token(self, name: str) -> None:
        """By its id. Raises NOT_FOUND."""
        await self._tell(DELETE_TOKEN, {"tokenId": name}, None, f"token {name}")

    async def audit(self, after: dict[str, int] | None = None, last: int = 100) -> dict[str, dict[str, Any]]:
        """Events of the audit trail by broker address, as `overview_codes.AUDIT` says: from the offset in `after` on, else the `last` ones."""
        found = {}
        for address in await self._masters():
            fields = {"offset": str((after or {}).get(address, -last))}
            answer = await self._admin.client.ask(address, Command(AUDIT, fields), "the audit trail")
            found[address] = msgspec.json.decode(answer.body)
        return found

    async def status(self) -> dict[str, dict[str, Any]]:
        """What is open to whom, by broker address, as `overview_codes.AUTH_STATUS` says."""
        found = {}
        for address in await self._masters():
            answer = await self._admin.client.ask(address, Command(AUTH_STATUS, {}), "what is open")
            found[address] = msgspec.json.decode(answer.body)
        return found

    async def explain(self, **fields: str) -> dict[str, Any]:
        """`allowed` and `rule` for `user`, `action`, `resource`, `address`, `clientId`."""
        found: dict[str, Any] = await self._ask(EXPLAIN, fields, "a decision")
        return found

    async def _masters(self) -> list[str]:
        return sorted((await self._admin.cluster()).masters().values())

    async def _ask(self, code: int, fields: dict[str, str], what: str) -> Any:
        command = Command(code, {name: value for name, value in fields.items() if value})
        answer = await self._admin.client.ask((await self._masters())[0], command, what)
        return msgspec.json.decode(answer.body) if answer.body else None

    async def _tell(self, code: int, fields: dict[str, str], body: Any, what: str) -> None:
        data = msgspec.json.encode(body) if body is not None else b""
        for address in await self._masters():
            command = Command(code, {name: value for name, value in fields.items() if value}, data)
            await self._admin.client.ask(address, command, what)
