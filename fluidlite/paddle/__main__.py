"""``python -m fluidlite.paddle [--data DIR] script.py [arguments]``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from fluidlite.base.errors import FluidError
from fluidlite.paddle.dataset import files
from fluidlite.paddle.script import ScriptError, report, run_script


def main(argv: Sequence[str] | None = None) -> int:
    """Run a script; return the status to exit with: 0, 1 if the script raised, 2 if it could not be started."""
    parser = argparse.ArgumentParser(
        "python -m fluidlite.paddle", description="Run a script that imports paddle.fluid as it is."
    )
    parser.add_argument("--data", metavar="DIR", help=f"folder of paddle.dataset's files (default: ${files.VARIABLE})")
    parser.add_argument("script", help="the Python file")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments of the script")
    options = parser.parse_args(argv)
    try:
        if options.data is not None:
            files.set_folder(options.data)
        run_script(options.script, options.arguments)
    except ScriptError as exc:
        report(exc.error)
        return 1
    except FluidError as exc:
        print(f"fluidlite.paddle: {exc}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
