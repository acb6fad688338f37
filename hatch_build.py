"""Build hook: a wheel gets a bill of materials; with GANTRY_COMPILE=1 the hot modules become C extensions (mypyc), from the same sources.

The modules are listed in pyproject.toml, [tool.gantrymq] compile. The sources are installed beside the extensions, which Python
prefers: tracebacks and readers find them. docs/decisions/0008-compiled-build.md.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import tomllib
from contextlib import chdir
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ENABLED = os.environ.get("GANTRY_COMPILE", "") not in ("", "0")
TOOLS = ["mypy>=1.18", "setuptools"]
"""What compiles; the types of the package's own dependencies are needed beside them."""


class CustomBuildHook(BuildHookInterface[Any]):
    """Compiles for wheels; an editable installation stays plain."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """Packages of an isolated build."""
        return [*TOOLS, *self.metadata.core.dependencies] if ENABLED else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the bill of materials to the wheel; compile, and add the extensions."""
        if version == "editable" or self.target_name != "wheel":
            return
        root = Path(self.root)
        self._work = Path(tempfile.mkdtemp(prefix="gantry-build-"))
        lock = root / "locks" / "base.txt"
        if lock.is_file():  # not in an sdist
            made = self._work / "gantrymq.cdx.json"
            made.write_text(bill_of_materials(self.metadata.version, lock.read_text("utf-8")), "utf-8")
            build_data["sbom_files"].append(str(made))
        if not ENABLED:
            return
        settings = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["gantrymq"]
        for path in compile_modules(root, settings["compile"], self._work):
            build_data["force_include"][str(path)] = str(path.relative_to(self._work / "lib"))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was built aside."""
        work = getattr(self, "_work", None)
        if work is not None:
            shutil.rmtree(work, ignore_errors=True)


def bill_of_materials(version: str, lock: str) -> str:
    """CycloneDX 1.5 of what an installation of this version has, with the hashes of the lock's files and who wants what: the same lock makes the
    same text. It goes to `.dist-info/sboms` (PEP 770)."""
    components: dict[str, dict[str, Any]] = {}
    wanted: dict[str, list[str]] = {}
    name, in_via = "", False
    for line in lock.splitlines():
        text = line.strip()
        if line[:1].isalnum():
            name, _, rest = line.partition("==")
            number, _, marker = rest.rstrip(" \\").partition(" ; ")
            components[name] = {
                "type": "library", "bom-ref": f"pkg:pypi/{name}@{number}", "name": name, "version": number,
                "purl": f"pkg:pypi/{name}@{number}", "scope": "optional" if marker else "required", "hashes": [],
            }  # fmt: skip
            in_via = False
        elif text.startswith("--hash=sha256:"):
            content = text.removeprefix("--hash=sha256:").rstrip(" \\")
            components[name]["hashes"].append({"alg": "SHA-256", "content": content})
        elif text.startswith("#"):
            in_via = in_via or text.startswith("# via")
            parent = text.removeprefix("# via").removeprefix("#").strip().partition(" ")[0]
            if in_via and parent:
                wanted.setdefault(parent, []).append(name)
    own = {"type": "application", "bom-ref": f"pkg:pypi/gantrymq@{version}", "name": "gantrymq", "version": version}
    refs = {"gantrymq": own["bom-ref"], **{each: found["bom-ref"] for each, found in components.items()}}
    graph = [
        {"ref": ref, "dependsOn": sorted(refs[child] for child in wanted.get(each, ()))} for each, ref in refs.items()
    ]
    bill = {
        "bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1, "metadata": {"component": {**own, "purl": own["bom-ref"]}},
        "components": list(components.values()), "dependencies": graph,
    }  # fmt: skip
    return json.dumps(bill, indent=1) + "\n"


def compile_modules(root: Path, modules: list[str], work: Path) -> list[Path]:
    """The extensions of `modules` (paths below `root`), under `work/lib` as they lie in an installation."""
    from mypyc.build import mypycify
    from setuptools import Distribution
    from setuptools.command.build_ext import build_ext

    missing = [name for name in modules if not (root / name).is_file()]
    if missing:
        raise SystemExit(f"pyproject.toml, [tool.gantrymq] compile: there is no {', '.join(missing)}")
    with chdir(root):
        extensions = mypycify(
            [f"--cache-dir={work / 'mypy'}", *modules],
            opt_level=os.environ.get("GANTRY_COMPILE_LEVEL", "3"),
            debug_level="0",
            group_name="gantrymq",
            target_dir=str(work / "c"),
        )
        command = build_ext(Distribution({"name": "gantrymq", "ext_modules": extensions}))
        command.build_temp, command.build_lib = str(work / "temp"), str(work / "lib")
        command.ensure_finalized()
        try:
            command.run()
        except Exception as error:
            raise SystemExit(f"GANTRY_COMPILE: {error}\nA C compiler and Python's headers are needed "
                             "(Debian, Ubuntu: apt install gcc python3-dev).") from error  # fmt: skip
    return sorted((work / "lib").rglob("*.so"))
