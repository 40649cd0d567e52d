"""Functions that authors of plugins and operators call take few parameters: what is rare is in dataclasses of options.

The rule, for every function, class and method that ``fluidlite.plugin`` and ``fluidlite.expr`` name: at most 8
parameters, ``*args`` and ``**kwargs`` counted as one each. A frozen dataclass that leaves its construction to the
decorator is data, not a call: a reader sees names and values. It may have more fields if at most 3 of them may be given
without their names. No function of the two modules hides parameters behind ``**kwargs`` that it hands on.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest

from fluidlite import expr, plugin

MAX_PARAMETERS = 8
MAX_POSITIONAL_FIELDS = 3
MODULES = (plugin, expr)


def _callables(module: ModuleType) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Every function, class and method behind the public names of a module, and of modules among them."""
    for name in module.__all__:
        value, path = getattr(module, name), f"{module.__name__}.{name}"
        if inspect.ismodule(value):
            yield from ((f"{path}.{each}", found) for each, found in _of_module(value))
        elif inspect.isclass(value):
            yield path, value
            yield from ((f"{path}.{each}", found) for each, found in _methods(value))
        elif callable(value) and inspect.isroutine(value):
            yield path, value


def _of_module(module: ModuleType) -> Iterator[tuple[str, Callable[..., Any]]]:
    for name, value in vars(module).items():
        if not name.startswith("_") and getattr(value, "__module__", "") == module.__name__ and callable(value):
            yield name, value


def _methods(cls: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    for name, value in inspect.getmembers(cls, inspect.isroutine):
        if not name.startswith("_") and getattr(value, "__module__", "").startswith("fluidlite"):
            yield name, value


def _refusal(value: Callable[..., Any]) -> str | None:
    """What the rule has against a function or class; None if nothing."""
    try:
        parameters = [each for each in inspect.signature(value).parameters.values() if each.name not in ("self", "cls")]
    except ValueError:  # an exception of Python's own constructor
        return None
    if _is_data(value):
        positional = [each.name for each in parameters if each.kind is not each.KEYWORD_ONLY]
        if len(parameters) > MAX_PARAMETERS and len(positional) > MAX_POSITIONAL_FIELDS:
            return f"{len(positional)} of its fields need no name: {', '.join(positional)}"
        return None
    if len(parameters) > MAX_PARAMETERS:
        return f"{len(parameters)} parameters: {', '.join(each.name for each in parameters)}"
    return None


def _is_data(value: Any) -> bool:
    parameters = getattr(value, "__dataclass_params__", None)
    return inspect.isclass(value) and parameters is not None and bool(parameters.frozen and parameters.init)


FOUND = {path: value for module in MODULES for path, value in _callables(module)}


def test_the_walk_sees_functions_classes_and_methods() -> None:
    for path in ("plugin.register_op", "plugin.register_kernel", "plugin.Slot", "plugin.Call.fail", "expr.window"):
        assert f"fluidlite.{path}" in FOUND
    assert len(FOUND) > 250


def test_few_parameters() -> None:
    refused = {path: _refusal(value) for path, value in FOUND.items()}
    assert {path: why for path, why in refused.items() if why is not None} == {}


@pytest.mark.parametrize("name", ["operator", "gradient", "register_op", "register_kernel", "unary", "binary"])
def test_what_declares_hides_no_parameters(name: str) -> None:
    kinds = {each.kind for each in inspect.signature(getattr(plugin, name)).parameters.values()}
    assert inspect.Parameter.VAR_KEYWORD not in kinds


def test_the_rule_refuses() -> None:
    def nine(a: int, b: int, c: int, d: int, e: int, f: int, g: int, h: int, i: int) -> None: ...

    def hidden(a: int, b: int, c: int, d: int, e: int, f: int, g: int, *h: int, **i: int) -> None: ...

    fields = [(name, int) for name in "abcdefghi"]
    data = dataclasses.make_dataclass("data", fields, frozen=True, kw_only=True)
    assert "9 parameters" in str(_refusal(nine))
    assert "9 parameters" in str(_refusal(hidden))
    assert _refusal(data) is None
    assert "9 of its fields" in str(_refusal(dataclasses.make_dataclass("data", fields, frozen=True)))
    assert "9 parameters" in str(_refusal(dataclasses.make_dataclass("data", fields, kw_only=True)))
