"""docs/client-reference.md lists what `gantrymq.client` has; `python core/tests/client/test_reference_doc.py` writes its tables anew.

Everything is read from the sources, so that a compiled build has the same page: texts from docstrings (`Arguments:` and `Attributes:` of
classes), types and defaults from what is annotated.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from enum import Enum
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import FunctionType

import gantrymq.client
from gantrymq.client import BlockingProducer, ErrorCode, OutMessage, SendResult
from gantrymq.client.errors import ERROR_CODES

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "client-reference.md"
MARK = "<!-- what follows is written by core/tests/client/test_reference_doc.py -->"

CHAPTERS = {
    "Messages and results": (
        "OutMessage", "SendResult", "TransactionResult", "Fate", "ReceivedMessage", "PullResult", "Received", "Receipt",
        "MessageQueue", "Route", "Subscription", "ClusterInfo", "QueueStats", "QueueProgress", "GroupMember",
    ),
    "Clients": ("Producer", "PushConsumer", "PullConsumer", "SimpleConsumer", "Admin", "Client"),
    "Without an event loop": (
        "BlockingProducer", "BlockingPushConsumer", "BlockingPullConsumer", "BlockingSimpleConsumer", "BlockingAdmin",
    ),
    "Errors": ("GantryError", "ErrorCode", "BrokerError", "PartialSendError", "RetryLater"),
    "Functions and constants": ("DEAD_LETTER", "decode_records"),
}  # fmt: skip
CALLBACKS = {
    "Handler": "pushing.handlers", "BatchHandler": "pushing.handlers", "LocalTransaction": "producing.transactions", "CheckTransaction": "producing.transactions",
    "Selector": "producing.sending", "Strategy": "allocation",
}  # fmt: skip
"""Names in signatures that stand for types of functions, and the modules of `gantrymq.client` that have them."""
UNITS = {"_ms": "milliseconds since the epoch", "_s": "seconds", "body": "bytes"}
SEE = re.compile(r"See `(\w+)(?:\.(\w+))?`")
MODULE = re.compile(r"\b[a-z]+\.(?=[A-Z])")
ENTRY = re.compile(r"(\w+)(?: \((.*?)\))?: (.+)")


@cache
def tree_of(module: str) -> ast.Module:
    path = importlib.import_module(module).__file__
    assert path is not None
    source = Path(path)
    return ast.parse((source.parent / (source.name.partition(".")[0] + ".py")).read_text(encoding="utf-8"))


def class_of(kind: type) -> ast.ClassDef:
    found = [node for node in tree_of(kind.__module__).body if isinstance(node, ast.ClassDef)]
    return next(node for node in found if node.name == kind.__name__)


def bases_of(kind: type) -> list[type]:
    """The class and what it is made from, as far as it is ours."""
    return [base for base in kind.__mro__ if base.__module__.startswith("gantrymq.")]


def parts_of(kind: type) -> dict[str, str]:
    """A class docstring's sections; what stands before them is called `text`."""
    parts = re.split(r"\n\n(Arguments|Attributes):\n", docstring(class_of(kind)))
    return {"text": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}


