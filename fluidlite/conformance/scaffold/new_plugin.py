"""Write a plugin's package from templates."""

from __future__ import annotations

import keyword
import re
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from string import Template

from fluidlite import plugin_loader
from fluidlite.base.errors import FluidError
from fluidlite.platform.device_registry import devices
from fluidlite.program.kernel_registry import kernels
from fluidlite.program.registry import ops

KINDS = {
    "device": "a place: memory, copies, and a first kernel",
    "library": "kernels of a computing library on a place that there is",
    "operator": "a new operator with its gradient, on every place",
}
_NAME = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")


def new_plugin(name: str, kind: str, folder: str | Path = ".") -> list[Path]:
    """Write the package ``fluidlite-NAME``: metadata, a module, tests and a README. Return the files.

    ``name``: lower-case words, such as ``acme`` or ``my-chip``. It names the package, and the place kind, library or
    operator of the plugin.
    ``kind``: ``"device"``, ``"library"`` or ``"operator"``.
    ``folder``: the folder in which the package's folder is created.
    Raises FluidError if the name is invalid or in use, the kind is unknown, or the folder exists.
    """
    if kind not in KINDS:
        raise FluidError(f"kind is {kind!r}; expected one of {', '.join(KINDS)}")
    word = _checked(name, kind)
    package = Path(folder) / f"fluidlite-{name.replace('_', '-')}"
    if package.exists():
        raise FluidError(f"{package} is there already; nothing was written")
    names = {
        "package": package.name,
        "module": f"fluidlite_{word}",
        "name": word,
        "title": "".join(part.capitalize() for part in word.split("_")),
        "folder": package.name,
    }
    templates = resources.files("fluidlite.conformance.scaffold") / "templates"
    sources = _sources(names["module"], templates / kind)
    names["source"] = next(iter(sources)).partition("/")[0]
    contents = {
        "pyproject.toml": templates / "pyproject.toml.txt",
        "README.md": templates / kind / "README.md.txt",
        **sources,
        f"tests/test_{word}.py": templates / kind / "tests.py.txt",
    }
    written = []
    for target, source in contents.items():
        path = package / target
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(Template(source.read_text(encoding="utf-8")).substitute(names), encoding="utf-8")
        written.append(path)
    return written


def _sources(module: str, templates: Traversable) -> dict[str, Traversable]:
    """The source files: one module or, with samples, a package."""
    samples = templates / "samples.py.txt"
    if not samples.is_file():
        return {f"{module}.py": templates / "module.py.txt"}
    return {f"{module}/__init__.py": templates / "module.py.txt", f"{module}/samples.py": samples}


def _checked(name: str, kind: str) -> str:
    """The name as an identifier; raises if it is invalid, or if something of this kind has the name."""
    if not _NAME.fullmatch(name):
        raise FluidError(f"{name!r} is not a plugin's name; expected lower-case words, such as 'acme' or 'my-chip'")
    word = name.replace("-", "_")
    if keyword.iskeyword(word) or word in ("array", "language", "memory", "fluidlite", "plugin", "test"):
        raise FluidError(f"{name!r} is not a plugin's name: the word has a meaning already")
    origins = {record.name: record.origin for record in plugin_loader.plugins()}
    if word in origins:
        raise FluidError(f"a plugin is called {word!r} already: {origins[word]}")
    if kind == "device" and word in devices.kinds():
        raise FluidError(f"a kind of places is called {word!r} already")
    if kind == "library" and any(library.name == word for library in kernels.libraries()):
        raise FluidError(f"a library is called {word!r} already: {kernels.library(word).origin or 'built in'}")
    if kind == "operator" and ops.find(word) is not None:
        raise FluidError(f"an operator is called {word!r} already: {ops.get(word).origin}")
    return word
