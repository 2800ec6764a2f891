"""Which room may import which, and which library is imported where."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import pkgutil
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import shardflow

LAYERS = [
    {"errors", "_cores", "_imports", "_signals", "_version", "_wording"},
    {"_validation"},
    {"formats"},
    {"order"},
    {"geometry"},
    {"native", "_orientation"},
    {"_pillow"},
    {"_colour", "_masks"},
    {"_rgb"},
    {"storage"},
    {"dataset"},
    {"packing", "loading"},
    {"device", "preview", "interop"},
    {"diagnostics"},
    {"annotations", "columns", "decoders", "metrics", "reports", "samplers", "sources"},
    {"demo"},
    {"cli"},
]
"""A module imports from its own room and from lower layers; rooms of one layer never import each other."""

PURE = {"order", "formats", "geometry", "errors", "_validation", "_wording"}
"""Rooms without I/O: they import numpy and what of the standard library reaches no file, thread, process or clock."""

IMPURE_MODULES = {
    *("os", "io", "pathlib", "tempfile", "shutil", "mmap", "socket", "threading", "subprocess", "asyncio"),
    *("multiprocessing", "concurrent", "time", "random", "secrets", "logging"),
}

LIBRARIES = {
    "torch": ("loading/", "device/", "diagnostics/", "preview/augmentation.py", "demo/", "interop/transformers.py"),
    "torchvision": ("loading/", "demo/"),
    "torchcodec": ("loading/decoders/pixels.py",),
    "lightning": ("interop/lightning.py",),
    "transformers": ("interop/transformers.py",),
    "webdataset": ("loading/", "demo/"),
    "fsspec": ("storage/",),
    "s3fs": ("storage/",),
    "azure": ("storage/azure_transport.py",),
    "huggingface_hub": ("storage/hub_transport.py",),
    "braceexpand": ("dataset/finding_tars.py",),
    "yaml": ("packing/sources/yolo.py",),
    "ray": ("packing/executors/ray.py",),
    "datasets": ("packing/sources/collection.py",),
    "pyarrow": ("dataset/column_files.py", "dataset/columns.py", "dataset/sample_table.py"),
    "duckdb": ("dataset/sample_table.py",),
    "PIL": (
        "_pillow.py",
        "_colour.py",
        "_masks.py",
        "_orientation.py",
        "_rgb.py",
        "packing/",
        "loading/",
        "diagnostics/",
        "preview/",
        "demo/",
        "cli/",
    ),
    "imagecodecs": ("packing/image/arrays.py",),
    "tifffile": ("packing/image/arrays.py",),
    "click": ("cli/",),
    "prometheus_client": ("diagnostics/metrics.py",),
    "opentelemetry": ("diagnostics/metrics.py",),
    "tqdm": ("packing/progress.py",),
    "importlib": ("_imports.py", "cli/", "native/", "loading/run_metadata.py"),
    # A dataset is data: reading one runs nothing that it names.
    "pickle": (),
    "marshal": (),
    "shelve": (),
}
"""Which files may import a library at all, inside functions and for type checkers included."""

BUDGET = {
    "cli": 2610,
    "dataset": 6930,
    "demo": 750,
    "device": 2100,
    "diagnostics": 1050,
    "formats": 3490,
    "geometry": 450,
    "interop": 640,
    "loading": 7650,
    "native": 5850,
    "order": 2230,
    "packing": 8820,
    "preview": 1250,
    "storage": 4660,
    "": 1300,
}
"""Lines of each room, C included; "" stands for the files at the top. 50 more pass, so that a small change needs no new
number. A commit that raises one says why."""

PACKAGE = Path(shardflow.__file__).parent
FILES = {path.relative_to(PACKAGE).as_posix(): path for path in sorted(PACKAGE.rglob("*.py"))}

NAMESPACES = [
    "shardflow",
    *(f"shardflow.{name}" for name in ("annotations", "columns", "decoders", "device", "metrics")),
]
NAMESPACES += [f"shardflow.{name}" for name in ("reports", "samplers", "sources")]
"""The modules whose names are public, beside `shardflow.errors`."""

every_namespace = pytest.mark.parametrize("namespace", NAMESPACES)


def each_of(files: Iterable[str]) -> Callable[[Callable[[str], None]], Callable[[], None]]:
    """Make one test of a rule that files keep; its failure names the file."""

    def decorate(rule: Callable[[str], None]) -> Callable[[], None]:
        def test() -> None:
            for file in files:
                try:
                    rule(file)
                except AssertionError as error:
                    raise AssertionError(f"{file}: {error}") from error

        test.__name__, test.__doc__ = rule.__name__, rule.__doc__
        return test

    return decorate


every_file = each_of(FILES)


@functools.cache
def tree(file: str) -> ast.Module:
    """Return the syntax tree of a file of the package."""
    return ast.parse(FILES[file].read_text(encoding="utf-8"))


def imports_of(source: ast.Module, package: list[str]) -> Iterator[str]:
    """Yield the full names of everything that a module of a package imports: `from a import b` names a.b."""
    for node in ast.walk(source):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{module}.{alias.name}" for alias in node.names)


@functools.cache
def imports(file: str) -> set[str]:
    """Return the full names of everything that a file of the package imports."""
    return set(imports_of(tree(file), ["shardflow", *file.split("/")[:-1]]))


def room_of(file: str) -> str:
    """Return the room of a file: its top folder, or its own name where it lies at the top."""
    return file.partition("/")[0].removesuffix(".py")


def rooms_imported(file: str) -> set[str]:
    """Return the rooms that a file imports from, its own included."""
    parts = (name.split(".") for name in imports(file))
    return {part[1] for part in parts if part[0] == "shardflow" and len(part) > 1} & set().union(*LAYERS)


@functools.cache
def calls(file: str) -> set[str]:
    """Return the names of the functions that a file calls."""
    return {ast.unparse(node.func) for node in ast.walk(tree(file)) if isinstance(node, ast.Call)}


def within(name: str, module: str) -> bool:
    """Return whether a full name is a module or something in it."""
    return name == module or name.startswith(f"{module}.")


def test_imports_are_understood() -> None:
    """The rules below see absolute, relative, nested and renamed imports by their full names."""
    source = ast.parse(
        "import a.b as c\nfrom . import d\nfrom .e import f\nfrom .. import g\nfrom ..h.i import j\n"
        "def k():\n    from shardflow import l\n    import torch, ray\n"
    )
    own = {"shardflow.loading.d", "shardflow.loading.e.f", "shardflow.g", "shardflow.h.i.j", "shardflow.l"}
    assert sorted(imports_of(source, ["shardflow", "loading"])) == sorted({"a.b", "torch", "ray"} | own)
    assert within("torch.nn", "torch")
    assert not within("torchvision", "torch")


def test_every_file_is_in_a_room() -> None:
    """Each folder and each module at the top has its layer, and no layer names a room that is gone."""
    assert {room_of(file) for file in FILES} - {"__init__", "__main__"} == set().union(*LAYERS)


@every_file
def test_rooms_import_lower_rooms_only(file: str) -> None:
    """A file imports from its own room and from lower layers."""
    room = room_of(file)
    level = next((level for level, rooms in enumerate(LAYERS) if room in rooms), len(LAYERS))  # __init__, __main__
    assert rooms_imported(file) <= {room}.union(*LAYERS[:level])


def test_no_import_is_circular() -> None:
    """Files import each other without a circle, imports inside functions and for type checkers included."""
    modules = {
        ".".join(["shardflow", *file.removesuffix(".py").removesuffix("/__init__").split("/")]): file for file in FILES
    }
    del modules["shardflow.__init__"]  # the public surface, which takes names out of all rooms
    graph = {}
    for module, file in modules.items():
        names = imports(file) | {name.rpartition(".")[0] for name in imports(file)}
        graph[module] = (names & set(modules)) - {module}
    tuple(TopologicalSorter(graph).static_order())


@each_of([file for file in FILES if room_of(file) in PURE])
def test_pure_rooms_have_no_io(file: str) -> None:
    """Order, formats and geometry are functions of their arguments."""
    for name in imports(file):
        if not within(name, "shardflow"):
            assert name.split(".")[0] in (sys.stdlib_module_names | {"numpy"}) - IMPURE_MODULES
    assert not {"open", "print"} & calls(file)


@every_file
def test_libraries_stay_in_their_rooms(file: str) -> None:
    """Torch, webdataset, fsspec, ray and the rest are imported only where `LIBRARIES` says."""
    assert not {
        name: library
        for library, places in LIBRARIES.items()
        if not file.startswith(places)
        for name in imports(file)
        if within(name, library)
    }


@every_file
def test_only_the_command_line_prints(file: str) -> None:
    """Text is printed by `say` in cli/terminal.py, which escapes it, and JSON beside it; data is nowhere evaluated."""
    called = calls(file)
    assert not {"print", "click.echo", "click.secho"} & called or file in ("cli/terminal.py", "cli/output.py")
    assert not {"eval", "exec", "__import__", "compile"} & called


@every_file
def test_nobody_asks_for_the_kind_of_a_storage(file: str) -> None:
    """No `isinstance` names a class of storage: `local_path` and `exclusive_writer` serve all kinds."""
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("isinstance", "issubclass"):
            assert not re.search(r"Storage(Wrapper)?\b", ast.unparse(node.args[1]))
        if not file.startswith("storage/"):
            assert not (isinstance(node, ast.Name) and node.id in ("RemoteStorage", "VirtualStorage"))


def test_the_interface_of_storages_knows_none_of_them() -> None:
    """What a storage is, and how one is wrapped, is said without any other module of the room."""
    for file in ("storage/interface.py", "storage/wrapper.py"):
        within_room = {name.split(".")[2] for name in imports(file) if name.startswith("shardflow.storage.")}
        assert within_room <= {"interface"}


PRIVATE = {
    "storage/s3_transport.py": {"_get_s3_method_kwargs", "_s3"},
    "storage/gcs_transport.py": {"_get_headers", "_get_params", "_location", "_set_session"},
    "storage/http_answer.py": {"_session"},
}
"""The private attributes of clients that are used, in one class or function of one file each."""


@each_of([file for file in FILES if file.startswith("storage/")])
def test_private_attributes_of_clients_have_one_place(file: str) -> None:
    """Private attributes of other packages' objects are those in the list, each in the one place that adapts them."""
    places: dict[str, set[str]] = {}
    for part in tree(file).body:
        for node in ast.walk(part):
            if isinstance(node, ast.Attribute) and re.match(r"_[a-z]", node.attr):
                owner = ast.unparse(node.value)
                if owner not in ("self", "super()", "cls", "storage"):
                    places.setdefault(node.attr, set()).add(getattr(part, "name", ""))
    assert places.keys() == PRIVATE.get(file, set())
    assert len(set().union(*places.values())) <= 1


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


