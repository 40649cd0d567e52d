"""Names of interpolations that operators and layers share."""

from __future__ import annotations

SIZES = ("out_d", "out_h", "out_w")
METHODS = {3: ("linear",), 4: ("bilinear", "nearest", "bicubic"), 5: ("trilinear",)}
"""The methods for each rank of X."""
