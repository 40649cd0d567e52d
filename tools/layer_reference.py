"""Writes docs/reference/layers.md and a page for each module of layers, from signatures and docstrings.

python tools/layer_reference.py            write the pages
python tools/layer_reference.py --missing  print what the docstrings lack
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy_docstring
from pages import code, described, escape, line, settle, table

from fluidlite import layers

FOLDER = "layers"
HEAD = """# All layers

Written by `tools/layer_reference.py` from signatures and docstrings. {count} functions of `fluidlite.layers`, by what
they are for; each appends operators ([all operators](operators.md)) to the default program. [A tour of
them](../layers.md) has examples that run.

"""
Layer = Callable[..., Any]


def functions() -> dict[str, Layer]:
    return {name: getattr(layers, name) for name in sorted(set(layers.__all__), key=str.lower)}


def _module(function: Layer) -> str:
    """The module that declares a layer; those made of definitions are the module ``ops``'s."""
    return "ops" if function.__module__ == layers.__name__ else function.__module__.rpartition(".")[2]


def signature(name: str, function: Layer) -> str:
    """The signature without annotations, which the list of parameters says in words."""
    plain = inspect.signature(function)
    bare = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in plain.parameters.values()]
    return f"{name}{plain.replace(parameters=bare, return_annotation=inspect.Signature.empty)}"


def _layer(name: str, function: Layer) -> str:
    doc = numpy_docstring.read(function)
    text = f"## {name}\n\n```text\n{signature(name, function)}\n```\n\n{described(doc)}"
    return text + (f"\n```pycon\n{doc.examples}\n```\n" if doc.examples else "")


def pages() -> dict[str, str]:
    """The text of each page, by path below the reference."""
    members: dict[str, dict[str, Layer]] = {}
    for name, function in functions().items():
        members.setdefault(_module(function), {})[name] = function
    found: dict[str, str] = {}
    families = ""
    for module, those in sorted(members.items()):
        doc = (import_module(f"{layers.__name__}.{module}").__doc__ or "").strip()
        title = line(doc.partition("\n\n")[0])
        links = ", ".join(f"[{name}](#{name.lower()})" for name in those)
        text = f"# {escape(title.rstrip('.'))}\n\nSome of [all layers](../{FOLDER}.md).\n\n{links}\n\n"
        found[f"{FOLDER}/{module}.md"] = text + "\n".join(_layer(name, each) for name, each in those.items())
        there = ", ".join(f"[{name}]({FOLDER}/{module}.md#{name.lower()})" for name in those)
        families += f"- [{module}]({FOLDER}/{module}.md): {escape(title)}\\\n  {there}\n"
    rows = [
        (f"[{name}]({FOLDER}/{_module(each)}.md#{name.lower()})", escape(line(numpy_docstring.read(each).summary)),
         code(signature("", each)))
        for name, each in functions().items()
    ]  # fmt: skip
    index = HEAD.format(count=len(rows)) + f"## By family\n\n{families}\n## From A to Z\n\n"
    found[f"{FOLDER}.md"] = index + table(("layer", "what it does", "arguments"), rows)
    return found


def main(arguments: list[str]) -> int:
    if "--missing" in arguments:
        for name, function in functions().items():
            for problem in numpy_docstring.problems(function):
                print(f"{_module(function)}.{name}: {problem}")
        return 0
    settle(pages(), FOLDER)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