@every_namespace
def test_public_names_resolve(namespace: str) -> None:
    """Every name of `__all__` is there, `dir` lists nothing else, and any other name is an AttributeError."""
    module = importlib.import_module(namespace)
    assert dir(module) == sorted([*module.__all__, *(["__version__"] if module is shardflow else [])])
    for name in dir(module):
        assert hasattr(module, name)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        module.nothing  # noqa: B018


@every_namespace
def test_public_names_are_what_type_checkers_see(namespace: str) -> None:
    """What is imported on first use has the name and the place of the import that is there for type checkers."""
    module, code = importlib.import_module(namespace), ast.Module(body=[], type_ignores=[])
    for node in ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.If):
            code.body += node.body
    checked: dict[str, object] = {"__name__": namespace, "__package__": str(module.__package__)}
    exec(compile(code, namespace, "exec"), checked)
    assert {name for name in checked if not name.startswith("_")} == {*module.__all__}
    for name in module.__all__:
        assert getattr(module, name) is checked[name]


def test_the_docstring_names_the_surface() -> None:
    """The docstring of the package names every public function and every namespace, and nothing that is not there."""
    described = set(re.findall(r"shardflow\.(\w+)", str(shardflow.__doc__)))
    assert described - {"Dataset"} <= set(shardflow.__all__)
    modules = {name.partition(".")[2] for name in NAMESPACES} - {""}
    functions = {name for name in shardflow.__all__ if inspect.isfunction(getattr(shardflow, name))}
    assert modules | functions <= described
    assert len(shardflow.__all__) <= 31, "a new name belongs into a namespace"


