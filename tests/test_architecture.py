from __future__ import annotations

import ast
import functools
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import shardflow

PACKAGE = Path(shardflow.__file__).parent
FILES = {path.relative_to(PACKAGE).as_posix(): path for path in sorted(PACKAGE.rglob("*.py"))}
CORE = {"errors", "keyed", "ustar", "imagesize", "layout", "shardindex", "base", "manifest", "plan", "schedule"}
CORE |= {"statistics", "foreign", "labels"}
BYTES = {"arriving", "cache", "dali", "files", "warm", "store", "claim", "spool", "sync", "shard", "dataset", "verify"}
BYTES |= {"atonce", "energon", "view", "wids"}
ROOMS = {"pack", "load", "remote", "native", "device", "cli", "demo", "look", "tuning", "views"}

# Which files may name these at all, lazily or for type checkers included.
ALLOWED = {
    "torch": ("system.py", "tuning/", "look/augmented.py", "load/", "device/", "demo/"),
    "torchvision": ("load/", "device/encoded.py", "demo/"),
    "webdataset": ("load/", "demo/"),
    "fsspec": ("remote/",),
    "s3fs": ("remote/",),
    "shardflow.remote": ("store.py", "remote/"),
    "ray": ("pack/executors/ray.py",),
    "braceexpand": ("pack/sources/patterns.py",),
    "datasets": ("pack/sources/huggingface.py",),
    "pyarrow": ("pack/sources/rows.py",),
    "PIL": ("look/", "tuning/", "load/", "pack/", "demo/", "cli/"),
    "click": ("cli/",),
    "tqdm": ("cli/",),
    "shardflow.native": ("tuning/", "load/decode.py", "pack/codecs.py", "pack/decoding.py", "native/", "system.py"),
    "shardflow.cli": ("cli/",),
    "shardflow.device": ("device/", "__init__.py"),
    "shardflow.demo": ("cli/", "demo/"),
    "shardflow.tuning": ("tuning/", "cli/", "__init__.py"),
    "shardflow.look": ("look/", "tuning/", "demo/", "cli/"),
    "shardflow.pack": ("pack/", "views/", "cli/", "demo/", "__init__.py"),
    "shardflow.views": ("views/", "cli/", "__init__.py"),
    "shardflow.load": ("tuning/", "look/", "load/", "device/", "cli/", "demo/", "__init__.py"),
    # A dataset is data: what reads one runs nothing that it names.
    "pickle": (),
    "marshal": (),
    "shelve": (),
    "importlib": ("__init__.py", "cli/", "native/", "system.py"),
}

every_file = pytest.mark.parametrize("file", FILES)


@functools.cache
def tree(file: str) -> ast.Module:
    """The syntax tree of a file of the package."""
    return ast.parse(FILES[file].read_text(encoding="utf-8"))


def imports_of(source: ast.Module, package: list[str]) -> Iterator[str]:
    """The full names of everything that a module of a package imports, anywhere in it: `from a import b` names a.b."""
    for node in ast.walk(source):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{module}.{alias.name}" for alias in node.names)


def imports(file: str) -> set[str]:
    """The full names of everything that a file of the package imports."""
    return set(imports_of(tree(file), ["shardflow", *file.split("/")[:-1]]))


def within(name: str, module: str) -> bool:
    """Whether a full name is a module or something in it."""
    return name == module or name.startswith(f"{module}.")


def calls(file: str) -> set[str]:
    """The plain names of the functions that a file calls."""
    nodes = (node.func for node in ast.walk(tree(file)) if isinstance(node, ast.Call))
    return {node.id for node in nodes if isinstance(node, ast.Name)}


def test_imports_are_understood() -> None:
    """The rules below see absolute, relative, nested and renamed imports by their full names."""
    source = ast.parse(
        "import a.b as c\nfrom . import d\nfrom .e import f\nfrom .. import g\nfrom ..h.i import j\n"
        "def k():\n    from shardflow import l\n    import torch, ray\n"
    )
    assert sorted(imports_of(source, ["shardflow", "load"])) == sorted(
        [
            *("a.b", "shardflow.load.d", "shardflow.load.e.f", "shardflow.g", "shardflow.h.i.j"),
            *("shardflow.l", "torch", "ray"),
        ]
    )
    assert within("torch.nn", "torch")
    assert not within("torchvision", "torch")


