"""Executor: runs a program on a place."""

from fluidlite.executor.executor import Executor
from fluidlite.framework.scope import Scope, global_scope, scope_guard

__all__ = ["Executor", "Scope", "global_scope", "scope_guard"]
