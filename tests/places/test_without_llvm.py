"""Every operator and its gradient, on the CPU without llvmlite: NumPy computes all of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from operator_checks import CHECKS

SCRIPT = """
import json, sys
sys.modules["llvmlite"] = None
from fluidlite.platform.device_registry import devices
sys.path.insert(0, sys.argv[1])
from operator_checks import CHECKS, QUARTERS, pairwise, shared, written_for

assert devices.unit("cpu").language is None
done, failed, kinds = 0, [], ("array", "memory")
found = shared(pairwise(CHECKS, kinds), QUARTERS["cpu without llvmlite"], kinds)
found += written_for(pairwise(CHECKS, ("cpu", *kinds)), "cpu")
for check in {check.id: check for check in found}.values():
    try:
        check("cpu")
    except Exception as error:
        failed.append(f"{check.id}: {type(error).__name__}: {error}"[:500])
    done += 1
print(json.dumps([done, failed]))
"""


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_every_operator_conforms() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(Path(__file__).parents[1])], capture_output=True, text=True, timeout=1100
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    done, failed = json.loads(ran.stdout)
    assert not failed
    assert done > len({check.operator for check in CHECKS})
