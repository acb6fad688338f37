"""The rules that no linter knows: lengths, banned imports, orphans, sleeping tests, leaked paths, modules that nobody tests."""

import ast
import gc
import re
import subprocess
import tomllib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE_ROOTS = ("core", "gateways", "nameserver")
FILE_LINES_MAX = 800
FUNCTION_LINES_MAX = 70
FOLDER_MODULES_MAX = 12

SANS_IO_BANNED = {"asyncio", "anyio", "random", "socket", "time"}
NEVER_ORPHANS = {"__init__.py", "__main__.py", "testing.py"}
VAGUE_NAMES = {"common.py", "helpers.py", "utils.py"}
# Spelled in parts, so that this file does not find itself.
UNFINISHED = re.compile(r"\b(?:" + "|".join(["TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK"]) + r")\b")
FOREIGN_PATHS = re.compile("|".join(["[.][.]/sha" + "red", "/wo" + "rk/", "/fa" + "rm/"]))
REGISTRY = re.compile(r"https?:|--(?:extra-)?index-url|--find-links|--trusted-host|pypi\.|pythonhosted")


@dataclass(frozen=True)
class Source:
    """One Python file of the project; `name` is its path from the root."""

    name: str
    text: str

    @cached_property
    def path(self) -> PurePosixPath:
        return PurePosixPath(self.name)

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.name)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(self.tree))

    @property
    def is_product(self) -> bool:
        return self.path.parts[0] in SOURCE_ROOTS and "tests" not in self.path.parts

    @property
    def is_test(self) -> bool:
        """The load generators and the demonstration keep a pace: they are programs."""
        programs = self.name.startswith(("interop_tests/bench/", "interop_tests/demo"))
        return "tests" in self.path.parts or (self.path.parts[0] == "interop_tests" and not programs)

    @property
    def is_sans_io(self) -> bool:
        inside = self.name.startswith(("core/gantrymq/broker/", "core/gantrymq/store/"))
        return self.is_product and (inside or self.path.name in {"codec.py", "connection.py"})

    @property
    def module(self) -> str:
        """Dotted name that a product file is imported by."""
        parts = self.path.with_suffix("").parts[1:]
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def project_files() -> list[str]:
    """Files that are, or are about to be, in the repository, also where the checkout is another user's, which git would not read."""
    command = ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout.split("\0")
    return sorted({name for name in names if name and (ROOT / name).is_file()})


@pytest.fixture(scope="module", autouse=True)
def trees() -> Iterator[None]:
    """The trees of all files are 3 million objects, in which the collector of garbage would look again and again: here, and in all tests that follow."""
    gc.disable()
    yield
    sources.cache_clear()
    gc.enable()


@cache
def sources() -> tuple[Source, ...]:
    names = [name for name in project_files() if name.endswith(".py")]
    return tuple(Source(name, (ROOT / name).read_text("utf-8")) for name in names)


def imported_modules(source: Source, package: str = "") -> Iterator[tuple[int, str]]:
    """(line, dotted name) of everything imported, `from a import b` as both `a` and `a.b`."""
    for node in source.nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parents, *([base] if base else [])])
            yield node.lineno, base
            for alias in node.names:
                yield node.lineno, f"{base}.{alias.name}"


def long_files(source: Source) -> Iterator[str]:
    lines = source.text.count("\n")
    if lines > FILE_LINES_MAX:
        yield f"{source.name}: {lines} lines, at most {FILE_LINES_MAX}"


def long_functions(source: Source) -> Iterator[str]:
    if not source.is_product:
        return
    for node in source.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                place = f"{source.name}:{node.lineno}: {node.name}"
                yield f"{place} has {lines} lines, at most {FUNCTION_LINES_MAX}"


def banned_imports(source: Source) -> Iterator[str]:
    if not source.is_sans_io:
        return
    for line, name in imported_modules(source):
        if name in SANS_IO_BANNED:
            yield f"{source.name}:{line}: imports {name}; clock, chance, disk and network are arguments"


def vague_names(source: Source) -> Iterator[str]:
    if source.is_product and source.path.name in VAGUE_NAMES:
        yield f"{source.name}: name the module after what is in it"


def _catches_everything(node: ast.AST | None) -> bool:
    return node is None or (isinstance(node, ast.Name) and node.id in {"Exception", "BaseException"})


