"""The library's logger; it never prints and adds no handler of its own."""

from __future__ import annotations

import logging

logger = logging.getLogger("fluidlite")
logger.addHandler(logging.NullHandler())
