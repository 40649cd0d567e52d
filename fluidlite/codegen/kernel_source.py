"""Portable kernels in the kernel language of a device: parameters, typed loads and stores, and launches.

A kernel's text describes one work-item. Keywords of the device's language, dtypes and functions are substituted, so
that one text works in OpenCL C, CUDA C, C and a plugin's language.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from string import Template
from typing import Any, NamedTuple

from fluidlite.base.dtypes import HALVES, compute_dtype
from fluidlite.base.errors import KernelNotFoundError
from fluidlite.base.lru_cache import LRUCache
from fluidlite.codegen.language_math import library as language_library, math_call as language_math_call
from fluidlite.platform.context import Context
from fluidlite.program.prepared import Prepared

__all__ = ["Buffer", "Kernel", "build", "ctype", "decode", "function", "load", "store", "wrapping"]

_BAD_INDEX = """
$function void bad_index($buffer index_t* status, const index_t op_id, const index_t value, const index_t bound) {
  if (status[0] == 0) { status[1] = value; status[2] = bound; status[0] = op_id + 1; }
}
"""


class Buffer(NamedTuple):
    """A pointer parameter: in the text, ``name`` is a pointer to elements in storage dtype."""

    name: str
    dtype: str
    written: bool = False


Kernel = Callable[..., None]
"""A compiled kernel: ``kernel(context, items, spans, numbers, group=None)`` launches it."""


def ctype(context: Context, dtype: str) -> str:
    """The name of a dtype in the kernel language; half types are stored as 16-bit words."""
    name: str | None = context.language.types.get("int16" if dtype in HALVES else dtype)
    if name is None:
        raise KernelNotFoundError(f"the kernel language of {context.place} has no type for {dtype}")
    return name


def wrapping(context: Context, dtype: str, sign: str) -> str:
    """The template of a sum or product of ``{0}`` and ``{1}``: integers are computed as unsigned, so that they wrap."""
    unsigned = {"int32": "uint32", "int64": "uint64"}.get(dtype)
    if unsigned is None:
        return f"{{0}} {sign} {{1}}"
    kind, words = ctype(context, dtype), context.language.types[unsigned]
    return f"({kind})(({words}){{0}} {sign} ({words})({{1}}))"


def load(dtype: str, element: str) -> str:
    """The expression that loads a stored element in its compute dtype."""
    return f"fl_load_{dtype}({element})" if dtype in HALVES else element


def store(context: Context, dtype: str, element: str, value: str) -> str:
    """The statement that rounds a computed value and stores it."""
    if dtype in HALVES:
        return f"{element} = fl_store_{dtype}({value});"
    return f"{element} = ({ctype(context, dtype)})({value});"


def function(context: Context, name: str, dtype: str) -> str:
    """The function that computes a primitive in a dtype: the kernel language's, else the framework's."""
    return language_math_call(name, compute_dtype(dtype), context.language.math)


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
        Pointers, in the order of the spans.
    numbers : sequence of str or (name, dtype)
        Scalars after the buffers, int64 unless a dtype is passed.
    body : str
        A template: ``$name`` is replaced by the entry of ``words``, or by a keyword of the kernel language.
        Indices have the type ``index_t``.
    aliased : bool
        Whether buffers may overlap (an output that is also an input).
    """
    source, parameters = kernel_text(context, entry, buffers, numbers, body, words, aliased=aliased)
    compiled = context.compile(source, entry, parameters)

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


Launch = tuple[Any, int, list[Any], "int | None"]
"""The arguments of ``context.launch``: kernel, work-items, arguments, work-group size."""


def prepared_launches(
    launches: Callable[[Any, Any], Sequence[Launch]], same: bool, workspace: int = 0, source: str = ""
) -> Prepared:
    """A prepared kernel that launches compiled kernels in order.

    ``same``: ``launches(context, io)`` returns the same at each run, for operands at static addresses.
    """

    def run(context: Any, io: Any) -> None:
        for launch in launches(context, io):
            context.launch(*launch)

    def bind(context: Any, io: Any) -> Callable[[], None] | None:
        if not same:
            return None
        fixed_launches = launches(context, io)

        def bound() -> None:
            for launch in fixed_launches:
                context.launch(*launch)

        return bound

    return Prepared(run, workspace, bind, source=source)


