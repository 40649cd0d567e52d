"""Calls of Python functions of fluidlite at a run of a program, by ``sys.setprofile``: the first run, and later ones.

    python benchmarks/calls.py [--by] [--program NAME] [--json FILE]

The program is x * 2 -> relu -> fc(softmax), or a training step of it, on the cpu. A count is the same at each try, so a
test holds it. Counted is each entry of a function whose code lies in a file of the package, a resumed generator's too;
code that was generated is not. All modules are imported before, and machine code of kernels is on the disk: it is the
second of two processes that share a folder for it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from typing import Any

from common import CORE_TYPE, machine, options, report, show

PROGRAM = """
import gc, importlib, json, os, pkgutil, sys
from collections import Counter
import numpy as np
import fluidlite as fluid
from fluidlite import layers

for module in pkgutil.walk_packages(fluid.__path__, "fluidlite."):
    try:
        importlib.import_module(module.name)
    except ImportError:  # of a device that is not here
        pass
package = os.path.dirname(fluid.__file__) + os.sep
x = layers.data("x", [64])
y = layers.fc(layers.relu(x * 2), 10, act="softmax")
if sys.argv[1] == "training":
    y = layers.mean(layers.cross_entropy(y, layers.data("label", [1], dtype="int64")))
    fluid.optimizer.SGD(0.1).minimize(y)
feed = {"x": np.ones((32, 64), "float32"), "label": np.zeros((32, 1), "int64")}
feed = {name: array for name, array in feed.items() if fluid.default_main_program().global_block().has_var(name)}
exe = fluid.Executor("cpu")
exe.run(fluid.default_startup_program())
gc.disable()

def counted():
    found = Counter()
    def note(frame, event, arg):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(package):
            found[code.co_filename[len(package):], code.co_qualname] += 1
    sys.setprofile(note)
    try:
        exe.run(feed=feed, fetch_list=[y])
    finally:
        sys.setprofile(None)
    return list(map(list, found.items()))

first = counted()
for _ in range(5):
    exe.run(feed=feed, fetch_list=[y])
print(json.dumps({"first run": first, "later runs": counted()}))
"""

Calls = dict[tuple[str, str], int]
"""How often each function was called, by file and name."""


def once(program: str, folder: str) -> dict[str, Calls]:
    """Count in a fresh process, whose caches on the disk lie in a folder."""
    environment = {name: value for name, value in os.environ.items() if name != CORE_TYPE}
    environment |= {"XDG_CACHE_HOME": folder, "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, program], env=environment, check=True, capture_output=True, text=True
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return {when: {(file, name): count for (file, name), count in calls} for when, calls in found.items()}


def counts(program: str = "inference") -> dict[str, Calls]:
    """Calls of the first run and of later ones, by function."""
    with tempfile.TemporaryDirectory() as folder:
        once(program, folder)
        return once(program, folder)


def main() -> int:
    """Print the counts."""
    parser = options(__doc__)
    parser.add_argument("--by", action="store_true", help="tables by module and by function")
    parser.add_argument("--program", choices=("inference", "training"), default="inference")
    arguments = parser.parse_args()
    found = counts(arguments.program)
    totals = {when: sum(calls.values()) for when, calls in found.items()}
    show(f"Calls of functions of fluidlite, {arguments.program}", ["run", "calls"], list(map(list, totals.items())))
    for when, calls in found.items() if arguments.by else ():
        modules: dict[str, int] = {}
        for (file, _), count in calls.items():
            modules[file] = modules.get(file, 0) + count
        functions = {f"{file}: {name}": count for (file, name), count in calls.items()}
        for what, by in (("module", modules), ("function", functions)):
            rows = sorted(by.items(), key=lambda row: -row[1])
            show(f"{when}, by {what}", [what, "calls"], list(map(list, rows[:100])))
    report(arguments.json, machine(arguments.threads), totals)
    return 0


if __name__ == "__main__":
    sys.exit(main())
