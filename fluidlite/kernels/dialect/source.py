"""The text of a kernel: parameters, typed loads and stores, status words, and how it is launched."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from string import Template
from typing import Any, NamedTuple

from fluidlite.plugin import HALVES, Context, KernelNotFoundError, Span, compute_dtype

HEAVY = 1
"""Group hint of items that are long enough to be dealt out one by one."""

# Bits are read through unions, which C, OpenCL C and CUDA C all have. Encoding rounds to nearest, ties to even.
_HELPERS = {
    "float16": """
union bits_f16 { $u32 u; float f; };
$function float load_float16(const $i16 word) {
  const $u32 h = ($u32)word & 0xffffu, e = (h >> 10) & 31u, m = h & 1023u, sign = (h & 0x8000u) << 16;
  union bits_f16 v;
  if (e == 31u) v.u = sign | 0x7f800000u | (m << 13);
  else if (e != 0u) v.u = sign | ((e + 112u) << 23) | (m << 13);
  else { v.f = (float)m * 5.9604644775390625e-8f; v.u |= sign; }
  return v.f;
}
$function $i16 store_float16(const float value) {
  union bits_f16 v;
  v.f = value;
  const $u32 sign = (v.u >> 16) & 0x8000u;
  $u32 a = v.u & 0x7fffffffu;
  if (a > 0x7f800000u) a = 0x7e00u;
  else if (a >= 0x47800000u) a = 0x7c00u;
  else if (a < 0x38800000u) { v.u = a; v.f += 0.5f; a = v.u - 0x3f000000u; }
  else a = (a - 0x38000000u + 0xfffu + ((a >> 13) & 1u)) >> 13;
  return ($i16)(sign | a);
}
""",
    "bfloat16": """
union bits_bf16 { $u32 u; float f; };
$function float load_bfloat16(const $i16 word) {
  union bits_bf16 v;
  v.u = (($u32)word & 0xffffu) << 16;
  return v.f;
}
$function $i16 store_bfloat16(const float value) {
  union bits_bf16 v;
  v.f = value;
  if ((v.u & 0x7fffffffu) > 0x7f800000u) v.u = (v.u >> 16) | 0x40u;
  else v.u = (v.u + 0x7fffu + ((v.u >> 16) & 1u)) >> 16;
  return ($i16)v.u;
}
""",
}

_BAD_INDEX = """
$function void bad_index($buffer index_t* status, const index_t op_id, const index_t value, const index_t bound) {
  if (status[0] == 0) { status[1] = value; status[2] = bound; status[0] = op_id + 1; }
}
"""

MOVED = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}
"""The type under which elements of a size are moved when their value does not matter."""


class Buffer(NamedTuple):
    """A pointer parameter: in the text, ``name`` is a pointer to the dtype's storage."""

    name: str
    dtype: str
    written: bool = False


Kernel = Callable[..., None]
"""``kernel(context, items, spans, numbers, group=None)`` launches."""


def ctype(context: Context, dtype: str) -> str:
    """The name of a dtype in the dialect; half types are stored as 16-bit words."""
    name: str | None = context.dialect.types.get("int16" if dtype in HALVES else dtype)
    if name is None:
        raise KernelNotFoundError(f"the dialect of {context.place} has no type for {dtype}")
    return name


def load(dtype: str, element: str) -> str:
    """The expression that reads a stored element as the type it is computed in."""
    return f"load_{dtype}({element})" if dtype in HALVES else element


def store(context: Context, dtype: str, element: str, value: str) -> str:
    """The statement that rounds a computed value and stores it."""
    if dtype in HALVES:
        return f"{element} = store_{dtype}({value});"
    return f"{element} = ({ctype(context, dtype)})({value});"


def function(context: Context, name: str) -> str:
    """The dialect's name of a mathematical function."""
    found: str | None = context.dialect.math.get(name)
    return found or name


