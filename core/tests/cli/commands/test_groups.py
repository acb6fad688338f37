"""What members of a group want, and where they differ."""

from __future__ import annotations

from rich.console import Console

from gantrymq.cli.commands.groups import GroupView, Member, offsets, picture


def fetch(*wants: dict[str, str] | None) -> GroupView:
    found = GroupView("g")
    for number, wish in enumerate(wants):
        member = found.members[f"c{number}"] = Member(f"c{number}", "1.2.3.4:5", "JAVA", 479)
        member.wants = wish
    return found


def test_conflicts() -> None:
    assert fetch({"t": "a || b"}, {"t": "b||a"}).conflicts() == {}
    assert fetch({"t": "a"}, {"t": "b"}, {"t": "a"}).conflicts() == {"t": {"a": ["c0", "c2"], "b": ["c1"]}}
    assert fetch({"t": "*", "u": "*"}, {"t": "*"}).conflicts() == {"u": {"*": ["c0"], "(nothing)": ["c1"]}}
    assert fetch({"t": "a"}, None, {}).conflicts() == {}  # who does not say is no part of it
    assert fetch({"%RETRY%g": "*", "t": "*"}, {"t": "*"}).conflicts() == {}


def test_picture_names_the_conflict_and_what_to_do() -> None:
    found = fetch({"t": "a"}, {"t": "b"})
    found.queues = [{"topic": "t", "broker": "b", "queue": 0, "committed": 3, "end": 10, "lag": 7, "consumed": 0}]
    console = Console(width=50, record=True, quiet=False)
    with console.capture() as capture:
        console.print(picture(found, None))
    text = capture.get()
    assert "lag 7" in text
    assert "want different things" in text
    assert "groups of their own" in text
    assert found.lag == 7
    assert found.known()
    assert not GroupView("x").known()


def test_offsets_are_the_table_alone() -> None:
    found = fetch({"t": "a"})
    found.queues = [{"topic": "t", "broker": "b", "queue": 0, "committed": 3, "end": 10, "lag": 7, "consumed": 0}]
    console = Console(width=80)
    with console.capture() as capture:
        console.print(offsets(found, None, "group g"))
    lines = [line.split() for line in capture.get().splitlines()]
    assert [lines[0], lines[1], *lines[3:]] == [
        ["group", "g"],
        ["topic", "broker", "queue", "committed", "end", "lag", "last"],
        ["t", "b", "0", "3", "10", "7", "-"],
        ["lag", "7"],
    ]