def swallowed_failures(source: Source) -> Iterator[str]:
    for node in source.nodes:
        match node:
            case ast.ExceptHandler(type=kind, body=body) if _catches_everything(kind):
                if all(isinstance(step, ast.Pass | ast.Continue) for step in body):
                    yield f"{source.name}:{node.lineno}: swallows every exception"
            case ast.Call(func=ast.Name("suppress") | ast.Attribute(attr="suppress"), args=kinds):
                if any(_catches_everything(kind) for kind in kinds):
                    yield f"{source.name}:{node.lineno}: suppresses every exception"


def _dotted(node: ast.AST) -> str:
    """`a.b.c` as it is written; empty for anything else."""
    names = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(names)]) if isinstance(node, ast.Name) else ""


def _sleep_names(source: Source) -> set[str]:
    names = {"anyio.sleep", "asyncio.sleep", "time.sleep"}
    for node in source.nodes:
        if isinstance(node, ast.ImportFrom) and node.module in {"anyio", "asyncio", "time"}:
            names.update(alias.asname or alias.name for alias in node.names if alias.name == "sleep")
    return names


def sleeping_tests(source: Source) -> Iterator[str]:
    if not source.is_test:
        return
    names = _sleep_names(source)
    for node in source.nodes:
        match node:
            case ast.Call(args=[ast.Constant(0)]):
                pass
            case ast.Call(func=function) if _dotted(function) in names:
                yield f"{source.name}:{node.lineno}: sleeps; wait for the condition instead"


def unfinished_work(source: Source) -> Iterator[str]:
    for number, line in enumerate(source.text.splitlines(), 1):
        if UNFINISHED.search(line):
            yield f"{source.name}:{number}: {line.strip()[:80]}"


DANGEROUS_MODULES = {"marshal", "pickle", "shelve", "telnetlib", "xmlrpc"}
DANGEROUS_CALLS = {
    "eval",
    "exec",
    "compile",
    "__import__",
    "os.system",
    "os.popen",
    "yaml.load",
    "yaml.unsafe_load",
    "tempfile.mktemp",
}


def dangerous_calls(source: Source) -> Iterator[str]:
    """What turns bytes of a stranger into code or a command line (ActiveMQ CVE-2023-46604, RocketMQ CVE-2023-33246)."""
    if not source.is_product:
        return
    for line, name in imported_modules(source):
        if name.partition(".")[0] in DANGEROUS_MODULES:
            yield f"{source.name}:{line}: imports {name}: no objects are made of what others wrote"
    for node in source.nodes:
        if not isinstance(node, ast.Call):
            continue
        if (called := _dotted(node.func)) in DANGEROUS_CALLS:
            yield f"{source.name}:{node.lineno}: calls {called}"
        shells = [word.value for word in node.keywords if word.arg == "shell"]
        if any(not isinstance(value, ast.Constant) or value.value for value in shells):
            yield f"{source.name}:{node.lineno}: starts a shell"


PRIVATE_WORDS = {
    "alike", "aside", "divert", "diverted", "diverts", "founder", "founders", "heir", "heirs", "hits", "intake", "intakes", "lone", "look", "taken",
}  # fmt: skip
"""Words of our own for what has a plain name; the glossary (docs/architecture/glossary.md) says which."""
WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def _identifiers(source: Source) -> Iterator[tuple[int, str]]:
    """Names that are given: of variables, arguments, attributes, functions and classes. A test's name is a sentence."""
    for node in source.nodes:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) if name.startswith("test_"):
                continue
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield node.lineno, name
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield node.lineno, name


def private_words(source: Source) -> Iterator[str]:
    names = [(0, source.path.stem), *_identifiers(source)] if source.is_product else _identifiers(source)
    for line, name in names:
        words = [word.lower() for word in WORD.findall(name)]
        if not PRIVATE_WORDS.isdisjoint(words) and ("taken" not in words or "taken_back" in name.lower()):
            yield f"{source.name}:{line}: {name}: use the field's word (docs/architecture/glossary.md)"


GIVES_TO_CONSUMERS = ("administration/", "remoting/", "broker/consuming/cursors.py", "broker/pop/", "broker/lags.py")


