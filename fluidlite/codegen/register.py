"""The generators, put where the framework looks for them."""

from __future__ import annotations

from fluidlite.codegen.array_kernel import ArrayGenerator
from fluidlite.codegen.language_kernel import KernelLanguageGenerator
from fluidlite.program.codegen_registry import generators

generators["language"] = KernelLanguageGenerator()
generators["array"] = ArrayGenerator()
