"""GraphPass and PeepholeGraphPass: the base classes of passes, which rewrite a graph before it is planned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Union

from fluidlite.base.errors import ProgramError
from fluidlite.compiler.ir.graph import Graph
from fluidlite.compiler.ir.graph_nodes import GraphOp, GraphValue, Replaceable

_MAX_ROUNDS = 100
"""Rounds over all operators before a peephole pass fails: it does not converge."""


class GraphPass:
    """A rewrite of graphs: subclass it, and define :meth:`do_pass`.

    Attributes
    ----------
    phase : str
        Its position in the list of a transformer, unless it is registered with another phase.
    """

    phase: str = "simplify"

    @property
    def name(self) -> str:
        """Its name in lists and errors."""
        return type(self).__name__

    def do_pass(self, graph: Graph) -> None:
        """Rewrite the graph."""
        raise NotImplementedError(f"{self.name} does not define do_pass(graph)")


class OpType:
    """A class that names an operator type in :meth:`visit.on_type`."""

    type: ClassVar[str]


class Add(OpType):
    """x + y."""

    type = "elementwise_add"


class Subtract(OpType):
    """x - y."""

    type = "elementwise_sub"


class Multiply(OpType):
    """x y."""

    type = "elementwise_mul"


class Divide(OpType):
    """x / y."""

    type = "elementwise_div"


class Power(OpType):
    """x to the power of y."""

    type = "elementwise_pow"


Visit = Callable[[Any, GraphOp], None]


class Visitor:
    """Visitor methods of a pass by operator type; ``visit`` is the empty instance."""

    def __init__(self, methods: tuple[tuple[str, Visit], ...] = ()) -> None:
        self.methods = methods

    def on_type(self, kind: Union[type[OpType], str]) -> Callable[[Union[Visit, Visitor]], Visitor]:
        """Decorate a method ``(self, op)`` of a :class:`PeepholeGraphPass`: it is called for operators of a type.

        A method that is decorated several times is called for several types.

        ``kind``: such as ``Add``, or ``"elementwise_add"``.
        """
        text = kind if isinstance(kind, str) else getattr(kind, "type", None)
        if not isinstance(text, str):
            raise ProgramError(f"visit.on_type takes a class such as Add, or a type's text, got {kind!r}")

        def add(method: Union[Visit, Visitor]) -> Visitor:
            if isinstance(method, Visitor):  # a method of several types
                return Visitor((*self.methods, *method.methods, (text, method.methods[-1][1])))
            return Visitor((*self.methods, (text, method)))

        return add


visit = Visitor()


class PeepholeGraphPass(GraphPass):
    """A pass that visits one operator at a time, until a fixed point.

    Its methods are decorated with ``@visit.on_type(...)``, and may all be called ``visit``. ``self.graph`` is
    the graph, and :meth:`replace_op` replaces the output of an operator.
    """

    _visitors: ClassVar[dict[str, list[Visit]]] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls._visitors = {kind: list(methods) for kind, methods in cls._visitors.items()}
        for item in list(vars(cls).values()):
            for kind, method in item.methods if isinstance(item, Visitor) else ():
                registered = cls._visitors.setdefault(kind, [])
                if method not in registered:  # a decorated method contains those of its name before it
                    registered.append(method)

    def __init__(self) -> None:
        self.graph: Graph
        self._changed = False

    def do_pass(self, graph: Graph) -> None:
        """Visit all operators in order, repeatedly until no operator is replaced.

        Raises
        ------
        ProgramError
            If it does not converge.
        """
        self.graph = graph
        try:
            for _ in range(_MAX_ROUNDS):
                self._changed, ops = False, list(graph.ops)
                for op in ops:
                    for method in self._visitors.get(op.type, ()):
                        method(self, op)
                if self._changed or len(graph.ops) > len(ops):  # an inserted operator may have no reader
                    graph.prune()
                if not self._changed:
                    return
        finally:
            del self.graph  # a pass outlives its graphs
        raise ProgramError(f"pass {self.name} does not converge: it replaces operators again and again")

    def replace_op(self, op: Replaceable, rep: Replaceable) -> None:
        """Let all readers of the value of ``op`` read that of ``rep``; values stored in state are not replaced.

        Raises
        ------
        ProgramError
            If dims or dtypes differ.
        """
        old = op.value if isinstance(op, GraphOp) else op
        new = rep.value if isinstance(rep, GraphOp) else rep
        if not isinstance(old, GraphValue) or not isinstance(new, GraphValue):
            raise ProgramError(
                f"pass {self.name} replaces {op!r} by {rep!r}; expected operators or values of the graph"
            )
        if old.state is None and (self.graph.is_result(old) or self.graph.readers(old)):
            self.graph.replace(old, new)
            self._changed = True
