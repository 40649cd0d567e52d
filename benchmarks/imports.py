"""What ``import fluidlite`` adds to importing NumPy, and which modules it brings.

    python benchmarks/imports.py [--json FILE]

Each import happens in a fresh process, in turns; seconds are the processor's, which other processes change little.
Bytecode is cached, in a folder of this run's own, as it is after the first import of any installed package:
PYTHONDONTWRITEBYTECODE is unset for the processes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from typing import Any

from common import CORE_TYPE, Times, machine, options, report, show

LIMIT = 0.15
"""Seconds of the processor that the import may add."""

OPTIONAL = ("pyopencl", "cupy", "torch", "sklearn", "scipy", "typer", "rich", "click", "safetensors", "llvmlite",
            "onnx", "array_api_strict")  # fmt: skip
PLUGINS = ("fluidlite.devices.cpu", "fluidlite.devices.cuda", "fluidlite.devices.opencl", "fluidlite.kernels")

PROGRAM = """
import sys, time
start = time.process_time()
import numpy
middle = time.process_time()
before = set(sys.modules)
if sys.argv[1] == "fluidlite":
    import fluidlite
end = time.process_time()
import json
times = {"numpy": middle - start, "added": end - middle, "process": end}
print(json.dumps({**times, "modules": sorted(set(sys.modules) - before)}))
"""


def once(what: str, environment: dict[str, str]) -> dict[str, Any]:
    """Import in a fresh process."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, what], env=environment, check=True, capture_output=True, text=True
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> int:
    """Print the table; 1 if the import takes too long or brings what it should not."""
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args()
    unset = ("PYTHONDONTWRITEBYTECODE", CORE_TYPE)
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    added, numpy, with_us, without = Times(), Times(), Times(), Times()
    modules: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        environment["PYTHONPYCACHEPREFIX"] = folder
        for number in range(arguments.rounds + 1):
            alone, both = once("numpy", environment), once("fluidlite", environment)
            modules = both["modules"]
            if number:  # the first round fills the cache
                numpy.seconds += [alone["numpy"], both["numpy"]]
                added.seconds.append(both["added"])
                with_us.seconds.append(both["process"])
                without.seconds.append(alone["process"])
    rows = [
        ["import numpy", numpy.median, numpy.least],
        ["import fluidlite after it", added.median, added.least],
        ["a process that imports numpy", without.median, without.least],
        ["a process that imports both", with_us.median, with_us.least],
        ["what fluidlite adds to the process", with_us.median - without.median, with_us.least - without.least],
    ]
    show(
        f"Imports with cached bytecode, {arguments.rounds} processes each: seconds of the processor",
        ["what", "median", "least"],
        rows,
    )
    ours = [name for name in modules if name.partition(".")[0] == "fluidlite"]
    foreign = sorted({name.partition(".")[0] for name in modules} - {"fluidlite"} - set(sys.stdlib_module_names))
    optional = [name for name in foreign if name in OPTIONAL]
    plugins = [name for name in ours if any(name == plugin or name.startswith(plugin + ".") for plugin in PLUGINS)]
    print(f"\nIt brings {len(ours)} modules of its own and {', '.join(foreign) or 'no other package'}.")
    print(f"Optional libraries: {', '.join(optional) or 'none'}. Plugins: {', '.join(plugins) or 'none'}.")
    figures = {
        "seconds": {row[0]: {"median": row[1], "least": row[2]} for row in rows}, "packages": foreign,
        "modules": len(ours), "optional": optional, "plugins": plugins,
    }  # fmt: skip
    report(arguments.json, machine(1), figures)
    late = added.least > LIMIT
    if late:
        print(f"\nThe import adds more than {LIMIT} s.")
    return int(late or bool(optional) or bool(plugins))


if __name__ == "__main__":
    sys.exit(main())
