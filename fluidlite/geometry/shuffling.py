"""Which channels temporal_shift moves."""

from __future__ import annotations

import numpy as np


def shifted(channels: int, ratio: float) -> tuple[int, int]:
    """Where the channels end that come a step later, and those a step earlier; rounded in float32, as Fluid does."""
    count, part = np.float32(channels), np.float32(ratio)
    return int(count * part), int(count * np.float32(2) * part)
