"""The docstring of a declared layer, in NumPy's style: its own words, and what the operator's definition says."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from fluidlite.layers.attribute_checks import expected_of

if TYPE_CHECKING:
    from fluidlite.layers.declare import Argument, Declaration

WIDTH = 118
_ENTRY = re.compile(r"(\w+(?:, \w+)*): (.*)")
_HELPED = {
    "name": ("str, optional", "Of the layer; its result is ``<name>.tmp_0``."),
    "act": ("str or dict, optional", "An activation of the result."),
    "param_attr": ("ParamAttr, optional", "Of the parameter."),
    "bias_attr": ("ParamAttr, optional", "Of the bias; False: no bias."),
    "dtype": ("dtype", ""),
}
_IMPORTS = ">>> from fluidlite import data\n>>> from {} import "
_KINDS = {"int": "int", "float": "float", "bool": "bool", "str": "str", "dtype": "dtype", "block": "int"}


class _Text:
    """A declaration's words: paragraphs, what is said of arguments, and an example."""

    def __init__(self, text: str, names: set[str]) -> None:
        body, prompt, example = inspect.cleandoc(text).partition(">>> ")
        self.example = (prompt + example).strip()
        self.said: dict[str, str] = {}
        plain: list[str] = []
        last: list[str] = []
        for line in body.splitlines():
            found = _ENTRY.match(line)
            if found and set(found[1].split(", ")) <= names | {"Returns", "Raises"}:
                last = found[1].split(", ")
                self.said.update(dict.fromkeys(last, found[2]))
            elif last and line[:1] == " ":
                self.said.update({name: f"{self.said[name]} {line.strip()}" for name in last})
            else:
                last = []
                plain.append(line)
        self.summary, _, self.rest = "\n".join(plain).strip().partition("\n\n")


def documentation(declaration: Declaration, text: str, module: str = "fluidlite.layers") -> str:
    """Write the docstring of a layer.

    ``text``: what the declaration says: paragraphs; lines ``argument: ...``, ``Returns: ...`` and ``Raises: ...``, of
    which the operator's documentation is what is not said; and an example, which a test runs.
    ``module``: what the example imports layers of.
    """
    op, signature = declaration.definition, declaration.signature
    said = _Text(text, {*signature.parameters})
    slots = ", ".join(f"{each.slot} is ``{each.name}``" for each in declaration.arguments if _renamed(each))
    formula = f"Appends the operator ``{op.type}``: {op.doc.rstrip('.')}" + (f"; there {slots}." if slots else ".")
    summary = said.summary or f"{op.doc.partition('; ')[0].rstrip('.')}."
    formula = formula * bool(said.summary) + f" Source: {op.source}." * bool(op.source)
    paragraphs = [summary, said.rest.strip(), formula.strip()]
    known = {each.name: each for each in declaration.arguments}
    entries = [_entry(each, known.get(each.name), declaration, said) for each in signature.parameters.values()]
    sections = [("Parameters", "\n".join(entries))] if entries else []
    sections += [("Returns", _returns(declaration, said)), ("Raises", _raises(declaration, said))]
    if said.example:
        used = dict.fromkeys(re.findall(r"\b(?!data\b)([A-Za-z]\w+)\(", said.example))
        sections.append(("Examples", f"{_IMPORTS.format(module)}{', '.join(used)}\n{said.example}"))
    return _written(paragraphs, sections)


def code_documentation(function: Callable[..., Any]) -> str:
    """Write the docstring of a layer that is code: its own words, and what kinds its signature says.

    Lines are those of :func:`documentation`, but ``Raises: <errors>: ...`` names the errors.
    """
    signature = inspect.signature(function)
    said = _Text(function.__doc__ or "", {*signature.parameters})
    given = signature.parameters
    helped = {name for name in _HELPED.keys() & given if given[name].default is not inspect.Parameter.empty}
    entries = [
        _item(
            "**" * (each.kind is each.VAR_KEYWORD) + name,
            _HELPED[name][0] if name in helped else _kind(str(each.annotation), each),
            said.said.get(name, ""),
        )
        for name, each in given.items()
    ]
    returns = _item("", str(signature.return_annotation).replace(" | ", " or "), said.said.get("Returns", ""))
    sections = [("Parameters", "\n".join(entries)), ("Returns", returns)]
    if "Raises" in said.said:
        sections.append(("Raises", _item("", *said.said["Raises"].split(": ", 1))))
    return _written([said.summary, *said.rest.split("\n\n")], sections)