def docstring(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    return ast.get_docstring(node) or ""


def entries(section: str) -> dict[str, tuple[str, str]]:
    """Name to (type or empty, text) of a section, whose texts may go on in lines that are indented further."""
    joined = re.sub(r"\n {5,}", " ", section)
    found = [ENTRY.fullmatch(line.strip()) for line in joined.splitlines() if line.strip()]
    assert all(found), section
    return {match[1]: (match[2] or "", match[3]) for match in found if match}


def fields_of(kind: type) -> dict[str, tuple[str, str]]:
    """Public fields with types and defaults (source text), as the code has them: annotated ones, members, those that the constructor sets."""
    node, found = class_of(kind), dict[str, tuple[str, str]]()
    for line in node.body:
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            found[line.target.id] = (annotation_of(line.annotation), ast.unparse(line.value) if line.value else "")
        elif isinstance(line, ast.Assign) and issubclass(kind, Enum) and isinstance(line.targets[0], ast.Name):
            found[line.targets[0].id] = (str(getattr(kind, line.targets[0].id).value), "")
    for base in bases_of(kind):
        for function in methods(base):
            if function.name == "__init__":
                found.update(dict.fromkeys(set_in(function), ("", "")))
    return {name: what for name, what in found.items() if not name.startswith("_")}


def set_in(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    for node in ast.walk(function):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            yield node.attr


def methods(kind: type) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [node for node in class_of(kind).body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def made_methods(kind: type) -> dict[str, tuple[type, ast.FunctionDef]]:
    """Those that a blocking class has of its twin: `name = waits(Twin.name)`."""
    found = {}
    for node in class_of(kind).body:
        match node:
            case ast.Assign(
                value=ast.Call(func=ast.Name("waits" | "calls"), args=[ast.Attribute(ast.Name(twin), name)])
            ):
                home, inner = public_methods(getattr(gantrymq.client, twin))[name]
                found[name] = (home, ast.FunctionDef(**{field: getattr(inner, field) for field in inner._fields}))
    return found


def documented(kind: type, section: str) -> dict[str, tuple[str, str]]:
    """A section's entries, those of the classes that it is made from last."""
    found: dict[str, tuple[str, str]] = {}
    for base in bases_of(kind):
        for name, what in entries(parts_of(base).get(section, "")).items():
            found.setdefault(name, what)
    return found


def public_methods(kind: type) -> dict[str, tuple[type, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Those that are the user's: what other parts of the client call says `See ConsumerMember`."""
    found: dict[str, tuple[type, ast.FunctionDef | ast.AsyncFunctionDef]] = {}
    for base in bases_of(kind):
        found.update(made_methods(base))
        for node in methods(base):
            if not node.name.startswith("_") and not docstring(node).startswith("See `ConsumerMember`"):
                found.setdefault(node.name, (base, node))
    return found


def text_of(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """A method's text in one line; of a blocking one that of its twin, with what it adds."""
    first = " ".join(docstring(node).split())
    twin = SEE.match(first)
    if twin is None or twin[2] is None:
        return first
    _, node = public_methods(getattr(gantrymq.client, twin[1]))[twin[2]]
    return f"{text_of(node)}{first[twin.end() :].removeprefix('.')}"


def default_of(node: ast.expr, module: str) -> str:
    """As a reader would write it: values of constants, names of functions."""
    value = eval(ast.unparse(node), dict(vars(importlib.import_module(module))))
    return value.__name__ if isinstance(value, FunctionType) else repr(int(value) if isinstance(value, Enum) else value)


def signature_of(node: ast.FunctionDef | ast.AsyncFunctionDef, module: str) -> str:
    """The call without `self`."""
    arguments = node.args
    bare = [None] * (len(arguments.args) - len(arguments.defaults))
    plain = [
        shown_argument(argument, default, module)
        for argument, default in zip(arguments.args, [*bare, *arguments.defaults], strict=True)
        if argument.arg not in ("self", "cls")
    ]
    named = [
        shown_argument(argument, default, module)
        for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    ]
    star = [f"*{shown_argument(arguments.vararg, None, module)}"] if arguments.vararg else ["*"] * bool(named)
    wait = "await " if isinstance(node, ast.AsyncFunctionDef) else ""
    back = annotation_of(node.returns)
    return f"{wait}{node.name}({', '.join(plain + star + named)})" + ("" if back == "None" else f" -> {back}")


def shown_argument(argument: ast.arg, default: ast.expr | None, module: str) -> str:
    value = f" = {default_of(default, module)}" if default is not None else ""
    return f"{argument.arg}: {annotation_of(argument.annotation)}{value}"


def annotation_of(node: ast.expr | None) -> str:
    """A type without the module that it is written with."""
    assert node is not None
    return MODULE.sub("", ast.unparse(node))


def cell(text: str) -> str:
    return text.replace("|", "\\|")


def table(*head: str) -> list[str]:
    return ["", row(*head), row(*["---"] * len(head))]


def row(*cells: str) -> str:
    return f"| {' | '.join(map(cell, cells))} |"


def with_unit(name: str, kind: str) -> str:
    unit = next((unit for end, unit in UNITS.items() if name.endswith(end)), "")
    return f"`{kind}`, {unit}" if unit and kind not in ("bytes",) else f"`{kind}`"


def render_arguments(kind: type) -> Iterator[str]:
    twin = gantrymq.client.__dict__.get(kind.__name__.removeprefix("Blocking"))
    if kind.__name__.startswith("Blocking"):
        yield f"\nArguments: those of [`{twin.__name__}`](#{twin.__name__.lower()}) but `client`."
        return
    said = documented(kind, "Arguments")
    if not said:
        return
    yield from table("argument", "type", "default", "what it is")
    own = next(node for base in bases_of(kind) for node in methods(base) if node.name == "__init__")
    module = next(base for base in bases_of(kind) if "__init__" in vars(base)).__module__
    arguments = own.args.args[1:] + own.args.kwonlyargs
    defaults = [*own.args.defaults, *own.args.kw_defaults]
    for argument, default in zip(arguments, defaults, strict=True):
        assert default is not None
        annotation = with_unit(argument.arg, annotation_of(argument.annotation))
        shown = default_of(default, module).replace("''", "empty")
        yield row(f"`{argument.arg}`", annotation, shown, said[argument.arg][1])


def render_fields(kind: type) -> Iterator[str]:
    said, there = documented(kind, "Attributes"), fields_of(kind)
    found = []
    for name, (given, text) in said.items():
        annotation, default = there.get(name) or ("", "")
        found.append((name, annotation or given, default, text))
    for name, (_, node) in public_methods(kind).items():
        if has_decorator(node, "property"):
            found.append((name, annotation_of(node.returns), "", f"{text_of(node)} Read only."))
    if not found:
        return
    head = "member" if issubclass(kind, Enum) else "attribute"
    with_defaults = any(default for _, _, default, _ in found)
    yield from table(head, "value" if head == "member" else "type", *["default"] * with_defaults, "what it is")
    for name, annotation, default, text in found:
        shown = [default.replace("''", "empty").replace("field(default_factory=dict)", "{}")] * with_defaults
        yield row(f"`{name}`", with_unit(name, annotation), *shown, text)


def has_decorator(node: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> bool:
    return any(ast.unparse(decorator) == name for decorator in node.decorator_list)


def render_methods(kind: type) -> Iterator[str]:
    found = [(base, node) for base, node in public_methods(kind).values() if not has_decorator(node, "property")]
    if found:
        yield from table("method", "what it does")
    for base, node in found:
        of_class = f"{kind.__name__}." if has_decorator(node, "classmethod") else ""
        yield row(f"`{of_class}{signature_of(node, base.__module__)}`", text_of(node))


def render_codes() -> Iterator[str]:
    yield from table("code", "meaning", "RocketMQ's response codes that become it")
    for code in ErrorCode:
        answers = [f"{answer.name} ({answer.value})" for answer, kept in ERROR_CODES.items() if kept is code]
        rest = ["any other"] if code is ErrorCode.UNAVAILABLE else []
        yield row(f"`{code.name}`", code.value, ", ".join(answers + rest))


def render_name(name: str) -> Iterator[str]:
    """A heading, the text, and tables of what there is."""
    thing = getattr(gantrymq.client, name)
    yield f"\n### {name}\n"
    if isinstance(thing, type):
        bases = [base.__name__ for base in bases_of(thing)[1:] if not base.__name__.startswith(("_", "Part"))]
        text = parts_of(thing)["text"]
        yield text + (f" A `{bases[0]}`." if bases else "")
        if thing is ErrorCode:
            yield from render_codes()
            return
        yield from render_arguments(thing)
        yield from render_fields(thing)
        yield from render_methods(thing)
    elif callable(thing):
        node = next(node for node in tree_of(thing.__module__).body if getattr(node, "name", "") == name)
        assert isinstance(node, ast.FunctionDef)
        yield f"`{signature_of(node, thing.__module__)}`: {text_of(node)}"
    else:
        yield f"`{thing!r}`: {CONSTANTS[name]}"


CONSTANTS = {
    "DEAD_LETTER": "`RetryLater(DEAD_LETTER)`: no further attempt; the message goes to `%DLQ%` and the group's name."
}


def render_callbacks() -> Iterator[str]:
    yield "\n## Types of functions"
    yield from table("name", "type", "what it is")
    for name, module in CALLBACKS.items():
        body = tree_of(f"gantrymq.client.{module}").body
        for line, text in pairwise(body):
            if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == name:
                assert isinstance(text, ast.Expr)
                yield row(f"`{name}`", f"`{annotation_of(line.value)}`", " ".join(ast.literal_eval(text.value).split()))


def render() -> str:
    lines: list[str] = []
    for chapter, names in CHAPTERS.items():
        lines.append(f"\n## {chapter}")
        for name in names:
            lines += render_name(name)
    lines += render_callbacks()
    return "\n".join(lines) + "\n"


def classes() -> list[type]:
    return [thing for name in gantrymq.client.__all__ if isinstance(thing := getattr(gantrymq.client, name), type)]


def test_every_public_name_has_its_place() -> None:
    assert sorted(name for names in CHAPTERS.values() for name in names) == sorted(gantrymq.client.__all__)


def test_every_field_says_what_it_is() -> None:
    wrong = {
        kind.__name__: fields_of(kind).keys() ^ documented(kind, "Attributes").keys()
        for kind in classes()
        if kind is not ErrorCode and fields_of(kind).keys() != documented(kind, "Attributes").keys()
    }
    assert not wrong, "the Attributes of the class docstring are not the fields"


def test_every_field_has_a_type() -> None:
    assert "``" not in re.sub(r"(?m)^```", "", render())


def test_every_argument_and_method_says_what_it_is() -> None:
    for name in CHAPTERS["Clients"]:
        kind = getattr(gantrymq.client, name)
        assert list(inspect.signature(kind).parameters) == list(documented(kind, "Arguments")), name
    untold = [
        (kind, name) for kind in classes() for name, (_, node) in public_methods(kind).items() if not text_of(node)
    ]
    assert not untold


def test_every_type_of_function_is_there() -> None:
    assert [line.split("`")[1] for line in render_callbacks() if line.startswith("| `")] == list(CALLBACKS)


def test_help_names_fields_and_arguments() -> None:
    assert list(inspect.signature(SendResult).parameters) == list(SendResult._fields)
    assert "delay_level" in inspect.signature(OutMessage.__init__).parameters
    blocking = inspect.signature(BlockingProducer.__init__).parameters
    assert {"nameserver", "group", "retries", "compress_over"} < blocking.keys()
    assert not {"settings", "client"} & blocking.keys()
    assert "durable: " in (inspect.getdoc(SendResult) or "")


def test_the_page_lists_everything_as_it_is() -> None:
    head, mark, tables = PAGE.read_text(encoding="utf-8").partition(MARK + "\n")
    assert head
    assert mark, f"{PAGE.name} lost the mark {MARK}"
    assert tables == render(), "the client changed: run python core/tests/client/test_reference_doc.py"


if __name__ == "__main__":
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(page.partition(MARK)[0] + MARK + "\n" + render(), encoding="utf-8")
