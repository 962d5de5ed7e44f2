"""House style that no off-the-shelf tool holds: sizes, words, purity, coverage of events."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src" / "tercio"
PURE = (
    "model", "sched", "core", "launch", "sizing", "health", "energy", "forecast", "formats",
    "twin",
)  # fmt: skip
# Value modules of the standard library, and what the architecture names.
PURE_IMPORTS = {
    "__future__", "abc", "ast", "base64", "bisect", "calendar", "collections", "contextlib",
    "copy", "csv",
    "dataclasses", "datetime", "decimal", "difflib", "enum", "fractions", "functools", "gzip",
    "hashlib", "heapq", "io", "itertools", "json", "math", "operator", "re", "shlex", "signal",
    "statistics", "string", "struct", "textwrap", "tomllib", "types", "typing", "zlib",
    "msgspec", "numpy", "yaml", "tercio",
}  # fmt: skip
IMPURE_CALLS = {"open", "print", "input", "eval", "exec", "id", "hash", "__import__"}
IMPURE_ATTRIBUTES = {
    ("datetime", "now"), ("datetime", "today"), ("datetime", "utcnow"), ("dt", "now"),
    ("date", "today"), ("np", "save"), ("np", "load"), ("np", "fromfile"),
}  # fmt: skip
VAGUE = re.compile(
    r"(^|_)(manager|helper|helpers|util|utils|processor|instance|entity|item|items|data|info"
    r"|common|services|handler|handlers)(_|$)"
)
# Words of other people's interfaces: NVML, AWS-like catalogues, the standard library, ASGI.
BORROWED = {"isinstance", "instance_type", "instance_types", "getaddrinfo", "sys_version_info"}
MAX_MODULE_LINES = 500
MAX_FUNCTION_LINES = 60


def modules(root: Path = SRC) -> list[Path]:
    return sorted(path for path in root.rglob("*.py") if "static" not in path.parts)


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node


def pure_modules() -> list[Path]:
    return [path for path in modules() if path.relative_to(SRC).parts[0] in PURE]


def tracked_files() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


def test_modules_and_functions_are_short() -> None:
    long_modules, long_functions = [], []
    for path in modules() + modules(ROOT / "tests") + modules(ROOT / "bench"):
        lines = len(path.read_text(encoding="utf-8").splitlines())
        if lines > MAX_MODULE_LINES:
            long_modules.append(f"{path.relative_to(ROOT)}: {lines}")
        for function in functions(tree_of(path)):
            length = (function.end_lineno or 0) - function.lineno + 1
            if length > MAX_FUNCTION_LINES:
                long_functions.append(f"{path.relative_to(ROOT)}:{function.name}: {length}")
    assert not long_modules
    assert not long_functions


def test_pure_packages_import_only_values() -> None:
    wrong = []
    for path in pure_modules():
        for node in ast.walk(tree_of(path)):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            wrong += [
                f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}: {name}"
                for name in names
                if name.partition(".")[0] not in PURE_IMPORTS
            ]
    assert not wrong


def test_pure_packages_reach_nothing() -> None:
    wrong = []
    for path in pure_modules():
        for node in ast.walk(tree_of(path)):
            if not isinstance(node, ast.Call):
                continue
            called = node.func
            if isinstance(called, ast.Name) and called.id in IMPURE_CALLS:
                wrong.append(f"{path.relative_to(ROOT)}:{node.lineno}: {called.id}()")
            if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name):
                pair = (called.value.id, called.attr)
                if pair in IMPURE_ATTRIBUTES:
                    wrong.append(f"{path.relative_to(ROOT)}:{node.lineno}: {'.'.join(pair)}()")
    assert not wrong


def test_pure_packages_iterate_no_sets() -> None:
    wrong = []
    for path in pure_modules():
        for node in ast.walk(tree_of(path)):
            iterated = [node.iter] if isinstance(node, (ast.For, ast.comprehension)) else []
            for target in iterated:
                is_set = isinstance(target, (ast.Set, ast.SetComp)) or (
                    isinstance(target, ast.Call)
                    and isinstance(target.func, ast.Name)
                    and target.func.id in {"set", "frozenset"}
                )
                if is_set:
                    wrong.append(f"{path.relative_to(ROOT)}:{target.lineno}")
    assert not wrong


def test_names_are_not_vague() -> None:
    wrong = []
    for path in modules():
        for node in ast.walk(tree_of(path)):
            names: list[str] = []
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                names = [re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", node.name).lower()]
            elif isinstance(node, ast.arg):
                names = [node.arg]
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names = [node.id]
            wrong += [
                f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}: {name}"
                for name in names
                if VAGUE.search(name.lower()) and name not in BORROWED
            ]
    assert not wrong


def test_every_event_and_effect_is_covered_by_a_test() -> None:
    from tercio.model import effects, events

    union_members = [*events.AnyEvent.__args__, *effects.AnyEffect.__args__]
    tests = "\n".join(
        path.read_text(encoding="utf-8")
        for path in modules(ROOT / "tests")
        if path != Path(__file__)
    )
    assert [
        kind.__name__ for kind in union_members if not re.search(rf"\b{kind.__name__}\b", tests)
    ] == []


def test_every_module_is_used() -> None:
    """A module nobody imports is dead: entry points and registered plug-ins are named here."""
    entries = {"tercio.__main__", "tercio.cli.main", "tercio.engines.conformance"}
    texts = {path: path.read_text(encoding="utf-8") for path in modules()}
    texts |= {path: path.read_text(encoding="utf-8") for path in modules(ROOT / "tests")}
    texts |= {path: path.read_text(encoding="utf-8") for path in modules(ROOT / "bench")}
    unused = []
    for path in modules():
        parts = path.relative_to(SRC.parent).with_suffix("").parts
        name = ".".join(parts)
        is_verb = name.startswith("tercio.cli.commands.")  # listed in cli.main, tested there
        if path.name == "__init__.py" or name in entries or is_verb:
            continue
        parent, _, leaf = name.rpartition(".")
        wanted = re.compile(
            rf"{re.escape(name)}\b|from {re.escape(parent)} import [^\n]*\b{leaf}\b"
            rf"|from {re.escape(parent)} import \([^)]*\b{leaf}\b|{leaf}\.py"
        )
        if not any(wanted.search(text) for other, text in texts.items() if other != path):
            unused.append(name)
    assert not unused


def test_nothing_names_this_machine_or_a_registry() -> None:
    # Written in two parts, so that this file does not name them either.
    forbidden = re.compile(
        "|".join(
            (
                "/wo" + "rk/", "/ro" + "ot/", "/opt/" + "wheels", "deb." + "debian.org",
                r"(?<![\w.])py" + r"pi\.org", "registry." + "npmjs.org", "files.python" + "hosted",
            )
        )
    )  # fmt: skip
    wrong = []
    for path in tracked_files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        wrong += [
            f"{path.relative_to(ROOT)}:{number}"
            for number, line in enumerate(text.splitlines(), 1)
            if forbidden.search(line)
        ]
    assert not wrong


def test_no_unfinished_markers() -> None:
    marker = re.compile("TO" + "DO|FIX" + "ME|XX" + "X|NotImplemented" + "Error")
    wrong = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in modules()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if marker.search(line)
    ]
    assert not wrong


def test_test_modules_have_names_of_their_own() -> None:
    """Two modules of one name, outside of packages, cannot both be collected."""
    seen: dict[str, str] = {}
    twice = []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        if (path.parent / "__init__.py").exists():
            continue
        if path.name in seen:
            twice.append(f"{seen[path.name]} and {path.relative_to(ROOT)}")
        seen[path.name] = str(path.relative_to(ROOT))
    assert not twice
