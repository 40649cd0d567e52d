"""Expressions of a function's text."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from fluidlite.codegen.llvm.c_types import BOOL, FLOAT, INT, Type, Value, number, pointer, real
from fluidlite.codegen.llvm.function import CError, FunctionText, joined

if TYPE_CHECKING:
    from fluidlite.codegen.llvm.translate import Module

CONSTANTS = {"NAN": Value(real(math.nan, FLOAT), FLOAT), "INFINITY": Value(real(math.inf, FLOAT), FLOAT)}


class Expressions:
    """Writes expressions; knows the variables of the scopes around.

    A variable is a value that never changes (a constant, a parameter), or memory.
    """

    def __init__(self, module: Module, writer: FunctionText) -> None:
        self.module = module
        self.writer = writer
        self.scopes: list[dict[str, tuple[Type, str, bool]]] = [{}]
        """Of each name: its type, LLVM's text, and whether that is where it lies."""

    def name(self, name: str) -> tuple[Type, str, bool]:
        """Find a variable."""
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        raise CError(f"unknown name {name!r}")

    def value(self, node: Any) -> Value:
        """Write an expression and return its value."""
        try:
            method = getattr(self, "_" + type(node).__name__.lower())
        except AttributeError:
            raise CError(f"{type(node).__name__} is not for kernels", node.coord.line) from None
        try:
            found: Value = method(node)
        except CError as exc:
            if len(exc.args) == 1 and node.coord is not None:
                raise CError(exc.args[0], node.coord.line) from exc
            raise
        return found

    def where(self, node: Any) -> tuple[str, Type]:
        """Write where something lies that can be assigned to."""
        kind = type(node).__name__
        if kind == "ID":
            of, text, lies = self.name(node.name)
            if not lies:
                raise CError(f"{node.name!r} cannot be changed", node.coord.line)
            return text, of
        if kind == "ArrayRef":
            base = self.value(node.name)
            if base.type.of is None or base.type.kind == "vector":
                raise CError("an index of what is no pointer", node.coord.line)
            return self.writer.element(base, self.value(node.subscript), base.type.of), base.type.of
        if kind == "UnaryOp" and node.op == "*":
            base = self.value(node.expr)
            if base.type.of is None:
                raise CError("* of what is no pointer", node.coord.line)
            return base.text, base.type.of
        if kind == "StructRef" and node.type == ".":
            text, of = self.where(node.name)
            for member, its in of.members:
                if member == node.field.name:
                    return text, its
            raise CError(f"no member {node.field.name!r}", node.coord.line)
        raise CError(f"{kind} cannot be assigned to", node.coord.line)

    def _read(self, node: Any) -> Value:
        text, of = self.where(node)
        return Value(text, pointer(of.of)) if of.kind == "array" and of.of is not None else self.writer.load(text, of)

    _arrayref = _structref = _read

    def _id(self, node: Any) -> Value:
        if node.name in CONSTANTS:
            return CONSTANTS[node.name]
        of, text, lies = self.name(node.name)
        return self._read(node) if lies else Value(text, of)

    def _constant(self, node: Any) -> Value:
        try:
            return number(node.value)
        except ValueError:
            raise CError(f"{node.value} is no number") from None

    def _cast(self, node: Any) -> Value:
        kind = self.module.type_of(node.to_type)
        if kind.kind == "vector" and type(node.expr).__name__ == "ExprList":  # one number for each lane
            return self.writer.lanes([self.value(part) for part in node.expr.exprs], kind)
        return self.writer.convert(self.value(node.expr), kind)

    def _binaryop(self, node: Any) -> Value:
        if node.op in ("&&", "||"):
            return self._logical(node)
        left = self.value(node.left)
        return self.writer.binary(node.op, left, self.value(node.right))

    def _logical(self, node: Any) -> Value:
        """The second part runs only if it must, unless running it can do no harm."""
        writer, both = self.writer, node.op == "&&"
        left = writer.truth(self.value(node.left))
        if harmless(node.right):
            right = writer.truth(self.value(node.right))
            return writer.value(f"{'and' if both else 'or'} i1 {left.text}, {right.text}", BOOL)
        rest, end = writer.fresh("rest"), writer.fresh("end")
        came = writer.block
        writer.branch(left, rest if both else end, end if both else rest)
        writer.start(rest)
        right = writer.truth(self.value(node.right))
        last = writer.block
        writer.start(end)
        return writer.value(f"phi i1 [ {'false' if both else 'true'}, %{came} ], [ {right.text}, %{last} ]", BOOL)

    def _ternaryop(self, node: Any) -> Value:
        writer = self.writer
        condition = writer.truth(self.value(node.cond))
        if harmless(node.iftrue) and harmless(node.iffalse):
            yes = self.value(node.iftrue)
            return writer.choose(condition, yes, self.value(node.iffalse))
        first, second, end = writer.fresh("yes"), writer.fresh("no"), writer.fresh("end")
        writer.branch(condition, first, second)
        writer.start(first)
        yes = self.value(node.iftrue)
        mark, came = len(writer.lines), writer.block
        writer.ended = True
        writer.start(second)
        no = self.value(node.iffalse)
        kind = joined(yes.type, no.type)
        no = writer.convert(no, kind)
        last = writer.block
        writer.start(end)
        rest, writer.lines = writer.lines[mark:], writer.lines[:mark]
        writer.block, writer.ended = came, False
        yes = writer.convert(yes, kind)  # at the end of its own block, now that the type of both is known
        writer.jump(end)
        writer.lines += rest
        writer.block, writer.ended = end, False
        made = writer.value(f"phi {kind.text} [ {yes.text}, %{came} ], [ {no.text}, %{last} ]", kind)
        if kind.kind == "pointer":
            writer.pointers.made(made.text, yes.text, no.text)
        return made

    def _unaryop(self, node: Any) -> Value:
        writer, op = self.writer, node.op
        if op in ("++", "--", "p++", "p--"):
            where, of = self.where(node.expr)
            before = writer.load(where, of)
            after = writer.binary("+" if "+" in op else "-", before, Value("1", INT))
            writer.store(after, where, of)
            return before if op.startswith("p") else writer.convert(after, of)
        if op == "&":
            where, of = self.where(node.expr)
            return Value(where, pointer(of))
        if op == "*":
            return self._read(node)
        given = self.value(node.expr)
        if op == "-":
            return writer.negative(given)
        if op == "!":
            return writer.negated(given)
        if op == "~":
            return writer.inverted(given)
        if op == "+":
            return given
        raise CError(f"operator {op}")

    def _assignment(self, node: Any) -> Value:
        writer = self.writer
        if node.op == "=":
            given = self.value(node.rvalue)
            where, of = self.where(node.lvalue)
        else:
            where, of = self.where(node.lvalue)
            before = writer.load(where, of)
            given = writer.binary(node.op[:-1], before, self.value(node.rvalue))
        given = writer.convert(given, of)
        writer.store(given, where, of)
        return given

    def _funccall(self, node: Any) -> Value:
        given = [self.value(arg) for arg in (node.args.exprs if node.args else ())]
        return self.module.call(self.writer, node.name.name, given)

    def _exprlist(self, node: Any) -> Value:
        found = [self.value(part) for part in node.exprs]
        return found[-1]


def harmless(node: Any) -> bool:
    """Whether an expression may be computed though nobody asked: no memory, no call, no division that may trap."""
    kind = type(node).__name__
    if kind in ("ID", "Constant"):
        return True
    if kind == "BinaryOp":
        return node.op not in ("/", "%") and harmless(node.left) and harmless(node.right)
    if kind == "UnaryOp":
        return node.op in ("-", "!", "~", "+") and harmless(node.expr)
    if kind == "Cast":
        return harmless(node.expr)
    if kind == "TernaryOp":
        return harmless(node.cond) and harmless(node.iftrue) and harmless(node.iffalse)
    return False
