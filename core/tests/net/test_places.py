"""Places as people write them."""

import pytest

from gantrymq.net.places import Place, join_address, parse_place, split_address
from gantrymq.net.tls.contexts import TlsConfig


def test_places() -> None:
    assert parse_place("tcp://127.0.0.1:1883") == Place("127.0.0.1", 1883)
    assert parse_place("any://[::1]:0") == Place("::1", 0, "any")
    place = parse_place("tls://broker.example:8883?client_cert=required&cert=/etc/a%20b.pem")
    assert place == Place("broker.example", 8883, "tls", {"client_cert": "required", "cert": "/etc/a b.pem"})
    assert str(place) == "tls://broker.example:8883"
    assert str(parse_place("any://[::1]:1")) == "any://[::1]:1"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("127.0.0.1:1883", "must begin with tcp://, tls://, any://"),
        ("http://127.0.0.1:1883", "must begin with"),
        ("tls://:8883", "must be SCHEME://HOST:PORT"),
        ("tls://127.0.0.1", "must be SCHEME://HOST:PORT"),
        ("tls://127.0.0.1:70000", "out of range"),
        ("tls://127.0.0.1:1/path", "must be SCHEME://HOST:PORT"),
        ("tls://user@127.0.0.1:1", "must be SCHEME://HOST:PORT"),
        ("tcp://127.0.0.1:1?cert=x", "tcp has no option cert; it has user"),
        ("tls://127.0.0.1:1?certificate=x", "tls has no option certificate"),
        ("tls://127.0.0.1:1?cert=x&cert=y", "stands there twice"),
        ("tls://127.0.0.1:1?psk_hint=a", "psk_hint goes with psk_file=FILE"),
        ("tls://127.0.0.1:1?use_identity_as_username=true", "for client certificates there is auth.certificate_user"),
        ("tls://127.0.0.1:1?psk_file=", "psk_file needs the name of a file"),
        ("tls://127.0.0.1:1?psk_file=a&client_cert=required", "not both: give it two ports"),
        ("tls://127.0.0.1:1?psk_file=a&psk_hint=" + "x" * 129, "psk_hint has at most 128 bytes"),
        ("tls://127.0.0.1:1?psk_file=a&use_identity_as_username=yes", "must be true or false"),
        ("tcp://127.0.0.1:1?psk_file=a", "tcp has no option psk_file"),
        ("tls://127.0.0.1:1?client_cert=always", "must be one of none, optional, required"),
        ("tcp://127.0.0.1:1?user=", "user needs a name"),
        ("unix:///run/x?user=", "user, a name"),
    ],
)
def test_what_is_no_place(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint.replace("(", r"\(")):
        parse_place(text)


def test_who_a_client_without_a_name_is() -> None:
    assert parse_place("tcp://127.0.0.1:1?user=legacy").options == {"user": "legacy"}
    assert parse_place("unix:///run/x?user=legacy&mode=600").options == {"mode": "600", "user": "legacy"}
    tls = TlsConfig().of(parse_place("any://127.0.0.1:1?user=legacy&client_cert=optional"))
    assert tls.client_cert == "optional"


def test_a_unix_socket_has_a_path_and_rights() -> None:
    place = parse_place("unix:///run/gantry/mqtt.sock?mode=600")
    assert (place.host, place.port, place.options) == ("/run/gantry/mqtt.sock", 0, {"mode": "600"})
    assert str(place) == "unix:///run/gantry/mqtt.sock"
    assert not place.speaks_tls
    assert parse_place("unix:///a").options == {"mode": "660"}


@pytest.mark.parametrize(
    "text", ["unix://run/a", "unix:///" + "a" * 107, "unix:///a?mode=9", "unix:///a?x=1", "unix://"]
)
def test_what_is_no_unix_socket(text: str) -> None:
    with pytest.raises(ValueError, match="unix"):
        parse_place(text)


@pytest.mark.parametrize("address", ["h:1", "[::1]:65535", "10.0.0.1:80"])
def test_an_address_is_taken_apart_and_put_together(address: str) -> None:
    assert join_address(*split_address(address)) == address