def kernel_text(
    context: Context,
    entry: str,
    buffers: Sequence[Buffer],
    numbers: Sequence[str | tuple[str, str]],
    body: str,
    words: Mapping[str, str] | None = None,
    *,
    aliased: bool = False,
    local: str = "",
) -> tuple[str, tuple[str, ...]]:
    """The text of a kernel as :func:`build` compiles it, and the types of its parameters.

    ``local`` is a template that declares the local memory of a work-group.
    """
    number_dtypes = [number if isinstance(number, tuple) else (number, "int64") for number in numbers]
    number_dtypes.append(("items", "int64"))
    kinds = tuple(ctype(context, dtype) for _, dtype, _ in buffers)
    substitutions, texts = tuple((words or {}).items()), (local, body)
    key = context.language, entry, tuple(buffers), kinds, tuple(number_dtypes), texts, substitutions, aliased
    return _texts.get(key, lambda: _write(*key))


_texts: LRUCache[tuple[str, tuple[str, ...]]] = LRUCache(1024, "written kernels")
"""Sizes are arguments, so calls of other sizes use the same text."""


def _write(
    language: Any,
    entry: str,
    buffers: tuple[Buffer, ...],
    kinds: tuple[str, ...],
    numbers: tuple[tuple[str, str], ...],
    texts: tuple[str, str],
    substitutions: tuple[tuple[str, str], ...],
    aliased: bool,
) -> tuple[str, tuple[str, ...]]:
    """Return the source of a kernel, and the types of its parameters; ``texts``: of local memory, and of the body."""
    words = {**language.keywords, **dict(substitutions)}
    space, restrict = language.keywords["buffer"], "" if aliased else language.keywords["restrict"]
    byte = language.types["uint8"]
    declared, pointers, parameters = [], [], []
    for (name, _, written), stored in zip(buffers, kinds, strict=True):
        const = "" if written else "const "
        kind = f"{space} {const}{stored}*"
        declared += [
            f"{space} {const}{byte}* {restrict} {name}_bytes",
            f"const {language.types['int64']} {name}_offset",
        ]
        pointers.append(f"{kind} {restrict} const {name} = ({kind})({name}_bytes + {name}_offset);")
        parameters += ["buffer", "int64"]
    for name, dtype in numbers:
        declared.append(f"const {language.types[dtype]} {name}")
        parameters.append(dtype)
    local, text = (Template(each).substitute(words) for each in texts)
    source = "\n".join(
        [
            language.keywords["prologue"] + f"typedef {language.types['int64']} index_t;",
            language_library(text, language.keywords, language.types, language.math),
            Template(_BAD_INDEX).substitute(words) if "bad_index(" in text else "",
            f"{language.keywords['kernel']} {entry}({', '.join(declared)}) {{",
            *pointers,
            *local.splitlines(),
            f"{language.keywords['each']} {{",
            text.strip("\n"),
            "}",
            "}\n",
        ]
    )
    return source, tuple(parameters)


def decode(index: str, names: Sequence[tuple[str, Sequence[tuple[str, str]]]], left: str = "left") -> str:
    """Text that unravels a linear index over dims ``(size, ((target, stride), ...))``, outermost first.

    The coordinate in each dim, times ``stride``, is added to ``target``.
    """
    lines = [f"index_t {left} = {index};"]
    for position, (size, targets) in reversed(list(enumerate(names))):
        if position:
            lines.append(f"{{ const index_t next = {left} / {size}, here = {left} - next * {size}; {left} = next;")
        else:
            lines.append(f"{{ const index_t here = {left};")
        lines += [f"{target} += here * {stride};" for target, stride in targets]
        lines.append("}")
    return "\n".join(lines)
