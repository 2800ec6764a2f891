from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import shardflow

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # which pytest brings

PROJECT = Path(__file__).parents[1]
OWN = ("shardflow", "conda", "docs", "examples", "tests", "tools")


def required(*extras: str) -> dict[str, Requirement]:
    """Return what the project asks for, with these extras and those that they name, by name."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    texts = [*project["dependencies"], *(text for e in extras for text in project["optional-dependencies"][e])]
    found = {canonicalize_name(one.name): one for one in map(Requirement, texts)}
    own = found.pop(project["name"], None)
    return found | required(*own.extras) if own else found


def test_constraints_are_within_bounds() -> None:
    """The constraints file pins all that the project and its extras ask for, to versions that it allows."""
    lines = (PROJECT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line.split("==") for line in lines if not line.startswith("#")]
    pinned = {canonicalize_name(name): version for name, version in pins}
    assert len(pinned) == len(pins)
    for name, requirement in required("test").items():
        assert requirement.specifier.contains(pinned[name]), f"{requirement}, pinned to {pinned[name]}"


def test_conda_environment_asks_for_the_same() -> None:
    """The conda environment has the project's dependencies with their bounds, and what the kernel is built with."""
    environment = yaml.safe_load((PROJECT / "environment.yml").read_text(encoding="utf-8"))
    *entries, pip = environment["dependencies"]
    assert pip == {"pip": ["."]}
    asked = {entry.name: entry.specifier for entry in map(Requirement, entries)}
    asked["torch"] = asked.pop("pytorch")
    for name in ("c-compiler", "libjpeg-turbo", "pip", "python"):
        del asked[name]
    assert asked == {name: requirement.specifier for name, requirement in required().items()}


def test_conda_recipe_asks_for_the_same() -> None:
    """The conda recipe has the project's name, version, license and dependencies with their bounds."""
    recipe = yaml.safe_load((PROJECT / "conda" / "recipe.yaml").read_text(encoding="utf-8"))
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert recipe["package"] == {"name": project["name"], "version": project["version"]}
    assert recipe["about"]["license"] == project["license"]
    asked = {entry.name: entry.specifier for entry in map(Requirement, recipe["requirements"]["run"])}
    asked["torch"] = asked.pop("pytorch")
    del asked["libjpeg-turbo"]  # which pip finds in Pillow's wheel
    assert asked.pop("python") == project["requires-python"]
    assert asked == {name: requirement.specifier for name, requirement in required().items()}


def test_version_is_said_alike() -> None:
    """The package, its metadata and the changelog name the same version."""
    version = re.search(r'^version = "(.+)"$', (PROJECT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    assert version is not None
    assert version[1] == shardflow.__version__
    assert f"\n## {shardflow.__version__} " in (PROJECT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_source_distribution_is_complete(tmp_path: Path) -> None:
    """The source distribution has every file of the project, and nothing that was built from them."""
    copy = shutil.copytree(PROJECT, tmp_path / "copy", ignore=_not_ours)
    build = "import setuptools.build_meta as backend, sys; backend.build_sdist(sys.argv[1])"
    subprocess.run([sys.executable, "-c", build, tmp_path], cwd=copy, check=True, capture_output=True)
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames() if "." in name.rpartition("/")[2]}
    ours = {path.relative_to(copy).as_posix() for top in OWN for path in (copy / top).rglob("*.*") if path.is_file()}
    assert ours <= packed
    assert {"CHANGELOG.md", "constraints.txt", "environment.yml", "shardflow/preview/page.css"} <= packed
    assert not [name for name in packed if name.endswith((".so", ".pyc", ".o"))]


@pytest.mark.parametrize("compiler", ["cc", "/nowhere/cc"])
def test_one_wheel_serves_every_python(tmp_path: Path, compiler: str) -> None:
    """A wheel is of its platform and of any Python, and holds the kernel; without a compiler it is built without it."""
    copy = shutil.copytree(PROJECT, tmp_path / "copy", ignore=_not_ours)
    build = "import setuptools.build_meta as backend, sys; print(backend.build_wheel(sys.argv[1]))"
    environment = {**os.environ, "CC": compiler, "CFLAGS": "-O0"}  # which is soon done
    subprocess.run([sys.executable, "-c", build, tmp_path], cwd=copy, env=environment, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    assert re.fullmatch(rf"shardflow-{shardflow.__version__}-py3-none-linux_\w+\.whl", wheel.name)
    names = zipfile.ZipFile(wheel).namelist()
    assert [name for name in names if name.endswith((".so", ".c", ".h"))] == (
        ["shardflow/native/_kernel.so"] if compiler == "cc" else []
    )
    assert "shardflow/preview/page.css" in names


def _not_ours(folder: str, names: list[str]) -> set[str]:
    """Return what lies in a working tree and is not of the project."""
    made = {"build", "dist", "__pycache__", "demo-output"} if Path(folder) == PROJECT else {"__pycache__"}
    return {name for name in names if name in made or name.startswith(".") or name.endswith((".egg-info", ".so"))}