def test_no_module_has_the_name_of_a_public_function() -> None:
    """No module of the package, the files of commands apart, is called as a public function or class is."""
    public = {name for name in shardflow.__all__ if callable(getattr(shardflow, name))}
    files = (file.removesuffix(".py").removesuffix("/__init__") for file in FILES if "cli/" not in file)
    assert not public & {file.rpartition("/")[2] for file in files}


def test_public_names_survive_importing_every_module() -> None:
    """Importing all modules of the package puts none of them in the place of a public name, and ignores no signal."""

    def public() -> dict[tuple[str, str], object]:
        modules = {name: importlib.import_module(name) for name in NAMESPACES}
        return {(name, each): getattr(module, each) for name, module in modules.items() for each in module.__all__}

    before, dispositions = public(), [signal.getsignal(number) for number in signal.valid_signals()]
    for module in pkgutil.walk_packages(shardflow.__path__, "shardflow."):
        if not module.name.startswith("shardflow.native._") and not module.name.endswith("executors.ray"):
            importlib.import_module(module.name)
    assert public() == before
    assert [signal.getsignal(number) for number in signal.valid_signals()] == dispositions


def test_import_is_light() -> None:
    """`import shardflow` loads neither torch nor ray nor webdataset nor any client of a cloud."""
    code = """
import sys
import shardflow
dir(shardflow), shardflow.Dataset, shardflow.open, shardflow.verify, shardflow.pack
dir(shardflow.decoders), dir(shardflow.device), shardflow.sources.Table, shardflow.annotations.Boxes
heavy = ("torch", "torchvision", "ray", "webdataset", "fsspec", "s3fs", "boto3", "botocore", "aiohttp", "datasets")
print(sorted(sys.modules.keys() & set(heavy)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@each_of([file for file in FILES if not file.startswith("loading/decoders/")])
def test_only_decoders_ask_for_the_kind_of_a_decoder(file: str) -> None:
    """Outside of loading/decoders/ no `isinstance` names a decoder, and nothing probes one: its members serve all."""
    kinds = "|".join(set(shardflow.decoders.__all__) - {"Crops", "Image"})
    if not any(within(name, "shardflow.loading.decoders") for name in imports(file)):
        kinds = "Decoder"  # other classes of these names, such as a transform on the device
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("isinstance", "issubclass"):
            assert not re.search(rf"\b({kinds}|whole_image\.Image)\b", ast.unparse(node.args[1]))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("hasattr", "getattr"):
            assert "decoder" not in ast.unparse(node.args[0])


@pytest.mark.parametrize("room", BUDGET)
def test_rooms_keep_their_budget(room: str) -> None:
    """No room exceeds its budget by more than 50 lines, so that a feature that needs many is noticed."""
    paths = (PACKAGE / room).rglob("*") if room else PACKAGE.glob("*")
    lines = {path: path.read_text(encoding="utf-8").count("\n") for path in paths if path.suffix in (".py", ".c", ".h")}
    assert BUDGET[room] - 100 < sum(lines.values()) <= BUDGET[room] + 50


def test_every_room_has_a_budget() -> None:
    """A new room needs a budget."""
    rooms = {path.name for path in PACKAGE.iterdir() if path.is_dir() and any(path.glob("*.py"))}
    assert rooms == BUDGET.keys() - {""}


def test_a_loader_has_few_arguments() -> None:
    """What belongs together is one object: `Loader` takes 19 arguments at most."""
    assert len(inspect.signature(shardflow.Loader).parameters) <= 19
