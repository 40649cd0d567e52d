"""The entry point of the command ``fluidlite``. It checks for optional packages before it imports anything large."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Returns 0; 1 if a command found faults (`certify`, `fuzz`); 2 for wrong arguments, or if an optional package is
    missing: a message, no traceback.
    """
    try:
        import rich  # noqa: F401
        import typer  # noqa: F401
    except ImportError as exc:
        print(f"fluidlite's command line needs {exc.name}\n  Do: pip install 'fluidlite[cli]'", file=sys.stderr)
        return 2
    from fluidlite.base.errors import FluidError, MissingExtraError
    from fluidlite.cli.commands import app

    try:
        app(args=list(arguments) if arguments is not None else None, prog_name="fluidlite")
    except MissingExtraError as exc:
        print(exc, file=sys.stderr)
        return 2
    except (FluidError, OSError) as exc:
        print(f"{type(exc).__name__}: {exc}", file=sys.stderr)
        return 2
    except SystemExit as exc:
        if exc.code is None or isinstance(exc.code, int):
            return exc.code or 0
        print(exc.code, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