def ends_read_directly(source: Source) -> Iterator[str]:
    """What consumers are given ends in one place: `StoreReader.visible_end` and its two sisters."""
    if not source.name.startswith(tuple(f"core/gantrymq/{name}" for name in GIVES_TO_CONSUMERS)):
        return
    for node in source.nodes:
        match node:
            case ast.Attribute(attr="max_offset", value=store) if ast.unparse(store).endswith(("store", "reader")):
                yield f"{source.name}:{node.lineno}: ask visible_end"
            case ast.Attribute(attr="next_offset", value=queue) if ast.unparse(queue).endswith("queue"):
                yield f"{source.name}:{node.lineno}: ask visible_end"


RULES = [
    ends_read_directly,
    long_files,
    long_functions,
    banned_imports,
    vague_names,
    swallowed_failures,
    sleeping_tests,
    unfinished_work,
    private_words,
    dangerous_calls,
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_rule(rule):
    findings = [finding for source in sources() for finding in rule(source)]
    assert not findings, "\n".join(["", *findings])


def entry_points() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    groups = [project["scripts"], *project["entry-points"].values()]
    return {target.partition(":")[0] for group in groups for target in group.values()}


def orphans(product: list[Source], roots: set[str]) -> list[str]:
    """Modules that no other product module imports or names in a string, and that are no entry point."""
    used = set(roots)
    for source in product:
        package = source.module if source.path.name == "__init__.py" else source.module.rpartition(".")[0]
        used.update(name for _, name in imported_modules(source, package) if name != source.module)
        for node in source.nodes:
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                used.add(node.value.partition(":")[0])
    return [source.name for source in product if source.module not in used and source.path.name not in NEVER_ORPHANS]


def _assigned(nodes: Iterable[ast.AST]) -> Iterator[tuple[ast.Attribute, ast.expr]]:
    """Attributes that are set, each with what it is set to."""
    for node in nodes:
        match node:
            case ast.Assign(targets=targets, value=value):
                pairs = [(target, value) for target in targets]
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                pairs = [(target, value)]
            case _:
                continue
        for target, value in pairs:
            whole = isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)
            for one, to in zip(target.elts, value.elts, strict=False) if whole else [(target, value)]:
                if isinstance(one, ast.Attribute):
                    yield one, to


def _hooks(product: list[Source]) -> set[str]:
    """Attributes that hold a function wherever one of their name is declared."""
    hooks: set[str] = set()
    others: set[str] = set()
    for source in product:
        for owner in [node for node in source.nodes if isinstance(node, ast.ClassDef)]:
            for node in ast.walk(owner):
                match node:
                    case ast.AnnAssign(target=ast.Attribute(attr=name) | ast.Name(id=name), annotation=annotation):
                        holds = re.match(r"Callable\b", ast.unparse(annotation)) is not None
                        (hooks if holds else others).add(name)
                    case ast.Assign(
                        targets=[ast.Attribute(value=ast.Name("self"), attr=name)], value=ast.Constant(value)
                    ):
                        others.update({name} if value is not None else ())
                    case _:
                        continue
    return hooks - others


def patched_from_outside(product: list[Source]) -> list[str]:
    """Functions that are set on an object by somebody else than itself: a constructor argument, or a method that says what for (`watch`)."""
    hooks, found = _hooks(product), set()
    for source in product:
        owners: list[tuple[set[str], Iterable[ast.AST]]] = [
            ({node.name for node in owner.body if isinstance(node, ast.FunctionDef)}, ast.walk(owner))
            for owner in source.nodes
            if isinstance(owner, ast.ClassDef)
        ]
        owners.append((set(), source.nodes))
        for methods, nodes in owners:
            for target, value in _assigned(nodes):
                if isinstance(target.value, ast.Name) and target.value.id in ("self", "cls"):
                    continue
                match value:
                    case ast.Lambda() | ast.Call(func=ast.Name("partial")):
                        gives = True
                    case ast.Attribute(value=ast.Name("self"), attr=name):
                        gives = name in methods
                    case _:
                        gives = target.attr in hooks and not (isinstance(value, ast.Constant) and value.value is None)
                if gives:
                    found.add(f"{source.name}: {ast.unparse(target)}")
    return sorted(found)


