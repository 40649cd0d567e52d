"""Generate the docstring of a declared layer in NumPy's style from its short text and the operator's definition."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from fluidlite.layers.attribute_checks import expected_of

if TYPE_CHECKING:
    from fluidlite.layers.declare import Declaration, LayerArgument

MAX_LINE_WIDTH = 118  # characters of a line of a docstring
_ENTRY_PATTERN = re.compile(r"(\w+(?:, \w+)*): (.*)")
_COMMON_ARGUMENTS = {
    "name": ("str, optional", "Of the layer; its result is ``<name>.tmp_0``."),
    "act": ("str or dict, optional", "An activation of the result."),
    "param_attr": ("ParamAttr, optional", "Of the parameter."),
    "bias_attr": ("ParamAttr, optional", "Of the bias; False: no bias."),
    "dtype": ("dtype", ""),
}
_IMPORTS = ">>> from fluidlite import data\n>>> from {} import "
_KINDS = {"int": "int", "float": "float", "bool": "bool", "str": "str", "dtype": "dtype", "block": "int"}


class _Parsed:
    """The parsed text of a declaration: paragraphs, entries of arguments, and an example."""

    def __init__(self, text: str, names: set[str]) -> None:
        body, prompt, example = inspect.cleandoc(text).partition(">>> ")
        self.example = (prompt + example).strip()
        self.entries: dict[str, str] = {}
        text_lines: list[str] = []
        current_names: list[str] = []
        for line in body.splitlines():
            match = _ENTRY_PATTERN.match(line)
            if match and set(match[1].split(", ")) <= names | {"Returns", "Raises"}:
                current_names = match[1].split(", ")
                self.entries.update(dict.fromkeys(current_names, match[2]))
            elif current_names and line[:1] == " ":
                self.entries.update({name: f"{self.entries[name]} {line.strip()}" for name in current_names})
            else:
                current_names = []
                text_lines.append(line)
        self.summary, _, self.paragraphs = "\n".join(text_lines).strip().partition("\n\n")


def documentation(declaration: Declaration, text: str, module: str = "fluidlite.layers") -> str:
    """Generate the docstring of a layer.

    ``text``: the declaration's docstring: paragraphs; lines ``argument: ...``, ``Returns: ...`` and ``Raises: ...``,
    where the operator's documentation supplies missing ones; and an example, which a test runs.
    ``module``: the module from which the example imports layers.
    """
    op, signature = declaration.definition, declaration.signature
    parsed = _Parsed(text, {*signature.parameters})
    slots = ", ".join(f"{each.slot} is ``{each.name}``" for each in declaration.arguments if _has_other_name(each))
    formula = f"Appends the operator ``{op.type}``: {op.doc.rstrip('.')}" + (f"; there {slots}." if slots else ".")
    summary = parsed.summary or f"{op.doc.partition('; ')[0].rstrip('.')}."
    formula = formula * bool(parsed.summary) + f" Source: {op.source}." * bool(op.source)
    paragraphs = [summary, parsed.paragraphs.strip(), formula.strip()]
    by_name = {each.name: each for each in declaration.arguments}
    entries = [_entry(each, by_name.get(each.name), declaration, parsed) for each in signature.parameters.values()]
    sections = [("Parameters", "\n".join(entries))] if entries else []
    sections += [("Returns", _returns(declaration, parsed)), ("Raises", _raises(declaration, parsed))]
    if parsed.example:
        called_names = dict.fromkeys(re.findall(r"\b(?!data\b)([A-Za-z]\w+)\(", parsed.example))
        sections.append(("Examples", f"{_IMPORTS.format(module)}{', '.join(called_names)}\n{parsed.example}"))
    return _joined_sections(paragraphs, sections)


def code_documentation(function: Callable[..., Any]) -> str:
    """Generate the docstring of a layer that is code from its short text and the types of its signature.

    Its lines have the form of :func:`documentation`, but ``Raises: <errors>: ...`` names the errors.
    """
    signature = inspect.signature(function)
    parsed = _Parsed(function.__doc__ or "", {*signature.parameters})
    params = signature.parameters
    shared = {name for name in _COMMON_ARGUMENTS.keys() & params if params[name].default is not inspect.Parameter.empty}
    entries = [
        _item(
            "**" * (each.kind is each.VAR_KEYWORD) + name,
            _COMMON_ARGUMENTS[name][0] if name in shared else _kind(str(each.annotation), each),
            parsed.entries.get(name, ""),
        )
        for name, each in params.items()
    ]
    returns = _item("", str(signature.return_annotation).replace(" | ", " or "), parsed.entries.get("Returns", ""))
    sections = [("Parameters", "\n".join(entries)), ("Returns", returns)]
    if "Raises" in parsed.entries:
        sections.append(("Raises", _item("", *parsed.entries["Raises"].split(": ", 1))))
    return _joined_sections([parsed.summary, *parsed.paragraphs.split("\n\n")], sections)


def _joined_sections(paragraphs: Sequence[str], sections: Sequence[tuple[str, str]]) -> str:
    text = "\n\n".join(_wrap(each) for each in paragraphs if each)
    return text + "".join(f"\n\n{title}\n{'-' * len(title)}\n{section}" for title, section in sections) + "\n"


def _has_other_name(argument: LayerArgument) -> bool:
    return bool(argument.slot) and argument.attr is None and argument.slot.lower() != argument.name.replace("_", "")


def _wrap(text: str, indent: str = "") -> str:
    line = f"{indent}{' '.join(text.split())}"
    return line if len(line) <= MAX_LINE_WIDTH else textwrap.fill(line, MAX_LINE_WIDTH, subsequent_indent=indent)


def _item(name: str, kind: str, text: str) -> str:
    head = f"{name} : {kind}" if name else kind
    if text and text[-1] not in ".:":
        text += "."
    if text.partition(" ")[0].isalpha():  # float32 stays in lower case
        text = text[0].upper() + text[1:]
    return head + (f"\n{_wrap(text, '    ')}" if text else "")


def _entry(
    parameter: inspect.Parameter, argument: LayerArgument | None, declaration: Declaration, parsed: _Parsed
) -> str:
    name, op = parameter.name, declaration.definition
    if argument is None:
        kind, text = _COMMON_ARGUMENTS[name]
        return _item(name, kind, parsed.entries.get(name, text))
    kind, text = str(parameter.annotation), ""
    if argument.attr is not None:
        attr = argument.attr
        element_kind = attr.type.removesuffix("s")
        kind = f"{element_kind} or list of {element_kind}" if attr.type.endswith("s") else _KINDS[attr.type]
        kind += " or Variable" if argument.slot or argument.each else ""
        text = parsed.entries.get(name, attr.doc)
        if f"{attr.minimum}{attr.maximum}{attr.choices}" != "NoneNoneNone":
            text = f"{text.rstrip('.')}; {expected_of(attr)}" if text else expected_of(attr)
    elif argument.unused:
        hint = argument.unused == "A hint."
        text = parsed.entries.get(name, argument.unused if hint else f"Taken for Fluid's sake: {argument.unused}")
    elif argument.output:
        slot = op.output(argument.output)
        kind = kind if argument.returned else "Variable"
        text = "Return that too" if argument.returned else "Where it is written; default: a new variable"
        text = parsed.entries.get(name, text + (f": {slot.doc}" if slot is not None and slot.doc else ""))
    else:
        slot = op.input(argument.slot)
        kind = "list of Variable" if argument.several else "Variable" if argument.slot else kind
        made_attr = op.attr(argument.body_attr)
        text = parsed.entries.get(
            name, slot.doc if slot is not None else made_attr.doc if made_attr is not None else ""
        )
    return _item(name, _kind(kind, parameter), text)


def _kind(kind: str, parameter: inspect.Parameter) -> str:
    kind = kind.replace(" | None", "").replace(" | ", " or ")
    if parameter.default is None:
        return f"{kind}, optional"
    return kind if parameter.default is inspect.Parameter.empty else f"{kind}, default {parameter.default!r}"


def _returns(declaration: Declaration, parsed: _Parsed) -> str:
    kind = str(declaration.signature.return_annotation).replace(" | ", " or ")
    slots = [declaration.definition.output(slot) for slot in declaration.returns]
    slot_texts = "; ".join(f"{slot.name}: {slot.doc}" for slot in slots if slot is not None and slot.doc)
    return _item("", kind, parsed.entries.get("Returns", slot_texts))


def _raises(declaration: Declaration, parsed: _Parsed) -> str:
    """The Raises section: errors of kinds, of values out of range, and of dims and dtypes that the operator refuses."""
    errors = [_item("", "ProgramError", "An argument is of another kind than said")]
    attributes = [each for each in declaration.arguments if each.attr is not None]
    if attributes:
        errors.append(_item("", "AttributeValueError", "A value is none of those that are said above"))
    names = {each.slot: each.name for each in declaration.arguments if each.slot}
    dtypes = declaration.definition.dtypes
    allowed = "; ".join(f"``{names[slot]}`` is {', '.join(dtypes[slot])}" for slot in dtypes if slot in names)
    if allowed:
        errors.append(_item("", "DtypeError", f"A dtype is another one: {allowed}"))
    errors.append(_item("", "ShapeError", "Dims do not fit the operator's formula"))
    if "Raises" in parsed.entries:
        errors.append(_item("", "FluidError", parsed.entries["Raises"]))
    return "\n".join(errors)