def _written(paragraphs: Sequence[str], sections: Sequence[tuple[str, str]]) -> str:
    written = "\n\n".join(_wrapped(each) for each in paragraphs if each)
    return written + "".join(f"\n\n{title}\n{'-' * len(title)}\n{section}" for title, section in sections) + "\n"


def _renamed(argument: Argument) -> bool:
    return bool(argument.slot) and argument.attr is None and argument.slot.lower() != argument.name.replace("_", "")


def _wrapped(text: str, indent: str = "") -> str:
    line = f"{indent}{' '.join(text.split())}"
    return line if len(line) <= WIDTH else textwrap.fill(line, WIDTH, subsequent_indent=indent)


def _item(name: str, kind: str, text: str) -> str:
    head = f"{name} : {kind}" if name else kind
    if text and text[-1] not in ".:":
        text += "."
    if text.partition(" ")[0].isalpha():  # but float32 is written so
        text = text[0].upper() + text[1:]
    return head + (f"\n{_wrapped(text, '    ')}" if text else "")


def _entry(parameter: inspect.Parameter, argument: Argument | None, declaration: Declaration, said: _Text) -> str:
    name, op = parameter.name, declaration.definition
    if argument is None:
        kind, text = _HELPED[name]
        return _item(name, kind, said.said.get(name, text))
    kind, text = str(parameter.annotation), ""
    if argument.attr is not None:
        attr = argument.attr
        one = attr.type.removesuffix("s")
        kind = f"{one} or list of {one}" if attr.type.endswith("s") else _KINDS[attr.type]
        kind += " or Variable" if argument.slot or argument.each else ""
        text = said.said.get(name, attr.doc)
        if f"{attr.minimum}{attr.maximum}{attr.choices}" != "NoneNoneNone":
            text = f"{text.rstrip('.')}; {expected_of(attr)}" if text else expected_of(attr)
    elif argument.unused:
        hint = argument.unused == "A hint."
        text = said.said.get(name, argument.unused if hint else f"Taken for Fluid's sake: {argument.unused}")
    elif argument.output:
        slot = op.output(argument.output)
        kind = kind if argument.returned else "Variable"
        text = "Return that too" if argument.returned else "Where it is written; default: a new variable"
        text = said.said.get(name, text + (f": {slot.doc}" if slot is not None and slot.doc else ""))
    else:
        slot = op.input(argument.slot)
        kind = "list of Variable" if argument.several else "Variable" if argument.slot else kind
        made = op.attr(argument.body_attr)
        text = said.said.get(name, slot.doc if slot is not None else made.doc if made is not None else "")
    return _item(name, _kind(kind, parameter), text)


def _kind(kind: str, parameter: inspect.Parameter) -> str:
    kind = kind.replace(" | None", "").replace(" | ", " or ")
    if parameter.default is None:
        return f"{kind}, optional"
    return kind if parameter.default is inspect.Parameter.empty else f"{kind}, default {parameter.default!r}"


def _returns(declaration: Declaration, said: _Text) -> str:
    kind = str(declaration.signature.return_annotation).replace(" | ", " or ")
    slots = [declaration.definition.output(slot) for slot in declaration.returns]
    told = "; ".join(f"{slot.name}: {slot.doc}" for slot in slots if slot is not None and slot.doc)
    return _item("", kind, said.said.get("Returns", told))


def _raises(declaration: Declaration, said: _Text) -> str:
    """The errors: of kinds, of values that are out of range, and of dims and dtypes that do not fit the operator."""
    errors = [_item("", "ProgramError", "An argument is of another kind than said")]
    bound = [each for each in declaration.arguments if each.attr is not None]
    if bound:
        errors.append(_item("", "AttributeValueError", "A value is none of those that are said above"))
    named = {each.slot: each.name for each in declaration.arguments if each.slot}
    dtypes = declaration.definition.dtypes
    allowed = "; ".join(f"``{named[slot]}`` is {', '.join(dtypes[slot])}" for slot in dtypes if slot in named)
    if allowed:
        errors.append(_item("", "DtypeError", f"A dtype is another one: {allowed}"))
    errors.append(_item("", "ShapeError", "Dims do not fit the operator's formula"))
    if "Raises" in said.said:
        errors.append(_item("", "FluidError", said.said["Raises"]))
    return "\n".join(errors)
