"""A transformer on each usable place, and programs of its own for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import fluidlite as fluid
from fluidlite.transformers import Transformer, make_transformer_factory

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
