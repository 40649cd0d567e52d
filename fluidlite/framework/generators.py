"""Where code generators put themselves: capability -> how a kernel is made from an operator's expression."""

from __future__ import annotations

from typing import Any, Protocol

from fluidlite.framework.call import Call
from fluidlite.framework.kernels import Run


class Generator(Protocol):
    """Makes kernels of scalar expressions for one capability."""

    def refuse(self, call: Call, unit: Any) -> str | None:
        """Why no kernel can be generated for this call on a device (``unit``: info, array, dialect), or None."""
        ...

    def prepare(self, call: Call, context: Any) -> Run:
        """Return ``run(context, io)``."""
        ...


generators: dict[str, Generator] = {}
"""Filled by ``fluidlite.codegen``; asked in this order: dialect, then array."""