def test_every_file_has_its_room() -> None:
    """A file at the top belongs to the core or to the bytes; a folder is one of the rooms."""
    top = {file.removesuffix(".py") for file in FILES if "/" not in file}
    assert top == CORE | BYTES | {"__init__", "system"}
    assert {file.split("/")[0] for file in FILES if "/" in file} <= ROOMS


@pytest.mark.parametrize("module", sorted(CORE))
def test_core_is_pure(module: str) -> None:
    """The core imports the standard library, numpy and itself, and nothing that reaches files, threads or processes."""
    impure = {"os", "io", "pathlib", "tempfile", "shutil", "mmap", "socket", "threading", "subprocess", "asyncio"}
    impure |= {"multiprocessing", "concurrent", "time", "random", "secrets", "logging"}
    for name in imports(f"{module}.py"):
        if within(name, "shardflow"):
            assert name.split(".")[1] in CORE
        else:
            assert name.split(".")[0] in (sys.stdlib_module_names | {"numpy"}) - impure
    assert not {"open", "print", "eval", "exec"} & calls(f"{module}.py")


@pytest.mark.parametrize("module", sorted(BYTES))
def test_bytes_know_nothing_of_the_rooms_above(module: str) -> None:
    """Store, shard, dataset and verification rest on the core and on each other alone."""
    for name in imports(f"{module}.py"):
        if within(name, "shardflow"):
            assert name.split(".")[1] in CORE | BYTES | {"remote"}


@every_file
def test_imports_stay_in_their_room(file: str) -> None:
    """Torch, webdataset, fsspec, ray, the kernel and the rooms themselves are imported where the design says, only."""
    forbidden = {
        name: module
        for module, places in ALLOWED.items()
        if not file.startswith(places)
        for name in imports(file)
        if within(name, module)
    }
    assert not forbidden


@every_file
def test_pack_and_load_are_strangers(file: str) -> None:
    """Packing and loading never import each other."""
    room, _, _ = file.partition("/")
    other = {"pack": "shardflow.load", "load": "shardflow.pack"}.get(room)
    assert other is None or not any(within(name, other) for name in imports(file))


@every_file
def test_only_the_command_line_prints(file: str) -> None:
    """`print` is called in cli/ alone, and data is nowhere evaluated as code."""
    called = calls(file)
    assert "print" not in called or file.startswith("cli/")
    assert not {"eval", "exec", "__import__", "compile"} & called


@every_file
def test_every_module_says_what_it_is_for(file: str) -> None:
    """Every module has a docstring, whose first line is a sentence."""
    docstring = ast.get_docstring(tree(file))
    assert docstring
    assert docstring.split("\n\n")[0].rstrip().endswith((".", ":"))


@every_file
def test_public_names_are_sorted(file: str) -> None:
    """Wherever `__all__` stands, it names nothing twice and is sorted: constants, classes, functions."""
    for node in tree(file).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            names = ast.literal_eval(node.value)
            assert names == sorted(set(names), key=lambda name: (not name.isupper(), name[0].islower(), name))


def test_public_names_resolve() -> None:
    """Every name of `__all__` is there, is listed by `dir`, and is no module; any other is an AttributeError."""
    for name in shardflow.__all__:
        assert callable(getattr(shardflow, name))
        assert name in dir(shardflow)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        shardflow.nothing  # noqa: B018


def test_public_names_are_what_the_package_imports() -> None:
    """`__all__` is exactly what the package takes out of its modules, and has what its docstring promises."""
    taken = {
        alias.asname or alias.name
        for node in ast.walk(tree("__init__.py"))
        if isinstance(node, ast.ImportFrom) and node.level
        for alias in node.names
    }
    assert taken == set(shardflow.__all__)
    assert shardflow.__doc__ is not None
    assert set(re.findall(r"shardflow\.(\w+)\(", shardflow.__doc__)) <= taken


def test_public_names_are_not_hidden_by_modules() -> None:
    """Importing a module of the package does not put it in the place of the public name that it shares."""
    for name in ("pack", "verify"):
        importlib.import_module(f"shardflow.{name}")
        assert callable(getattr(shardflow, name))


def test_import_is_light() -> None:
    """`import shardflow` loads neither torch nor ray nor webdataset nor any client of a cloud."""
    code = """
import sys
import shardflow
dir(shardflow), shardflow.Dataset, shardflow.open, shardflow.verify, shardflow.pack
heavy = ("torch", "torchvision", "ray", "webdataset", "fsspec", "s3fs", "boto3", "botocore", "aiohttp", "datasets")
print(sorted(sys.modules.keys() & set(heavy)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
