"""Every sample and gradient on the CPU where llvmlite cannot be imported: NumPy computes all of it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from fluidlite.testing import checks

SCRIPT = """
import json, sys
sys.modules["llvmlite"] = None
from fluidlite.platform.devices import devices
from fluidlite.testing import checks

assert devices.unit("cpu").dialect is None
done, failed = 0, []
for check in checks():
    try:
        check("cpu")
    except Exception as error:
        failed.append(f"{check.id}: {type(error).__name__}: {error}"[:500])
    done += 1
print(json.dumps([done, failed]))
"""


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_every_sample_conforms() -> None:
    ran = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=1100)
    assert ran.returncode == 0, ran.stderr[-2000:]
    done, failed = json.loads(ran.stdout)
    assert not failed
    assert done == len(checks())
