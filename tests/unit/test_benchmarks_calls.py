"""Calls of functions at a run do not grow: counts are the same at each try."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "calls.py"
MOST = {"first run": 3210, "later runs": 16}


def test_calls_of_a_run(tmp_path: Path) -> None:
    """The program is x * 2 -> relu -> fc(softmax), on the cpu."""
    written = tmp_path / "calls.json"
    subprocess.run([sys.executable, SCRIPT, "--json", written], check=True, capture_output=True, timeout=300)
    found = json.loads(written.read_text(encoding="utf-8"))
    assert all(0 < found["figures"][when] <= most for when, most in MOST.items()), found
