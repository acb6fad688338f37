"""What `gantry up` says after `ready` to somebody who has just started it: three lines to try, and who may come in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

DEFAULT_NAMESERVER: Final = "127.0.0.1:9876"


def first_steps(addresses: Mapping[str, str], command: str = "gantry", auth: bool = False) -> list[str]:
    """Lines for a process with these doors (service to `host:port`); none for one that is not a broker with its nameserver. `command`: how `gantry`
    is typed here. `auth`: clients are asked who they are."""
    if not {"nameserver", "broker"} <= addresses.keys():
        return []
    if auth:
        return [f"clients sign in: GANTRY_USER and GANTRY_PASSWORD for {command} user, policy ...; Ctrl-C stops"]
    nameserver = addresses["nameserver"]
    named = "" if nameserver == DEFAULT_NAMESERVER else f" --nameserver {nameserver}"
    lines = [f"try  {command} send hello 'Hi!' --tag a.b{named} && {command} message tail hello{named}"]
    if "mqtt" in addresses:
        host, _, port = addresses["mqtt"].rpartition(":")
        lines.append(f"     mosquitto_pub -h {host.strip('[]')} -p {port} -t hello/a/b -m 'Hi!'")
    else:
        lines.append(f"     {command} topic list{named}")
    lines.append(f"     {command} top{named}")
    return [*lines, "nobody is authenticated: whoever reaches these doors may read and write; Ctrl-C stops"]
