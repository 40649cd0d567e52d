"""Helper modules that lie beside these tests are importable by name; a processor with other vector registers."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def with_registers(monkeypatch: pytest.MonkeyPatch) -> Callable[[tuple[int, int]], None]:
    """Give the host so many vector registers of so many bytes; nothing is prepared for these yet."""
    from fluidlite.base.lru_cache import LRUCache
    from fluidlite.platform.context_pool import get_context
    from fluidlite.platform.device_registry import devices

    context = get_context(devices.host())

    def give(registers: tuple[int, int]) -> None:
        monkeypatch.setattr(context.language, "registers", registers)
        monkeypatch.setattr(context, "prepared", LRUCache(256, "prepared kernels"))

    return give
