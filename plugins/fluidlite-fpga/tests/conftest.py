"""Fixtures: boards for a single test, and a timeout."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fluidlite_fpga import FpgaDevice

MEMORY = 1 << 20


@pytest.fixture
def device() -> Iterator[FpgaDevice]:
    """A device with two boards of 1 MiB; they start at their first use."""
    device = FpgaDevice(boards=2, memory=MEMORY)
    yield device
    device.close()


@pytest.fixture
def within() -> Callable[[float, Callable[[], Any]], Any]:
    """``within(seconds, function)``: the function's result, or a failure if it blocks for longer."""

    def run(seconds: float, function: Callable[[], Any]) -> Any:
        outcome: list[Any] = []

        def work() -> None:
            try:
                outcome.append((function(), None))
            except BaseException as error:
                outcome.append((None, error))

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join(seconds)
        assert outcome, f"still blocked after {seconds} seconds"
        value, error = outcome[0]
        if error is not None:
            raise error
        return value

    return run