PATCHED = {
    "gateways/gantrymq_gateways/mqtt/arrival.py: self.terms.owner": "known when the client is: terms are its CONNECT's, made before",
    "gateways/gantrymq_gateways/mqtt/adapter.py: session.check_filter": "a session outlives connections, and each has a user of its own",
    "gateways/gantrymq_gateways/mqtt/adapter.py: session.on_no_local": "the same: its connection is another one each time",
    "gateways/gantrymq_gateways/mqtt/adapter.py: inflow.now_ms": "compiled, on the path of each publish: its other settings are set there, too",
    "gateways/gantrymq_gateways/mqtt/sessions/lifecycle.py: session.on_owed": "needs the session that it is called for",
}
"""Reviewed: who sets it, and why it is no argument."""


def test_nothing_is_patched_in_from_outside():
    found = patched_from_outside([source for source in sources() if source.is_product])
    assert not set(found) - set(PATCHED), "\n".join(["", *sorted(set(found) - set(PATCHED))])
    assert not set(PATCHED) - set(found), "exceptions that nobody needs any more"


def test_patches_are_found():
    text = """
class Told:
    def __init__(self):
        self.on_new: Callable[[], None] = lambda: None
        self.up = False
class Tells:
    def __init__(self, told, new):
        self.on_new = new
        told.on_new = new
        told.other = self._ended
        told.up, told.more = True, lambda: None
        told.on_new = None
        told.end = self.count
    def _ended(self): ...
"""
    found = patched_from_outside([Source("core/gantrymq/a.py", text)])
    assert [line.partition(": ")[2] for line in found] == ["told.more", "told.on_new", "told.other"]


FOR_USERS = {"pyspark_gantry", "gantrymq.client.events"}
"""Modules that only users' programs import."""
USERS_PROGRAM = "core/gantrymq/spark/pipeline/project/"
"""What `gantry pipeline init` writes: the modules name each other as they do where they are written to."""


def test_no_orphans():
    product = [source for source in sources() if source.is_product and not source.name.startswith(USERS_PROGRAM)]
    found = orphans(product, entry_points() | FOR_USERS)
    assert not found, "\n".join(["", *(f"{name}: nobody imports it, and it is no entry point" for name in found)])


def test_no_paths_of_a_workplace():
    findings = []
    for name in project_files():
        try:
            text = (ROOT / name).read_text("utf-8")
        except UnicodeDecodeError:
            continue
        lines = text.splitlines()
        findings += [f"{name}:{n}: {line[:80]}" for n, line in enumerate(lines, 1) if FOREIGN_PATHS.search(line)]
    assert not findings, "\n".join(["", *findings])


def test_locks_name_no_registry():
    names = [name for name in project_files() if name.startswith("locks/")]
    assert names
    for name in names:
        for number, line in enumerate((ROOT / name).read_text("utf-8").splitlines(), 1):
            assert not REGISTRY.search(line), f"{name}:{number}: {line}"


LONG = "def f():\n" + "    x = 1\n" * FUNCTION_LINES_MAX
BROKEN = [
    (ends_read_directly, "core/gantrymq/remoting/server/a.py", "high = reading.store.max_offset(name, 0)\n"),
    (ends_read_directly, "core/gantrymq/broker/pop/a.py", "high = self._queue.next_offset\n"),
    (long_files, "core/gantrymq/model/a.py", "x = 1\n" * (FILE_LINES_MAX + 1)),
    (long_functions, "core/gantrymq/model/a.py", LONG),
    (banned_imports, "core/gantrymq/store/deep/a.py", "import time\n"),
    (banned_imports, "gateways/gantrymq_gateways/mqtt/wire/codec.py", "from socket import socket\n"),
    (vague_names, "core/gantrymq/model/utils.py", ""),
    (swallowed_failures, "core/gantrymq/net/a.py", "try:\n    f()\nexcept Exception:\n    pass\n"),
    (swallowed_failures, "core/gantrymq/net/a.py", "with suppress(BaseException):\n    f()\n"),
    (sleeping_tests, "core/tests/test_a.py", "from time import sleep as nap\nnap(0.1)\n"),
    (sleeping_tests, "interop_tests/test_a.py", "import anyio\nasync def f():\n    await anyio.sleep(1)\n"),
    (unfinished_work, "core/gantrymq/net/a.py", "# TO" + "DO: more\n"),
    (dangerous_calls, "core/gantrymq/net/a.py", "import pickle\n"),
    (dangerous_calls, "core/gantrymq/net/a.py", "def f(x):\n    return eval(x)\n"),
    (dangerous_calls, "core/gantrymq/net/a.py", "subprocess.run(x, shell=True)\n"),
    (private_words, "core/gantrymq/net/aside.py", ""),
    (private_words, "core/gantrymq/net/a.py", "class LookUp:\n    pass\n"),
    (private_words, "core/gantrymq/net/a.py", "DIVERTED = 1\n"),
    (private_words, "core/tests/test_a.py", "def keep(taken_back):\n    x.rows_aside = 1\n"),
]
SOUND = [
    (ends_read_directly, "core/gantrymq/broker/pop/a.py", "high = window.next_offset + answer.max_offset\n"),
    (sleeping_tests, "interop_tests/bench/load.py", "import time\ntime.sleep(1)\n"),
    (long_functions, "core/tests/test_a.py", LONG),
    (banned_imports, "core/gantrymq/net/a.py", "import time\n"),
    (swallowed_failures, "core/gantrymq/net/a.py", "try:\n    f()\nexcept OSError:\n    pass\n"),
    (sleeping_tests, "core/tests/test_a.py", "import anyio\nasync def f():\n    await anyio.sleep(0)\n"),
    (dangerous_calls, "core/gantrymq/net/a.py", "subprocess.run([x], shell=False)\nre.compile(x)\n"),
    (private_words, "core/tests/test_a.py", "def test_a_look_aside():\n    taken = lookup = 1\n"),
]


