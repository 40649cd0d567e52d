"""A transformer on each usable place, and programs of its own for each test.

Helper modules that lie beside these tests are importable by name.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import fluidlite as fluid
from fluidlite import plugin_loader
from fluidlite.compiler.executable import executable_cache
from fluidlite.compiler.executable.fast_path import FastPath, fast_path_of
from fluidlite.transformers import Transformer, make_transformer_factory

sys.path.insert(0, str(Path(__file__).parent))

PLACES = ("cpu", pytest.param("opencl", marks=pytest.mark.opencl), "fpga")
STRICT = "strict"
"""The kind of the test-only device whose arrays have nothing but the Array-API standard's functions."""


@pytest.fixture
def cpu() -> Iterator[Transformer]:
    with make_transformer_factory("cpu")() as made:
        yield made


@pytest.fixture(params=PLACES)
def transformer(request: pytest.FixtureRequest, require: Callable[..., None]) -> Iterator[Transformer]:
    require(request.param)
    with make_transformer_factory(request.param)() as made:
        yield made


@pytest.fixture(scope="module")
def _strict() -> Iterator[None]:
    """The test-only plugin, till the module ends."""
    fluid.places()
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parent.parent / "plugins"))
        record = plugin_loader.load("strict", "strict_device")
    assert record.state == "loaded", record.traceback
    yield
    plugin_loader.unload("strict")


@pytest.fixture(params=(*PLACES, STRICT))
def any_place(request: pytest.FixtureRequest, require: Callable[..., None]) -> str:
    """Every kind of place that there is, one after the other."""
    if request.param == STRICT:
        pytest.importorskip("array_api_strict")
        request.getfixturevalue("_strict")
    else:
        require(request.param)
    return str(request.param)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each call that found a fast path: whether it was taken."""
    found: list[bool] = []

    def watched(*args: Any) -> FastPath | None:
        fast_path = fast_path_of(*args)
        if fast_path is not None:
            usual = fast_path.call

            def call(*given: Any) -> Any:
                values = usual(*given)
                found.append(values is not None)
                return values

            fast_path.call = call
        return fast_path

    monkeypatch.setattr(executable_cache, "fast_path_of", watched)
    return found
