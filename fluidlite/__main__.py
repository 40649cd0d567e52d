"""``python -m fluidlite`` is the command ``fluidlite``."""

import sys

from fluidlite.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
