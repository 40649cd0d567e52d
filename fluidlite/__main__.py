"""``python -m fluidlite`` is the command ``fluidlite``."""

import sys

from fluidlite.cli.main import main

sys.exit(main())
