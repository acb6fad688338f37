"""Both sides of the handshake between processes, and what does not pass."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from gantrymq.auth.keys import KeyFileError
from gantrymq.auth.members.handshake import Applicant, MemberError, Porter
from gantrymq.auth.members.key import ClusterKey, parse_key, read_key_file

KEY = "0123456789abcdef" * 4
OTHER = "fedcba9876543210" * 4


def key(*texts: str) -> ClusterKey:
    return parse_key("\n".join(texts))


def shake(applicant: Applicant, porter: Porter) -> None:
    porter.finish(applicant.finish(porter.begin(applicant.begin())))


def test_both_have_the_key() -> None:
    porter = Porter(key(KEY))
    shake(Applicant(key(KEY), "broker a"), porter)
    assert porter.shown
    assert porter.name == "broker a"


def test_a_key_is_replaced_process_by_process() -> None:
    old, both, turned, new = key(KEY), key(KEY, OTHER), key(OTHER, KEY), key(OTHER)
    together = [(old, both), (both, turned), (turned, new)]
    for step in together:
        for one, other in itertools.product(step, step):
            porter = Porter(other)
            shake(Applicant(one, "gateway"), porter)
            assert porter.shown
    with pytest.raises(MemberError):
        shake(Applicant(old, "gateway"), Porter(new))


def test_another_key_is_told_by_its_id() -> None:
    with pytest.raises(MemberError) as raised:
        shake(Applicant(key(OTHER), "broker a"), Porter(key(KEY)))
    text = str(raised.value)
    assert "broker a has another cluster key" in text
    assert key(OTHER).id in text
    assert key(KEY).id in text
    assert KEY[:16] not in text
    assert OTHER[:16] not in text


def test_who_only_says_that_it_has_the_key_is_no_member() -> None:
    """Whoever knows the id of the key, which is no secret."""
    applicant, porter = Applicant(key(KEY), "gateway"), Porter(key(KEY))
    porter.begin(applicant.begin())
    with pytest.raises(MemberError, match="does not show"):
        porter.finish({"proof": "00" * 32})
    assert not porter.shown
    with pytest.raises(MemberError, match="does not show"):
        Applicant(key(KEY), "gateway").finish({"nonce": "00" * 32, "proof": "00" * 32})


def test_no_proof_can_be_sent_back_or_again() -> None:
    """[C13] A proof is bound to its side, its name and both nonces."""
    applicant, porter = Applicant(key(KEY), "gateway"), Porter(key(KEY))
    answer = porter.begin(applicant.begin())
    with pytest.raises(MemberError):
        porter.finish({"proof": answer["proof"]})  # what it said itself
    proof = applicant.finish(answer)
    with pytest.raises(MemberError):
        porter.finish(proof)  # its challenge is used up
    again = Porter(key(KEY))
    again.begin(applicant.begin())
    with pytest.raises(MemberError):
        again.finish(proof)  # another nonce
    named = Porter(key(KEY), lambda count: bytes.fromhex(answer["nonce"]))
    named.begin(applicant.begin() | {"name": "broker b"})
    with pytest.raises(MemberError):
        named.finish(proof)  # another name


def test_one_beginning_per_connection() -> None:
    porter = Porter(key(KEY))
    porter.begin(Applicant(key(KEY), "gateway").begin())
    with pytest.raises(MemberError, match="a second time"):
        porter.begin(Applicant(key(KEY), "gateway").begin())
    with pytest.raises(MemberError):
        Porter(key(KEY)).finish({"proof": ""})


@pytest.mark.parametrize(
    "said",
    [
        {"name": ""},
        {"name": "a\nb"},
        {"name": "x" * 256},
        {"nonce": ""},
        {"nonce": "zz"},
        {"nonce": "00" * 31},
        {"key": "x" * 999},
    ],
)
def test_what_is_no_beginning(said: dict[str, str]) -> None:
    with pytest.raises(MemberError) as raised:
        Porter(key(KEY)).begin(Applicant(key(KEY), "gateway").begin() | said)
    assert len(str(raised.value)) < 400


@pytest.mark.parametrize("text", ["", "# only a remark\n", "short", "ü" * 40, "\n".join([KEY] * 9)])
def test_what_is_no_key(text: str) -> None:
    with pytest.raises(KeyFileError) as raised:
        parse_key(text)
    assert KEY not in str(raised.value)


def test_a_key_shows_itself_nowhere() -> None:
    assert KEY not in repr(key(KEY))
    assert KEY not in f"{key(KEY)}"


def test_the_file_of_a_key(tmp_path: Path) -> None:
    path = tmp_path / "cluster.key"
    with pytest.raises(KeyFileError, match="No such file"):
        read_key_file(path)
    path.write_text(f"# made on Monday\n{KEY}\n{OTHER}\n")
    path.chmod(0o600)
    assert read_key_file(path).ids() == f"{key(KEY).id}, {key(OTHER).id}"
    path.chmod(0o660)
    with pytest.raises(KeyFileError, match="others may write"):
        read_key_file(path)
