"""Translates statements of C to LLVM IR."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fluidlite.codegen.llvm.c_types import Type, Value
from fluidlite.codegen.llvm.expressions import Expressions
from fluidlite.codegen.llvm.function import CError, FunctionText

if TYPE_CHECKING:
    from fluidlite.codegen.llvm.translate import Module

_LOOPS = ("For", "While", "DoWhile")


# What a statement contains, as bits: loops, loops over lanes, loops without a constant trip count, exits, and others.
_LOOP, _LANES, _OPEN_LOOP, _EXIT, _PRAGMA, _ARRAY = (1 << k for k in range(6))
_OWN_CONTENT = {
    **dict.fromkeys(_LOOPS, _LOOP),
    "Break": _EXIT,
    "Return": _EXIT,
    "Pragma": _PRAGMA,
    "ArrayDecl": _ARRAY,
}
INDEPENDENT = '"independent"'
"""The pragma before a loop with independent iterations, even if an output aliases an input."""
LANES = 8
"""A loop with a constant trip count that is a multiple of this is a loop over vector lanes."""


class Statements(Expressions):
    """Writes the statements of one function."""

    def __init__(self, module: Module, writer: FunctionText, result: Type) -> None:
        super().__init__(module, writer)
        self.result = result
        self._loops: list[tuple[str, str]] = []
        """For each enclosing loop the targets of ``continue`` and ``break``."""
        self._independent: Any = None
        """The body of the last loop with independent iterations."""
        self._contents: dict[Any, int] = {}

    def parameter(self, name: str, kind: Type) -> None:
        """Declare a parameter; it is in memory, since the text may assign to it."""
        address = self.writer.slot(kind, name)
        self.writer.store(Value(f"%{name}", kind), address, kind)
        self.scopes[-1][name] = (kind, address, True)

    def run(self, node: Any) -> None:
        if self.writer.terminated:
            return
        method = getattr(self, "_do_" + type(node).__name__.lower(), None)
        if method is None:
            self.value(node)
        else:
            self.write(method, node)

    def _do_compound(self, node: Any) -> None:
        self.scopes.append({})
        pragma = False
        for item in node.block_items or ():
            if pragma and type(item).__name__ not in _LOOPS:
                raise CError("no loop behind a pragma", item.coord.line)
            self._independent = item.stmt if pragma else self._independent
            pragma = type(item).__name__ == "Pragma"
            self.run(item)
        self.scopes.pop()

    def _do_emptystatement(self, node: Any) -> None:
        """Write nothing."""

    def _do_decllist(self, node: Any) -> None:
        for decl in node.decls:
            self.run(decl)

    def _do_decl(self, node: Any) -> None:
        kind, init = self.module.type_of(node.type), node.init
        if kind.kind == "void":
            raise CError(f"{node.name!r} has type void")
        if node.name in self.scopes[-1]:
            raise CError(f"{node.name!r} is declared twice")
        if "const" in node.quals and kind.scalar and init is not None:  # needs no memory
            value = self.writer.convert(self.value(init), kind)
            self.scopes[-1][node.name] = (kind, value.text, False)
            return
        address = self.writer.slot(kind, node.name)
        if type(init).__name__ == "InitList":
            if kind.kind != "array" or kind.of is None or len(init.exprs) > kind.count:
                raise CError("braces begin an array that holds them")
            self.writer.emit(f"store {kind.text} zeroinitializer, ptr {address}")
            for position, part in enumerate(init.exprs):
                value = self.value(part)
                item = self.writer.value(f"getelementptr inbounds {kind.of.text}, ptr {address}, i64 {position}", kind)
                self.writer.store(value, item.text, kind.of)
        elif init is not None:
            self.writer.store(self.value(init), address, kind)
        self.scopes[-1][node.name] = (kind, address, True)

    def _do_if(self, node: Any) -> None:
        writer = self.writer
        yes, end = writer.unused_name("then"), writer.unused_name("end")
        no = writer.unused_name("else") if node.iffalse is not None else end
        writer.branch(self.value(node.cond), yes, no)
        writer.start(yes)
        self._run_scoped(node.iftrue)
        yes_ended = writer.terminated
        if not yes_ended:
            writer.jump(end)
        if node.iffalse is not None:
            writer.start(no)
            self._run_scoped(node.iffalse)
            if writer.terminated and yes_ended:
                return  # both branches leave
        writer.start(end)

    def _run_scoped(self, node: Any) -> None:
        self.scopes.append({})
        self.run(node)
        self.scopes.pop()

    def _do_pragma(self, node: Any) -> None:
        if getattr(node.string, "value", "") != INDEPENDENT:
            raise CError('the only pragma is _Pragma("independent")')

    def _loop(self, cond: Any, step: Any, body: Any, test_last: bool) -> None:
        writer = self.writer
        independent = body is self._independent
        test, inside = writer.unused_name("test"), writer.unused_name("body")
        after, end = writer.unused_name("step"), writer.unused_name("end")
        if test_last:
            writer.jump(inside)
        else:
            writer.start(test)
            if cond is None:
                writer.jump(inside)
            else:
                writer.branch(self.value(cond), inside, end)
        writer.start(inside)
        self._loops.append((after, end))
        self._run_scoped(body)
        self._loops.pop()
        writer.start(after)
        if step is not None:
            self.value(step)
        is_reached = not writer.terminated
        if test_last:
            writer.branch(self.value(cond), inside, end)
        else:
            writer.jump(test)
        if is_reached:
            over_items = type(cond).__name__ == "BinaryOp" and getattr(cond.right, "name", "") == "fl_end"
            content = self._content(body)
            keeps_loop = bool(content & _OPEN_LOOP)
            keeps_loop |= _trip_count(cond) > 0 and bool(content & (_LANES | _PRAGMA))
            own = independent and not content & _ARRAY  # all iterations share an array in the loop
            writer.lines[-1] += self.module.loop(
                _lanes(cond, content), bool(content & _LANES), keeps_loop, over_items or independent, own
            )
        writer.start(end)

    def _content(self, node: Any) -> int:
        """What a node contains, itself included, as bits; cached, since each enclosing loop asks."""
        content = self._contents.get(node)
        if content is None:
            kind = type(node).__name__
            content = _OWN_CONTENT.get(kind, 0)
            for _, child in node.children():
                content |= self._content(child)
            if kind in _LOOPS and not _trip_count(getattr(node, "cond", None)):
                content |= _OPEN_LOOP
            if kind == "For" and _lanes(node.cond, self._content(node.stmt)):
                content |= _LANES
            self._contents[node] = content
        return content

    def _do_for(self, node: Any) -> None:
        self.scopes.append({})
        if node.init is not None:
            self.run(node.init)
        self._loop(node.cond, node.next, node.stmt, False)
        self.scopes.pop()

    def _do_while(self, node: Any) -> None:
        self._loop(node.cond, None, node.stmt, False)

    def _do_dowhile(self, node: Any) -> None:
        self._loop(node.cond, None, node.stmt, True)

    def _do_break(self, node: Any) -> None:
        self._leave(1, "break")

    def _do_continue(self, node: Any) -> None:
        self._leave(0, "continue")

    def _leave(self, which: int, word: str) -> None:
        if not self._loops:
            raise CError(f"{word} outside a loop")
        self.writer.jump(self._loops[-1][which])

    def _do_return(self, node: Any) -> None:
        writer = self.writer
        if node.expr is None:
            writer.emit("ret void")
        else:
            value = writer.convert(self.value(node.expr), self.result)
            writer.emit(f"ret {self.result.text} {value.text}")
        writer.terminated = True


def _lanes(cond: Any, content: int) -> int:
    """The trip count of a loop over vector lanes: constant, with no inner loop or exit in its content; else 0."""
    count = _trip_count(cond)
    return 0 if count % LANES or content & (_LOOP | _EXIT) else count


def _trip_count(cond: Any) -> int:
    """The constant upper bound of a loop, or 0."""
    if type(cond).__name__ != "BinaryOp" or cond.op != "<" or type(cond.right).__name__ != "Constant":
        return 0
    text: str = cond.right.value.rstrip("lL")
    return int(text) if text.isdigit() else 0
