"""Where the nameservers are: a list, NAMESRV_ADDR, or an HTTP page that names them (RocketMQ's TopAddressing).

The page is asked for when the client first needs a nameserver and again every two minutes; while it cannot be had the last list stays.
"""

from __future__ import annotations

from typing import Final

from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.net.dial.page import get_page
from gantrymq.net.places import split_address

DEFAULT_NAMESERVER: Final = "127.0.0.1:9876"
DISCOVERY_S: Final = 120.0
"""RocketMQ's clients ask every two minutes."""
DISCOVERY_TIMEOUT_S: Final = 3.0
PAGE_BYTES_MAX: Final = 64 * 1024
"""The page holds a few addresses: more is something else."""


def parse_nameservers(text: str) -> list[str]:
    """Addresses of a `;`-joined list; raises ILLEGAL_ARGUMENT naming the bad one."""
    addresses = [address.strip() for address in text.replace(",", ";").split(";") if address.strip()]
    if not addresses:
        raise GantryError(ErrorCode.ILLEGAL_ARGUMENT, "no nameserver: allowed is HOST:PORT, several joined by ;")
    for address in addresses:
        split_address(address)
    return addresses


def is_page(text: str) -> bool:
    """Whether `text` is the address of a page rather than of nameservers."""
    return text.strip().startswith(("http://", "https://"))


async def fetch_nameservers(url: str) -> list[str]:
    """Addresses that the page at `url` names. Raises UNAVAILABLE or ILLEGAL_ARGUMENT, naming the page."""
    page = await get_page(url, DISCOVERY_TIMEOUT_S, PAGE_BYTES_MAX)
    try:
        return parse_nameservers(page.decode("utf-8", "replace").strip().replace("\n", ";"))
    except GantryError as error:
        raise GantryError(error.code, f"{url}: {error.text}") from None
