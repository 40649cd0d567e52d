"""The exceptions and warnings of fluidlite; the base class is :class:`FluidError`."""

from fluidlite.base.errors import *  # noqa: F403
from fluidlite.base.exports import export as _export

_export(__name__)
