"""Machine code of the CPU: caches weigh it as the process does, and what nobody holds gives its memory back."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROBE = """
import gc, os, tempfile
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp()
from fluidlite.base.lru_cache import LRUCache
from fluidlite.devices.cpu.language import LLVMLanguage

def used():
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE") / 1e6

TEXT = '''
void scaled_%d(const float* restrict x, float* restrict y, const long items) {
  for (long gid = fl_begin; gid < fl_end; ++gid) { y[gid] = x[gid] * x[gid] + %d.0f; }
}
'''
PARAMETERS = ("buffer", "buffer", "int64")
language, cache = LLVMLanguage(), LRUCache(4096, "test of native memory", 1 << 30)
begun = 0

def compiled(count):
    global begun
    for number in range(begun, begun + count):
        source = TEXT % (number, number)
        assert cache.get(source, lambda: language.compile(None, source, f"scaled_{number}", PARAMETERS)).address
    begun += count

compiled(20)
cache.clear()
before = used()
compiled(100)
grown, weighed = used() - before, cache.nbytes / 1e6
cache.clear()
compiled(100)
print(grown, weighed, used() - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_kernels_weigh_what_they_take() -> None:
    """A hundred kernels; as many again take the place of the first when these have gone."""
    run = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, timeout=300, check=True)
    grown, weighed, again = map(float, run.stdout.split())
    assert 0.6 * grown < weighed < 2 * grown + 4
    assert again < grown + 4  # with a pass manager that stays behind each compilation it is 7 MB more