@pytest.mark.parametrize(("rule", "name", "text"), BROKEN)
def test_rule_finds(rule, name, text):
    assert list(rule(Source(name, text)))


@pytest.mark.parametrize(("rule", "name", "text"), SOUND)
def test_rule_lets_pass(rule, name, text):
    assert not list(rule(Source(name, text)))


def test_orphans_are_found():
    product = [
        Source("core/gantrymq/a.py", "from . import b\nfrom .c import d\n"),
        Source("core/gantrymq/b.py", ""),
        Source("core/gantrymq/c.py", "import gantrymq.c\n"),
        Source("core/gantrymq/late.py", ""),
        Source("core/gantrymq/names.py", 'LATE = "gantrymq.late:main"\n'),
        Source("core/gantrymq/x/lonely.py", ""),
    ]
    assert orphans(product, {"gantrymq.a"}) == ["core/gantrymq/names.py", "core/gantrymq/x/lonely.py"]


def circles(files: Iterable[Source]) -> list[str]:
    """Modules outside the product that import each other around a circle; those of the product are import-linter's."""
    packages = {source.name: source.path.with_suffix("").parts for source in files}
    named = {}
    for name, parts in packages.items():
        at = parts.index("tests") if "tests" in parts else 0
        folder = "/".join(parts[:at])
        whole = ".".join(parts[at:-1] if parts[-1] == "__init__" else parts[at:])
        named[name] = folder, whole
    there = {place: name for name, place in named.items()}
    to: dict[str, set[str]] = {}
    for source in files:
        folder, whole = named[source.name]
        package = whole if source.path.name == "__init__.py" else whole.rpartition(".")[0]
        found = {there.get((folder, dotted), "") for _, dotted in imported_modules(source, package)}
        to[source.name] = found - {"", source.name}
    while leaves := [name for name, found in to.items() if not found & to.keys()]:
        for name in leaves:
            del to[name]
    return sorted(name for name in to if _reaches(name, name, to))


def _reaches(begin: str, end: str, to: dict[str, set[str]]) -> bool:
    seen, front = set(), [begin]
    while front:
        for name in to.get(front.pop(), set()) - seen:
            if name == end:
                return True
            seen.add(name)
            front.append(name)
    return False


def test_no_circles_outside_the_product():
    found = circles([source for source in sources() if not source.is_product])
    assert not found, "\n".join(["they import each other around a circle:", *found])


def test_circles_are_found():
    files = [
        Source("interop_tests/x/a.py", "from interop_tests.x import b\n"),
        Source("interop_tests/x/b.py", "def late():\n    from interop_tests.x.c import d\n"),
        Source("interop_tests/x/c.py", "from .a import e\n"),
        Source("interop_tests/x/up.py", "from interop_tests.x import a, down\n"),
        Source("interop_tests/x/down.py", ""),
        Source("core/tests/x/a.py", "import tests.x.b\n"),
        Source("core/tests/x/b.py", ""),
        Source("gateways/tests/x/b.py", "import tests.x.a\n"),
    ]
    assert circles(files) == [f"interop_tests/x/{name}.py" for name in "abc"]
    assert circles([*files[3:6], Source("core/tests/x/b.py", "import tests.x.a\n")]) == [
        "core/tests/x/a.py",
        "core/tests/x/b.py",
    ]


