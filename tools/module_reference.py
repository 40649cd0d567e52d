"""Writes docs/reference/modules/: a page for each public module, with every name's signature and docstring.

python tools/module_reference.py            write the pages
python tools/module_reference.py --missing  print what of the plugin API has no docstring
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy_docstring
from pages import code, described, escape, line, settle

from fluidlite import hookspecs, plugin

MODULES = (
    "fluidlite.plugin", "fluidlite.expr", "fluidlite.graph", "fluidlite.transformers", "fluidlite.testing",
    "fluidlite.executor", "fluidlite.memory", "fluidlite.backward", "fluidlite.optimizer", "fluidlite.regularizer",
    "fluidlite.clip", "fluidlite.initializer", "fluidlite.param_attr", "fluidlite.nets", "fluidlite.metrics",
    "fluidlite.average", "fluidlite.io", "fluidlite.data_feeder", "fluidlite.lod_tensor", "fluidlite.reader",
    "fluidlite.nodes", "fluidlite.nodes.layers", "fluidlite.nn", "fluidlite.nn.layers", "fluidlite.loaders",
    "fluidlite.distributed", "fluidlite.paddle", "fluidlite.contrib", "fluidlite.transpiler", "fluidlite.errors",
    "fluidlite.unique_name", "fluidlite.default_scope_funcs", "fluidlite.input", "fluidlite.op", "fluidlite.core",
    "fluidlite.framework", "fluidlite.dataset", "fluidlite.incubate.data_generator", "fluidlite",
)  # fmt: skip
"""In this order: a name is described where it comes first, and elsewhere refers to that."""


def _names(module: ModuleType) -> list[str]:
    own = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
    return getattr(module, "__all__", None) or [name for name in own if not name.startswith("_")]


def named(module: ModuleType) -> dict[str, Any]:
    """Every public name of a module with what it is; beside those of the plugin API, the hooks."""
    found = {name: getattr(module, name) for name in sorted(_names(module), key=str.lower)}
    if module is plugin:
        found |= {name: value for name, value in vars(hookspecs).items() if name.startswith("register_")}
    return found


def signature(name: str, function: Any) -> str:
    """A signature with annotations as they are written."""
    try:
        plain = inspect.signature(function)
    except (TypeError, ValueError):
        return name
    parts: list[str] = []
    star = False
    for parameter in plain.parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            star = True
            parts.append("*")
        marks: dict[Any, str] = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}
        mark = marks.get(parameter.kind, "")
        star = star or parameter.kind is parameter.VAR_POSITIONAL
        text = mark + parameter.name + _annotation(": ", parameter.annotation)
        if parameter.default is not parameter.empty:
            text += f" = {_default(parameter.default)}"
        parts.append(text)
    return f"{name}({', '.join(parts)}){_annotation(' -> ', plain.return_annotation)}"


def _annotation(before: str, annotation: Any) -> str:
    if annotation is inspect.Signature.empty:
        return ""
    return before + (annotation if isinstance(annotation, str) else getattr(annotation, "__name__", repr(annotation)))


def _default(value: Any) -> str:
    text = repr(value)
    return "..." if " at 0x" in text or text.startswith("<") else text


def members(each: type) -> Iterator[tuple[str, Any]]:
    """Public methods and properties of a class: its own in their order, then those of bases that no page describes."""
    elsewhere = [base for base in each.__mro__[1:] if base in _described()]
    parts = [base for base in each.__mro__ if ours(base) and not any(issubclass(known, base) for known in elsewhere)]
    found: dict[str, Any] = {}
    for base in parts:
        found = {**found, **{name: value for name, value in vars(base).items() if name not in found}}
    for name, value in found.items():
        if name.startswith("_"):
            continue
        if isinstance(value, (staticmethod, classmethod)):
            value = value.__func__
        if inspect.isfunction(value) or isinstance(value, property):
            yield name, value


@cache
def _described() -> frozenset[type]:
    """The classes that the pages describe."""
    every = [value for name in MODULES for value in named(import_module(name)).values()]
    return frozenset(value for value in every if inspect.isclass(value))


def ours(each: Any) -> bool:
    """Whether fluidlite itself says what it is."""
    return (getattr(each, "__module__", None) or "").startswith("fluidlite")


def constructed(each: type[Any]) -> bool:
    """Whether fluidlite itself says what a class is made of."""
    return (ours(each.__init__) or ours(each.__new__)) and not getattr(each, "_is_protocol", False)


def _text(each: Any) -> str:
    return described(numpy_docstring.read(each))


def _class(name: str, each: type) -> str:
    makes = constructed(each)
    head = signature(name, each) if makes else f"class {name}"
    text = f"```text\n{head}\n```\n\n{_text(each)}"
    rows = []
    for member, value in members(each):
        shown = member if isinstance(value, property) else signature(member, value)
        said = line(numpy_docstring.read(value).summary)
        rows.append(f"- `{shown}`" + (f": {escape(said)}" if said else "") + "\n")
    return text + ("\n" + "".join(rows) if rows else "")


def _module(each: ModuleType) -> str:
    rows = []
    for name in _names(each):
        value = getattr(each, name)
        said = line(numpy_docstring.read(value).summary) if callable(value) else ""
        shown = signature(name, value) if inspect.isfunction(value) else name
        rows.append(f"- `{shown}`" + (f": {escape(said)}" if said else "") + "\n")
    return f"{_text(each)}\n" + "".join(rows)


def entry(name: str, each: Any) -> str:
    if inspect.isclass(each):
        body = _class(name, each)
    elif inspect.ismodule(each):
        body = _module(each)
    elif inspect.isfunction(each):
        body = f"```text\n{signature(name, each)}\n```\n\n{_text(each)}"
    else:
        shown = repr(each)
        body = f"{code(shown)}\n" if len(shown) < 200 and " at 0x" not in shown else _text(type(each))
    return f"## {name}\n\n{body}"


def pages() -> dict[str, str]:
    found: dict[str, str] = {}
    described: dict[int, str] = {}
    for path in MODULES:
        module = import_module(path)
        names = named(module)
        text = f"# {path}\n\n{_text(module)}\n"
        text += ", ".join(f"[{name}](#{name.lower()})" for name in names) + "\n\n"
        for name, each in names.items():
            known = described.get(id(each))
            if known is not None and callable(each):
                text += (
                    f"## {name}\n\nSee [{known}]({known.rpartition('.')[0]}.md#{known.rpartition('.')[2].lower()}).\n\n"
                )
                continue
            if callable(each):
                described[id(each)] = f"{path}.{name}"
            text += (_mention(name, each) if inspect.ismodule(each) else entry(name, each)) + "\n"
        found[f"modules/{path}.md"] = text
    rows = "".join(
        f"- [{path}]({path}.md): {escape(line(numpy_docstring.read(import_module(path)).summary))}\n"
        for path in sorted(MODULES)
    )
    found["modules/index.md"] = f"# Public modules\n\n{rows}"
    return found


def _mention(name: str, module: ModuleType) -> str:
    """A module among the names of another one, which has a page of its own or stands there whole."""
    path = module.__name__
    if path in MODULES:
        return f"## {name}\n\nSee [{path}]({path}.md).\n"
    if path == "fluidlite.layers":
        return f"## {name}\n\nSee [all layers](../layers.md).\n"
    return entry(name, module)


def missing() -> list[str]:
    """Public functions, classes and methods of fluidlite.plugin that have no docstring."""
    found = []
    for name, each in named(plugin).items():
        if not callable(each) or not ours(each):
            continue
        if not inspect.getdoc(each):
            found.append(name)
        if inspect.isclass(each):
            found += [f"{name}.{member}" for member, value in members(each) if not inspect.getdoc(value)]
    return found


def main(arguments: list[str]) -> int:
    if "--missing" in arguments:
        print("\n".join(missing()))
        return 0
    settle(pages(), "modules")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
