"""The package ``paddle`` for scripts of Fluid: ``python -m fluidlite.paddle script.py`` runs them unchanged.

It can be imported as ``paddle`` only while :func:`run_script` runs a script.
"""

import fluidlite as fluid
from fluidlite.batch import batch
from fluidlite.paddle import compat, dataset, reader, utils, version
from fluidlite.paddle.script import run_script

__version__ = version.full_version
__all__ = ["batch", "compat", "dataset", "fluid", "reader", "run_script", "utils", "version"]