def build(
    context: Context,
    entry: str,
    buffers: Sequence[Buffer],
    numbers: Sequence[str | tuple[str, str]],
    body: str,
    words: Mapping[str, str] | None = None,
    *,
    aliased: bool = False,
) -> Kernel:
    """Compile a kernel of ``body``, which runs once for each ``gid``.

    Parameters
    ----------
    entry : str
        Its name.
    buffers : sequence of Buffer
        Pointers, in the order in which spans are given.
    numbers : sequence of str or (name, dtype)
        Scalars after them, int64 unless a dtype is given.
    body : str
        A template: ``$name`` stands for the entry of ``words``, and for the words of the dialect.
        Indices have the type ``index_t``.
    aliased : bool
        Whether buffers may overlap (an output that is also an input).
    """
    dialect = context.dialect
    words = {
        **dialect.words, "u32": dialect.types["uint32"], "i16": dialect.types["int16"], **(words or {})
    }  # fmt: skip
    space, restrict = dialect.words["buffer"], "" if aliased else dialect.words["restrict"]
    byte = dialect.types["uint8"]
    typed = [number if isinstance(number, tuple) else (number, "int64") for number in numbers]
    typed.append(("items", "int64"))
    declared, pointers, parameters = [], [], []
    for name, dtype, written in buffers:
        const = "" if written else "const "
        kind = f"{space} {const}{ctype(context, dtype)}*"
        declared += [f"{space} {const}{byte}* {restrict} {name}_bytes", f"const {dialect.types['int64']} {name}_offset"]
        pointers.append(f"{kind} {restrict} const {name} = ({kind})({name}_bytes + {name}_offset);")
        parameters += ["buffer", "int64"]
    for name, dtype in typed:
        declared.append(f"const {dialect.types[dtype]} {name}")
        parameters.append(dtype)
    text = Template(body).substitute(words)
    helpers = [_HELPERS[half] for half in HALVES if f"_{half}(" in text]
    if "bad_index(" in text:
        helpers.append(_BAD_INDEX)
    source = "\n".join(
        [
            dialect.words["prologue"] + f"typedef {dialect.types['int64']} index_t;",
            *(Template(helper).substitute(words) for helper in helpers),
            f"{dialect.words['kernel']} {entry}({', '.join(declared)}) {{",
            *pointers,
            f"{dialect.words['each']} {{",
            text.strip("\n"),
            "}",
            "}\n",
        ]
    )
    compiled = context.compile(source, entry, tuple(parameters))

    def launch(
        context: Context, items: int, spans: Sequence[Any], numbers: Sequence[Any], group: int | None = None
    ) -> None:
        args: list[Any] = []
        for span in spans:
            args += span[:2]
        args += numbers
        args.append(items)
        context.launch(compiled, items, args, group)

    return launch


def part(span: Span, start: int) -> Span:
    """The span from byte ``start`` on."""
    return Span(span.handle, span.offset + start, span.nbytes - start)


def dealt(items: int) -> int:
    """Group hint of items that are short loops: few are dealt out singly, many by sixteen."""
    return 1 if items < 256 else 16


def decode(index: str, names: Sequence[tuple[str, Sequence[tuple[str, str]]]], left: str = "left") -> str:
    """Text that splits a linear index over dims: ``(size, ((target, step), ...))`` each, outermost first.

    For each dim, its coordinate times ``step`` is added to ``target``.
    """
    lines = [f"index_t {left} = {index};"]
    for position, (size, targets) in reversed(list(enumerate(names))):
        if position:
            lines.append(f"{{ const index_t next = {left} / {size}, here = {left} - next * {size}; {left} = next;")
        else:
            lines.append(f"{{ const index_t here = {left};")
        lines += [f"{target} += here * {step};" for target, step in targets]
        lines.append("}")
    return "\n".join(lines)


__all__ = [
    "HALVES", "HEAVY", "MOVED", "Buffer", "Kernel", "build", "compute_dtype", "ctype", "dealt", "decode", "function",
    "load", "part", "store",
]  # fmt: skip
