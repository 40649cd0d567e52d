"""Lets tests say ``from op_test import OpTest``, as those written for Fluid do."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
