"""stack and unstack with gradients, unbind."""

from __future__ import annotations

from fluidlite.plugin import register_kernel

from .concat_split import lay

stack = register_kernel("stack", "dialect")(lay)
stack_grad = register_kernel("stack_grad", "dialect")(lay)
unstack = register_kernel("unstack", "dialect")(lay)
unstack_grad = register_kernel("unstack_grad", "dialect")(lay)
unbind = register_kernel("unbind", "dialect")(lay)
