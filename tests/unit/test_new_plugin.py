"""New plugins: each kind of package passes its own tests at once; names are checked, and nothing is overwritten."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import fluidlite
from fluidlite.base.errors import FluidError
from fluidlite.cli.main import main
from fluidlite.conformance.scaffold import KINDS, new_plugin

ROOT = Path(fluidlite.__file__).parents[1]


def install(package: Path) -> None:
    """Write beside the module what an installer leaves of the metadata of an editable package."""
    project = tomllib.loads((package / "pyproject.toml").read_text())["project"]
    folder = package / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    lines = [
        line
        for group, points in project["entry-points"].items()
        for line in (f"[{group}]", *(f"{name} = {target}" for name, target in points.items()))
    ]
    (folder / "entry_points.txt").write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize(("name", "kind"), [("my-chip", "device"), ("acme", "library"), ("acme", "operator")])
def test_a_new_package_passes_its_own_tests(name: str, kind: str, tmp_path: Path) -> None:
    assert main(["new-plugin", name, "--kind", kind, "--to", str(tmp_path)]) == 0
    package = tmp_path / f"fluidlite-{name}"
    install(package)
    path = os.pathsep.join((str(package), str(ROOT)))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", "-W", "ignore::fluidlite.FallbackWarning",
         "-p", "no:cacheprovider"],
        cwd=package, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_is_whole_and_names_itself(kind: str, tmp_path: Path) -> None:
    written = new_plugin("zeta", kind, tmp_path)
    texts = {path.relative_to(tmp_path / "fluidlite-zeta").as_posix(): path.read_text() for path in written}
    sources = (
        ("fluidlite_zeta/__init__.py", "fluidlite_zeta/samples.py") if kind == "operator" else ("fluidlite_zeta.py",)
    )
    assert set(texts) == {"pyproject.toml", "README.md", *sources, "tests/test_zeta.py"}
    for name, text in texts.items():
        assert "$" not in text, name
        assert "zeta" in text, name
        assert text.endswith("\n"), name
        assert all(len(line) <= 120 for line in text.splitlines()), name
        if name.endswith(".py"):
            compile(text, name, "exec")


@pytest.mark.parametrize("name", ["", "Acme", "9lives", "a b", "acme/../x", "../acme", "acme-", "é", "class", "array"])
def test_names_that_are_none(name: str, tmp_path: Path) -> None:
    with pytest.raises(FluidError, match="is not a plugin's name"):
        new_plugin(name, "device", tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "kind", "reason"),
    [
        ("cpu", "device", "a kind of places is called 'cpu' already"),
        ("blas", "library", "a library is called 'blas' already"),
        ("relu", "operator", "an operator is called 'relu' already"),
        ("acme", "pass", "kind is 'pass'; expected one of device, library, operator"),
    ],
)
def test_what_is_taken(name: str, kind: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new-plugin", name, "--kind", kind, "--to", str(tmp_path)]) == 2
    assert reason in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    first = {path: path.read_bytes() for path in new_plugin("acme", "device", tmp_path)}
    for path in first:
        path.write_bytes(b"mine")
    with pytest.raises(FluidError, match="fluidlite-acme is there already; nothing was written"):
        new_plugin("acme", "operator", tmp_path)
    assert {path.read_bytes() for path in first} == {b"mine"}
    (tmp_path / "fluidlite-beta").write_text("a file")
    with pytest.raises(FluidError, match="is there already"):
        new_plugin("beta", "device", tmp_path)
