"""Translates a subset of C, in which kernels are written, to LLVM IR.

The subset has numbers, vectors of floats, pointers, arrays on the stack, unions of a number and its bits; ``for``,
``while``, ``if``, ``?:`` and functions. pycparser parses it; there is no preprocessor.

A kernel gets two more leading parameters, ``long fl_begin`` and ``long fl_end``: the range of work-items of a call.
"""

from __future__ import annotations

import re
from typing import Any

from fluidlite.base.errors import CompileError, MissingExtraError
from fluidlite.codegen.llvm.c_types import DOUBLE, FLOAT, LONG, NAMED, Type, Value, array, number, pointer
from fluidlite.codegen.llvm.function import CError, FunctionText
from fluidlite.codegen.llvm.pointers import with_access_groups
from fluidlite.codegen.llvm.statements import Statements
from fluidlite.codegen.llvm.vectors import MOVES, VECTORS, move, with_declarations

HIDDEN = ("fl_begin", "fl_end")

INTRINSICS = {
    "llvm_sqrt": "llvm.sqrt",
    "llvm_fabs": "llvm.fabs",
    "llvm_floor": "llvm.floor",
    "llvm_ceil": "llvm.ceil",
    "llvm_trunc": "llvm.trunc",
    "llvm_fma": "llvm.fma",
}
"""Functions of one floating-point type that kernels may call, and their LLVM intrinsics."""

_MARKS = (
    '!0 = !{!"llvm.loop.isvectorized", i32 1}',
    '!1 = !{!"llvm.loop.unroll.full"}',
    '!2 = !{!"llvm.loop.unroll.disable"}',
    '!3 = !{!"llvm.loop.vectorize.followup_all", !0, !1}',
    '!4 = !{!"llvm.loop.vectorize.enable", i1 false}',
    '!5 = !{!"llvm.loop.parallel_accesses", !6}',
    "!6 = distinct !{}",
    "!7 = !{i32 1}",
    '!8 = !{!"llvm.loop.vectorize.followup_all", !0, !2}',
    '!9 = !{!"llvm.loop.parallel_accesses", !6, !10}',
    "!10 = distinct !{}",
)
"""Metadata of loops: !0 and !1 of vectorized loops; !3 (!8: long) of loops over lanes; !4 of loops around others; !5 of
loops over work-items; !6: the group of accesses outside local variables; !7: of nontemporal stores; !9 of loops with
independent iterations, in accesses outside and (!10) in local arrays.
"""
MAX_UNROLLED = 128
"""Longer loops over lanes are not unrolled fully: compile time grows more than linearly."""

_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)


def c_to_llvm(source: str, entry: str) -> tuple[str, tuple[str, ...]]:
    """Translate a kernel.

    Parameters
    ----------
    source : str
        C, without preprocessor directives.
    entry : str
        The kernel; its functions are internal.

    Returns
    -------
    text : str
        A module of LLVM IR.
    parameters : tuple of str
        The LLVM types of the kernel's parameters, without the two leading ones.

    Raises
    ------
    CompileError
        If the source is not in the subset, with the line; or has no ``entry``.
    MissingExtraError
        If pycparser is not installed.
    """
    try:
        from pycparser import c_parser
    except ImportError:
        raise MissingExtraError("the CPU's kernels need pycparser\n  Do: pip install pycparser") from None
    bare = _COMMENT.sub(lambda match: "\n" * match[0].count("\n"), source)
    try:
        tree = c_parser.CParser().parse(with_declarations(bare))
    except c_parser.ParseError as exc:
        raise CompileError(f"kernel {entry!r}: {exc}", source) from exc
    if not any(type(node).__name__ == "FuncDef" and node.decl.name == entry for node in tree.ext):
        raise CompileError(f"the source has no kernel {entry!r}", source)
    module = Module(entry)
    node: Any = None
    try:
        for node in tree.ext:
            module.add(node)
    except CError as exc:
        line = exc.args[1] if len(exc.args) > 1 else getattr(node.coord, "line", "?")
        raise CompileError(f"kernel {entry!r}, line {line}: {exc.args[0]}", source) from exc
    return module.text(), module.parameters


