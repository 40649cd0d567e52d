"""Mutants of saved programs and folders: a few hundred; by hand `hostile_files.py` runs any number."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("hostile_files.py")


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="measures memory by Linux's /proc")
def test_hostile_programs_and_folders() -> None:
    """No other errors than FluidErrors, no hangs, nothing outside the folder, little memory.

    The same mutants at each run: what fails is of the change at hand. FLUIDLITE_HOSTILE_SEED gives others.
    """
    seed = int(os.environ.get("FLUIDLITE_HOSTILE_SEED", "1"))
    counts = ["--programs", "500", "--numbers", "8", "--folders", "250"]
    made = subprocess.run(
        [sys.executable, str(SCRIPT), *counts, "--seed", str(seed)], capture_output=True, text=True, check=False
    )
    print(made.stdout)
    assert made.returncode == 0, made.stdout + made.stderr
    assert ": 0 findings" in made.stdout
