"""Lines of settings in TOML files."""

from __future__ import annotations

import tomllib

from hypothesis import given
from hypothesis import strategies as st

from gantrymq.toml_lines import lines_of

TEXT = '''# a comment with [brackets] and "quotes"
loose = 1
inline = {port = 1, name = "a # b"}
dotted.port = 2

[server]          # why
host = "[not a header]"
data = """
[mqtt]
port = 1 \\""" = 2
"""
nameserver = \'\'\'
a = 1\'\'\'

[ "mqtt" ]
names = [
    "a = 1",   # b = 2
    "]",
]
"port" = 3
'max' = 4
deep.er = 5
[mqtt.tls]
key = 6
[[list]]
x = 7
'''


def test_every_way_to_write_a_setting() -> None:
    tomllib.loads(TEXT)
    lines = TEXT.splitlines()
    found = {name: lines[line - 1] for name, line in lines_of(TEXT).items()}
    assert found == {
        ("loose", ""): "loose = 1",
        ("inline", ""): 'inline = {port = 1, name = "a # b"}',
        ("dotted", ""): "dotted.port = 2",
        ("dotted", "port"): "dotted.port = 2",
        ("server", ""): "[server]          # why",
        ("server", "host"): 'host = "[not a header]"',
        ("server", "data"): 'data = """',
        ("server", "nameserver"): "nameserver = '''",
        ("mqtt", ""): '[ "mqtt" ]',
        ("mqtt", "names"): "names = [",
        ("mqtt", "port"): '"port" = 3',
        ("mqtt", "max"): "'max' = 4",
        ("mqtt", "deep"): "deep.er = 5",
        ("mqtt", "tls"): "[mqtt.tls]",
        ("list", ""): "[[list]]",
        ("list", "x"): "x = 7",
    }


def quoted(text: str) -> str:
    return '"' + "".join([f"\\U{ord(char):08x}" if not char.isalnum() else char for char in text]) + '"'


names = st.text("ab.\" '\\#=[]\n", max_size=4)
values = st.one_of(
    st.integers().map(str),
    st.text("a\"'#=[]{}\n\\", max_size=8).map(quoted),
    st.text('a\n#=[]" ', max_size=8).map(lambda text: f"'''{text}'''"),
    st.lists(st.sampled_from(['"]"', "'#'", "1", "# x\n2"]), max_size=3).map(
        lambda items: "[\n" + ",\n".join(items) + "\n]"
    ),
)


@given(st.dictionaries(names, st.dictionaries(names.filter(bool), values, max_size=4), max_size=4))
def test_whatever_the_file_holds(tables: dict[str, dict[str, str]]) -> None:
    text, expected = "", {}
    for section, table in tables.items():
        expected[section, ""] = text.count("\n") + 1
        text += f"[{quoted(section)}]\n"
        for key, value in table.items():
            text += "\n# [no] x = 1\n"
            expected[section, key] = text.count("\n") + 1
            text += f"{quoted(key)} = {value}\n"
    tomllib.loads(text)
    assert lines_of(text) == expected