class Module:
    """An LLVM module: types, functions, declarations and metadata."""

    def __init__(self, entry: str) -> None:
        self.entry = entry
        self.types: dict[str, Type] = {**NAMED, **VECTORS}
        self.unions: dict[str, Type] = {}
        self.functions: dict[str, tuple[Type, tuple[Type, ...]]] = {}
        self.bodies: list[str] = []
        self.declarations: dict[str, str] = {}
        self.parameters: tuple[str, ...] = ()
        self.marks: list[str] = []

    def text(self) -> str:
        marks = [*_MARKS, *self.marks]
        return "\n".join([*self.declarations.values(), *self.bodies, *marks]) + "\n"

    def loop(self, lanes: int, outer: bool, keeps_loop: bool, over_items: bool, independent: bool) -> str:
        """Return the loop metadata for the latch branch, which controls vectorization and unrolling.

        A loop over lanes is vectorized before it is unrolled; a loop around such loops is not vectorized: if the inner
        one were unrolled first, LLVM would vectorize the outer one, whose accesses have large strides.
        A loop with a constant trip count around them is not unrolled: it takes seconds and gains nothing; nor is a loop
        around loops without a constant trip count (``keeps_loop``).
        A work-item does not read elements that others write, even if an output aliases an input.
        """
        hints = ["!2", "!3" if lanes <= MAX_UNROLLED else "!8"] if lanes else ["!4"] if outer else []
        if independent:
            hints.append("!9")
        elif over_items and not hints:
            hints.append("!5")
        if keeps_loop and "!2" not in hints:
            hints.append("!2")
        if not hints:
            return ""
        hint_text = ", ".join(hints)
        number = f"!{len(self.marks) + len(_MARKS)}"
        self.marks.append(f"{number} = distinct !{{{number}, {hint_text}}}")
        return f", !llvm.loop {number}"

    # Types

    def type_of(self, node: Any) -> Type:
        """Return the type of a declaration."""
        kind = type(node).__name__
        if kind == "Typename" or kind == "TypeDecl" or kind == "Decl":
            return self.type_of(node.type)
        if kind == "IdentifierType":
            name = " ".join(node.names)
            if name not in self.types:
                raise CError(f"unknown type {name!r}")
            return self.types[name]
        if kind == "PtrDecl":
            return pointer(self.type_of(node.type), "restrict" in node.quals)
        if kind == "ArrayDecl":
            if type(node.dim).__name__ != "Constant":
                raise CError("the length of an array is no constant")
            return array(self.type_of(node.type), int(number(node.dim.value).text))
        if kind == "Union":
            if node.decls is not None:
                members = tuple((decl.name, self.type_of(decl.type)) for decl in node.decls)
                widest = max((member for _, member in members), key=lambda member: member.bits)
                self.unions[node.name] = Type(f"i{widest.bits}", "union", widest.bits, members=members)
            if node.name not in self.unions:
                raise CError(f"unknown union {node.name!r}")
            return self.unions[node.name]
        raise CError(f"{kind} is no type that kernels may use")

    # Declarations

    def add(self, node: Any) -> None:
        """Add a declaration or a function."""
        kind = type(node).__name__
        if kind == "Typedef":
            self.types[node.name] = VECTORS.get(node.name) or self.type_of(node.type)
        elif kind == "FuncDef":
            self._function(node)
        elif kind == "Decl" and type(node.type).__name__ == "Union":
            self.type_of(node.type)
        else:
            raise CError(f"{kind} outside a function")

    def _function(self, node: Any) -> None:
        name = node.decl.name
        function_type = node.decl.type
        result = self.type_of(function_type.type)
        nodes = [p for p in (function_type.args.params if function_type.args else ()) if type(p).__name__ == "Decl"]
        names = [p.name for p in nodes]
        kinds = [self.type_of(p.type) for p in nodes]
        is_kernel = name == self.entry
        if is_kernel:
            self.parameters = tuple(kind.text for kind in kinds)
            names, kinds = [*HIDDEN, *names], [LONG, LONG, *kinds]
        self.functions[name] = (result, tuple(kinds))
        writer = FunctionText()
        body = Statements(self, writer, result)
        parameters = []
        for parameter, kind in zip(names, kinds, strict=True):
            mark = " noalias" if kind.restrict else ""
            parameters.append(f"{kind.text}{mark} %{parameter}")
            body.parameter(parameter, kind)
        body.run(node.body)
        if not writer.terminated:
            writer.emit("ret void" if result.kind == "void" else "unreachable")
        if is_kernel:
            outside, own = (f"%{name}" for name in names), writer.arrays
            writer.lines = with_access_groups(writer.lines, *map(writer.pointers.derived_only_from, (outside, own)))
        head = f"define {'' if is_kernel else 'internal '}{result.text} @{name}({', '.join(parameters)})"
        marks = "nounwind" if is_kernel else "alwaysinline nounwind"
        self.bodies.append("\n".join([f"{head} {marks} {{", "entry:", *writer.slots, *writer.lines, "}"]))

    # Calls

    def call(self, writer: FunctionText, name: str, args: list[Value]) -> Value:
        """Call a function of the source, or an intrinsic."""
        if name in INTRINSICS:
            kind = next((value.type for value in args if value.type.kind == "vector"), None)
            kind = kind or (DOUBLE if any(value.type.bits == 64 for value in args) else FLOAT)
            word = f"{INTRINSICS[name]}.{f'v{kind.count}' if kind.count else ''}f{kind.bits}"
            args = [writer.convert(value, kind) for value in args]
            self.declarations[word] = f"declare {kind.text} @{word}({', '.join([kind.text] * len(args))})"
            arg_text = ", ".join(f"{kind.text} {value.text}" for value in args)
            return writer.value(f"call {kind.text} @{word}({arg_text})", kind)
        if name == "llvm_load_float16":
            bits = writer.convert(args[0], NAMED["unsigned short"])
            half = writer.value(f"bitcast i16 {bits.text} to half", FLOAT)
            return writer.value(f"fpext half {half.text} to float", FLOAT)
        if name == "llvm_store_float16":
            half = writer.value(f"fptrunc float {writer.convert(args[0], FLOAT).text} to half", FLOAT)
            return writer.value(f"bitcast half {half.text} to i16", NAMED["unsigned short"])
        if name == "llvm_stream":  # a nontemporal store of 64 bytes
            if [value.type.kind for value in args] != ["pointer", "pointer"]:
                raise CError("llvm_stream takes a pointer to copy to, and one to copy from")
            vector = writer.value(f"load <16 x float>, ptr {args[1].text}, align 1", VECTORS["float16"])
            writer.emit(f"store <16 x float> {vector.text}, ptr {args[0].text}, align 64, !nontemporal !7")
            return Value("", NAMED["void"])
        if match := MOVES.fullmatch(name):
            return move(writer, match, args)
        if name not in self.functions:
            raise CError(f"unknown function {name!r}")
        result, kinds = self.functions[name]
        if len(args) != len(kinds):
            raise CError(f"{name} takes {len(kinds)} arguments, not {len(args)}")
        converted = [writer.convert(value, kind) for value, kind in zip(args, kinds, strict=True)]
        line = f"call {result.text} @{name}({', '.join(f'{v.type.text} {v.text}' for v in converted)})"
        if result.kind == "void":
            writer.emit(line)
            return Value("", result)
        return writer.value(line, result)
