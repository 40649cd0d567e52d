"""The package ``paddle`` as scripts of Fluid know it: ``python -m fluidlite.paddle script.py`` runs them as they are.

A script finds it under the name ``paddle`` only while :func:`run_script` runs it.
"""

import fluidlite as fluid
from fluidlite.batch import batch
from fluidlite.compat.installation import FLUID
from fluidlite.paddle import dataset, reader, utils
from fluidlite.paddle.script import run_script

__version__ = ".".join(map(str, FLUID))
__all__ = ["batch", "dataset", "fluid", "reader", "run_script", "utils"]
