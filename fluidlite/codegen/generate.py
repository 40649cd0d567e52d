"""The generators, put where the framework looks for them."""

from __future__ import annotations

from fluidlite.codegen.array_kernel import ArrayGenerator
from fluidlite.codegen.dialect_kernel import DialectGenerator
from fluidlite.framework.generators import generators

generators["dialect"] = DialectGenerator()
generators["array"] = ArrayGenerator()
