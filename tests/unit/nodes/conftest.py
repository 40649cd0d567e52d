"""Every kind of place that there is, one after the other."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import fluidlite as fluid

KINDS = ("cpu", "opencl", "fpga", *{where.kind for where in fluid.places() if where.kind == "cuda"})


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, require: Callable[..., None]) -> str:
    """A place, as text with its index."""
    require(request.param)
    return f"{request.param}:0"
