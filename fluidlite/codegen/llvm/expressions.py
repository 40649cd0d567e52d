"""Translates expressions of C to LLVM IR."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fluidlite.codegen.llvm.c_types import BOOL, FLOAT, INT, Type, Value, number, pointer, real
from fluidlite.codegen.llvm.function import CError, FunctionText, conditional_type

if TYPE_CHECKING:
    from fluidlite.codegen.llvm.translate import Module

CONSTANTS = {"NAN": Value(real(math.nan, FLOAT), FLOAT), "INFINITY": Value(real(math.inf, FLOAT), FLOAT)}


class Expressions:
    """Writes expressions, with the variables of the enclosing scopes.

    A variable is a constant value, or an address in memory.
    """

    def __init__(self, module: Module, writer: FunctionText) -> None:
        self.module = module
        self.writer = writer
        self.scopes: list[dict[str, tuple[Type, str, bool]]] = [{}]
        """For each name the type, LLVM's text, and whether the text is an address."""

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
        result: Value = self.write(method, node)
        return result

    def write(self, method: Callable[[Any], Any], node: Any) -> Any:
        """Write a node by a method; an error gets the line of the innermost node."""
        try:
            return method(node)
        except CError as exc:
            if len(exc.args) == 1 and node.coord is not None:
                raise CError(exc.args[0], node.coord.line) from exc
            raise

    def address(self, node: Any) -> tuple[str, Type]:
        """Write the address of an lvalue; returns it and the type."""
        kind = type(node).__name__
        if kind == "ID":
            of, text, is_address = self.name(node.name)
            if not is_address:
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
            text, of = self.address(node.name)
            for member, member_type in of.members:
                if member == node.field.name:
                    return text, member_type
            raise CError(f"no member {node.field.name!r}", node.coord.line)
        raise CError(f"{kind} cannot be assigned to", node.coord.line)

    def _read(self, node: Any) -> Value:
        text, of = self.address(node)
        return Value(text, pointer(of.of)) if of.kind == "array" and of.of is not None else self.writer.load(text, of)

    _arrayref = _structref = _read

    def _id(self, node: Any) -> Value:
        if node.name in CONSTANTS:
            return CONSTANTS[node.name]
        of, text, is_address = self.name(node.name)
        return self._read(node) if is_address else Value(text, of)

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
        """The right operand is evaluated only if needed, or if it has no side effects and cannot trap."""
        writer, is_and = self.writer, node.op == "&&"
        left = writer.truth(self.value(node.left))
        if is_speculatable(node.right):
            right = writer.truth(self.value(node.right))
            return writer.value(f"{'and' if is_and else 'or'} i1 {left.text}, {right.text}", BOOL)
        rest, end = writer.unused_name("rest"), writer.unused_name("end")
        entry = writer.block
        writer.branch(left, rest if is_and else end, end if is_and else rest)
        writer.start(rest)
        right = writer.truth(self.value(node.right))
        last = writer.block
        writer.start(end)
        return writer.value(f"phi i1 [ {'false' if is_and else 'true'}, %{entry} ], [ {right.text}, %{last} ]", BOOL)

    def _ternaryop(self, node: Any) -> Value:
        writer = self.writer
        condition = writer.truth(self.value(node.cond))
        if is_speculatable(node.iftrue) and is_speculatable(node.iffalse):
            yes = self.value(node.iftrue)
            return writer.select(condition, yes, self.value(node.iffalse))
        first, second, end = writer.unused_name("yes"), writer.unused_name("no"), writer.unused_name("end")
        writer.branch(condition, first, second)
        writer.start(first)
        yes = self.value(node.iftrue)
        mark, yes_end = len(writer.lines), writer.block
        writer.terminated = True
        writer.start(second)
        no = self.value(node.iffalse)
        kind = conditional_type(yes.type, no.type)
        no = writer.convert(no, kind)
        last = writer.block
        writer.start(end)
        rest, writer.lines = writer.lines[mark:], writer.lines[:mark]
        writer.block, writer.terminated = yes_end, False
        yes = writer.convert(yes, kind)  # at the end of its own block, once the common type is known
        writer.jump(end)
        writer.lines += rest
        writer.block, writer.terminated = end, False
        result = writer.value(f"phi {kind.text} [ {yes.text}, %{yes_end} ], [ {no.text}, %{last} ]", kind)
        if kind.kind == "pointer":
            writer.pointers.add_sources(result.text, yes.text, no.text)
        return result

    def _unaryop(self, node: Any) -> Value:
        writer, op = self.writer, node.op
        if op in ("++", "--", "p++", "p--"):
            address, of = self.address(node.expr)
            before = writer.load(address, of)
            after = writer.binary("+" if "+" in op else "-", before, Value("1", INT))
            writer.store(after, address, of)
            return before if op.startswith("p") else writer.convert(after, of)
        if op == "&":
            address, of = self.address(node.expr)
            return Value(address, pointer(of))
        if op == "*":
            return self._read(node)
        operand = self.value(node.expr)
        if op == "-":
            return writer.negate(operand)
        if op == "!":
            return writer.logical_not(operand)
        if op == "~":
            return writer.bitwise_not(operand)
        if op == "+":
            return operand
        raise CError(f"operator {op}")

    def _assignment(self, node: Any) -> Value:
        writer = self.writer
        if node.op == "=":
            value = self.value(node.rvalue)
            address, of = self.address(node.lvalue)
        else:
            address, of = self.address(node.lvalue)
            before = writer.load(address, of)
            value = writer.binary(node.op[:-1], before, self.value(node.rvalue))
        value = writer.convert(value, of)
        writer.store(value, address, of)
        return value

    def _funccall(self, node: Any) -> Value:
        args = [self.value(arg) for arg in (node.args.exprs if node.args else ())]
        return self.module.call(self.writer, node.name.name, args)

    def _exprlist(self, node: Any) -> Value:
        values = [self.value(part) for part in node.exprs]
        return values[-1]


def is_speculatable(node: Any) -> bool:
    """Whether an expression may be evaluated speculatively: no memory access, no call, no division, which may trap."""
    kind = type(node).__name__
    if kind in ("ID", "Constant"):
        return True
    if kind == "BinaryOp":
        return node.op not in ("/", "%") and is_speculatable(node.left) and is_speculatable(node.right)
    if kind == "UnaryOp":
        return node.op in ("-", "!", "~", "+") and is_speculatable(node.expr)
    if kind == "Cast":
        return is_speculatable(node.expr)
    if kind == "TernaryOp":
        return is_speculatable(node.cond) and is_speculatable(node.iftrue) and is_speculatable(node.iffalse)
    return False
