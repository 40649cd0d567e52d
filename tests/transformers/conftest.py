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
from fluidlite.transformers import Transformer, make_transformer_factory, replay
from fluidlite.transformers.direct import Direct, direct

sys.path.insert(0, str(Path(__file__).parent))

PLACES = ("cpu", pytest.param("opencl", marks=pytest.mark.opencl), "fpga")


@pytest.fixture(autouse=True)
def _own_programs() -> Iterator[None]:
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        yield


@pytest.fixture
def cpu() -> Iterator[Transformer]:
    with make_transformer_factory("cpu")() as made:
        yield made


@pytest.fixture(params=PLACES)
def transformer(request: pytest.FixtureRequest, require: Callable[..., None]) -> Iterator[Transformer]:
    require(request.param)
    with make_transformer_factory(request.param)() as made:
        yield made


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each call that found a straight way: whether it was taken."""
    found: list[bool] = []

    def watched(*args: Any) -> Direct | None:
        way = direct(*args)
        if way is not None:
            usual = way.call

            def call(*given: Any) -> Any:
                values = usual(*given)
                found.append(values is not None)
                return values

            way.call = call
        return way

    monkeypatch.setattr(replay, "direct", watched)
    return found
