"""Builds one LLVM function: basic blocks, temporaries, arithmetic, and C's conversions."""

from __future__ import annotations

from fluidlite.codegen.llvm.c_types import BOOL, INT, Type, Value, common, promoted, real
from fluidlite.codegen.llvm.pointers import Access, Pointers

_COMPARE = {
    "==": ("eq", "eq", "oeq"),
    "!=": ("ne", "ne", "une"),
    "<": ("slt", "ult", "olt"),
    "<=": ("sle", "ule", "ole"),
    ">": ("sgt", "ugt", "ogt"),
    ">=": ("sge", "uge", "oge"),
}
_ARITHMETIC = {
    "+": ("add", "add", "fadd"),
    "-": ("sub", "sub", "fsub"),
    "*": ("mul", "mul", "fmul"),
    "/": ("sdiv", "udiv", "fdiv"),
    "%": ("srem", "urem", ""),
}
_BITS = {"&": "and", "|": "or", "^": "xor"}


class CError(Exception):
    """The source is not in the subset of C; the message has the line."""


class FunctionText:
    """Writes instructions in order; the allocas of variables are at the top of the function."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.slots: list[str] = []
        self.arrays: list[str] = []
        """The slots of arrays."""
        self.pointers = Pointers()
        self.block = "entry"
        self.terminated = False
        """Whether the current block has its terminator."""
        self._count = 0

    # Blocks

    def unused_name(self, stem: str = "") -> str:
        """Return an unused name."""
        self._count += 1
        return f"{stem}{self._count}"

    def emit(self, line: str, pointer: str = "") -> None:
        """Add an instruction, which may access memory at ``pointer``; unreachable instructions are dropped."""
        if not self.terminated:
            self.lines.append(Access("  " + line, pointer) if pointer else "  " + line)

    def value(self, line: str, kind: Type) -> Value:
        """Add an instruction with a result."""
        name = "%" + self.unused_name("t")
        self.emit(f"{name} = {line}")
        return Value(name, kind)

    def jump(self, target: str) -> None:
        """End the block with a branch."""
        self.emit(f"br label %{target}")
        self.terminated = True

    def branch(self, condition: Value, yes: str, no: str) -> None:
        """End the block with a conditional branch."""
        self.emit(f"br i1 {self.truth(condition).text}, label %{yes}, label %{no}")
        self.terminated = True

    def start(self, block: str) -> None:
        """Begin a block."""
        if not self.terminated:
            self.jump(block)
        self.lines.append(f"{block}:")
        self.block, self.terminated = block, False

    def slot(self, kind: Type, name: str) -> str:
        """Return the address of memory for a variable."""
        address = "%" + self.unused_name(f"{name}.")
        self.slots.append(f"  {address} = alloca {kind.text}")
        if kind.kind == "array":
            self.arrays.append(address)
        return address

    # Memory

    def load(self, address: str, kind: Type) -> Value:
        """Load a variable or an element."""
        name = "%" + self.unused_name("t")
        self.emit(f"{name} = load {kind.text}, ptr {address}", address)
        if kind.kind == "pointer":
            self.pointers.add_load(name, address)
        return Value(name, kind)

    def store(self, value: Value, address: str, kind: Type) -> None:
        """Store a variable or an element."""
        converted = self.convert(value, kind)
        self.emit(f"store {kind.text} {converted.text}, ptr {address}", address)
        if kind.kind == "pointer":
            self.pointers.add_store(converted.text, address)

    def element(self, base: Value, index: Value, of: Type) -> str:
        """Return the address of ``base[index]``."""
        kind = promoted(index.type)
        offset = self.convert(index, Type("i64", "int", 64, kind.signed))
        address = self.value(f"getelementptr inbounds {of.text}, ptr {base.text}, i64 {offset.text}", base.type).text
        self.pointers.add_sources(address, base.text)
        return address

    # Conversions

    def convert(self, value: Value, kind: Type) -> Value:
        """Convert a value to another type, as a C cast does."""
        source = value.type
        if source == kind or source.kind == kind.kind == "pointer":
            return Value(value.text, kind)
        if kind.kind == "vector" and source.scalar:
            return self.splat(value, kind)
        if "vector" in (kind.kind, source.kind):
            raise CError(f"no conversion from {source.text} to {kind.text}")
        if kind.kind == "bool":
            return self.truth(value)
        if source.kind == "pointer" and kind.kind == "int" and kind.bits == 64:
            return self._cast("ptrtoint", value, kind)
        if value.text.lstrip("-").isdigit() and source.kind == "int":
            if kind.kind == "float":
                return Value(real(float(int(value.text)), kind), kind)
            if kind.bits >= source.bits or not int(value.text) >> (kind.bits - 1):
                return Value(value.text, kind)
        if source.kind == "bool" and kind.kind == "int":
            return self._cast("zext", value, kind)
        if source.kind == "bool" and kind.kind == "float":
            return self._cast("uitofp", value, kind)
        if source.kind == "int" and kind.kind == "int":
            if source.bits == kind.bits:
                return Value(value.text, kind)
            if source.bits > kind.bits:
                return self._cast("trunc", value, kind)
            return self._cast("sext" if source.signed else "zext", value, kind)
        if source.kind == "int" and kind.kind == "float":
            return self._cast("sitofp" if source.signed else "uitofp", value, kind)
        if source.kind == "float" and kind.kind == "int":
            return self._cast("fptosi" if kind.signed else "fptoui", value, kind)
        if source.kind == "float" and kind.kind == "float":
            return self._cast("fpext" if kind.bits > source.bits else "fptrunc", value, kind)
        raise CError(f"no conversion from {source.text} to {kind.text}")

    def splat(self, value: Value, kind: Type) -> Value:
        """Return a vector with a number in all lanes."""
        assert kind.of is not None
        scalar = self.convert(value, kind.of)
        first = self.value(f"insertelement {kind.text} poison, {kind.of.text} {scalar.text}, i64 0", kind)
        zeros = f"<{kind.count} x i32> zeroinitializer"
        return self.value(f"shufflevector {kind.text} {first.text}, {kind.text} poison, {zeros}", kind)

    def lanes(self, values: list[Value], kind: Type) -> Value:
        """Return a vector of numbers."""
        assert kind.of is not None
        if len(values) != kind.count:
            raise CError(f"{kind.text} is made of {kind.count} numbers, not {len(values)}")
        result = Value("poison", kind)
        for i, value in enumerate(values):
            scalar = self.convert(value, kind.of)
            result = self.value(f"insertelement {kind.text} {result.text}, {kind.of.text} {scalar.text}, i64 {i}", kind)
        return result

    def _cast(self, opcode: str, value: Value, kind: Type) -> Value:
        return self.value(f"{opcode} {value.type.text} {value.text} to {kind.text}", kind)

    def truth(self, value: Value) -> Value:
        """Return whether a value is not zero."""
        if value.type.kind == "bool":
            return value
        if value.type.kind == "float":
            return self.value(f"fcmp une {value.type.text} {value.text}, 0.0", BOOL)
        if value.type.kind == "vector":
            raise CError(f"no conversion from {value.type.text} to bool")
        zero = "null" if value.type.kind == "pointer" else "0"
        return self.value(f"icmp ne {value.type.text} {value.text}, {zero}", BOOL)

    # Arithmetic

    def binary(self, op: str, left: Value, right: Value) -> Value:
        """Return ``left op right``, for all binary operators of C except ``&&``, ``||`` and assignments."""
        if left.type.kind == "pointer" or right.type.kind == "pointer":
            return self._pointer(op, left, right)
        if op in ("<<", ">>"):
            kind = promoted(left.type)
            by = self.convert(right, kind)
            word = "shl" if op == "<<" else "ashr" if kind.signed else "lshr"
            return self.value(f"{word} {kind.text} {self.convert(left, kind).text}, {by.text}", kind)
        if op in _BITS and left.type.kind == right.type.kind == "bool":
            return self.value(f"{_BITS[op]} i1 {left.text}, {right.text}", BOOL)
        if "vector" in (left.type.kind, right.type.kind):
            return self._vectors(op, left, right)
        kind = common(left.type, right.type)
        one, other = self.convert(left, kind), self.convert(right, kind)
        column = 2 if kind.kind == "float" else 0 if kind.signed else 1
        if op in _COMPARE:
            word = "fcmp" if kind.kind == "float" else "icmp"
            return self.value(f"{word} {_COMPARE[op][column]} {kind.text} {one.text}, {other.text}", BOOL)
        word = _ARITHMETIC[op][column] if op in _ARITHMETIC else _BITS.get(op, "") if column < 2 else ""
        if not word:
            raise CError(f"operator {op} on {kind.text}")
        return self.value(f"{word} {kind.text} {one.text}, {other.text}", kind)

    def _pointer(self, op: str, left: Value, right: Value) -> Value:
        if op == "+" and right.type.kind == "pointer":
            left, right = right, left
        if op == "-" and right.type.kind == "int":
            right = self.negate(right)
        elif op != "+" or right.type.kind != "int":
            raise CError(f"operator {op} on pointers")
        assert left.type.of is not None
        return Value(self.element(left, right, left.type.of), left.type)

    def _vectors(self, op: str, left: Value, right: Value) -> Value:
        kind = left.type if left.type.kind == "vector" else right.type
        if op not in ("+", "-", "*", "/"):
            raise CError(f"operator {op} on {kind.text}")
        one, other = self.convert(left, kind), self.convert(right, kind)
        return self.value(f"{_ARITHMETIC[op][2]} {kind.text} {one.text}, {other.text}", kind)

    def negate(self, value: Value) -> Value:
        """Return ``-value``."""
        kind = promoted(value.type)
        operand = self.convert(value, kind)
        if kind.kind in ("float", "vector"):
            return self.value(f"fneg {kind.text} {operand.text}", kind)
        return self.value(f"sub {kind.text} 0, {operand.text}", kind)

    def bitwise_not(self, value: Value) -> Value:
        """Return ``~value``."""
        kind = promoted(value.type)
        return self.value(f"xor {kind.text} {self.convert(value, kind).text}, -1", kind)

    def logical_not(self, value: Value) -> Value:
        """Return ``!value``."""
        return self.value(f"xor i1 {self.truth(value).text}, true", BOOL)

    def select(self, condition: Value, yes: Value, no: Value) -> Value:
        """Select one of two computed values."""
        kind = conditional_type(yes.type, no.type)
        one, other = self.convert(yes, kind), self.convert(no, kind)
        result = self.value(
            f"select i1 {self.truth(condition).text}, {kind.text} {one.text}, {kind.text} {other.text}", kind
        )
        if kind.kind == "pointer":
            self.pointers.add_sources(result.text, one.text, other.text)
        return result


def conditional_type(one: Type, other: Type) -> Type:
    """Return the type of ``c ? one : other``."""
    if one == other and one.kind == "vector":
        return one
    if one.kind == "pointer" and other.kind == "pointer":
        return one
    if one.kind == other.kind == "bool":
        return INT
    return common(one, other)