def crowded_folders(product: list[Source]) -> list[str]:
    """Folders with more modules than somebody sees at a glance, `__init__` not counted."""
    count = Counter(str(source.path.parent) for source in product if source.path.name != "__init__.py")
    return [
        f"{name}: {number} modules, at most {FOLDER_MODULES_MAX}"
        for name, number in count.items()
        if number > FOLDER_MODULES_MAX
    ]


def test_no_crowded_folders():
    found = crowded_folders([source for source in sources() if source.is_product])
    assert not found, "\n".join(["", *found])


def test_crowded_folders_are_found():
    product = [Source(f"core/gantrymq/x/{name}.py", "") for name in ("__init__", *map(str, range(FOLDER_MODULES_MAX)))]
    assert not crowded_folders(product)
    assert crowded_folders([*product, Source("core/gantrymq/x/one_more.py", "")])


TABLE_ROW = re.compile(r"^\| (`[^|]*) \| [^|]* \| ([^|]*) \|$", re.MULTILINE)


def rows_of_tests(page: str) -> dict[str, list[str]]:
    """Of the table in CONTRIBUTING: a module, or a folder with / at its end, to the tests that hold its behaviour."""
    return {
        code: tests.strip("`").split("`, `")
        for codes, tests in TABLE_ROW.findall(page.partition("| code | behaviour | tests |")[2])
        for code in codes.strip("`").split("`, `")
    }


def has_test_of_its_name(module: PurePosixPath, names: Collection[str]) -> bool:
    """In the mirrored folder, or in the one above, where a folder may be split finer than its tests."""
    mirrored = PurePosixPath(module.parts[0], "tests", *module.parts[2:-1])
    return any(str(folder / f"test_{module.stem}.py") in names for folder in (mirrored, mirrored.parent))


def untested_modules(modules: list[PurePosixPath], names: Collection[str], page: str) -> list[str]:
    """Modules with neither a test file of their name nor a row."""
    told = rows_of_tests(page)
    found = []
    for module in modules:
        place = PurePosixPath(*module.parts[2:]) if len(module.parts) > 2 else PurePosixPath(module.name)
        keys = {str(place), *(f"{parent}/" for parent in place.parents)}
        if keys.isdisjoint(told) and not has_test_of_its_name(module, names):
            found.append(f"{module}: no test_{module.stem}.py, and no row in CONTRIBUTING (Which test holds what)")
    return found


def test_every_module_has_tests_that_one_finds():
    product = [source.path for source in sources() if source.is_product and not source.name.startswith(USERS_PROGRAM)]
    modules = [path for path in product if path.name not in ("__init__.py", "__main__.py")]
    page, names = (ROOT / "CONTRIBUTING.md").read_text("utf-8"), set(project_files())
    found = untested_modules(modules, names, page)
    assert not found, "\n".join(["", *found])
    told = rows_of_tests(page)
    assert len(told) > 50
    folders = {f"{PurePosixPath(*path.parts[2:]).parent}/" for path in product}
    folders |= {f"{parent}/" for folder in folders for parent in PurePosixPath(folder).parents}
    there = {str(PurePosixPath(*path.parts[2:])) for path in product} | {path.name for path in product} | folders
    assert not told.keys() - there, "rows of code that is not there"
    tests = {name for held in told.values() for name in held}
    assert not [name for name in tests if not (ROOT / name).exists()]


def test_modules_without_tests_are_found():
    page = "| code | behaviour | tests |\n|---|---|---|\n| `b/c.py`, `d/` | x | `core/tests/test_x.py` |\n"
    modules = [PurePosixPath(f"core/gantrymq/{name}.py") for name in ("a", "b/a", "b/c", "b/e", "d/f", "d/g/h")]
    found = untested_modules(modules, {"core/tests/test_a.py"}, page)
    assert [text.partition(":")[0] for text in found] == ["core/gantrymq/b/e.py"]
    assert rows_of_tests(page)["d/"] == ["core/tests/test_x.py"]
