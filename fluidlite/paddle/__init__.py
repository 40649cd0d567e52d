"""The package ``paddle`` as scripts of Fluid know it: ``python -m fluidlite.paddle script.py`` runs them as they are.

A script finds it under the name ``paddle`` only while :func:`run_script` runs it.
"""

import fluidlite as fluid
from fluidlite.batch import batch
from fluidlite.paddle import compat, dataset, reader, utils, version
from fluidlite.paddle.script import run_script

__version__ = version.full_version
__all__ = ["batch", "compat", "dataset", "fluid", "reader", "run_script", "utils", "version"]
