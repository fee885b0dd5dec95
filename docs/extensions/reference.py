"""The reference of the config and of the commands, made of the code itself when the site is built.

`{config-summary}`, `{config-reference}` and `{command-reference}` stand for them in a document.
"""

import contextlib
import dataclasses
import io
import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, get_type_hints
from unittest import mock

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.pycode import ModuleAnalyzer
from sphinx.util.docutils import SphinxDirective

from t2t_jax import paper
from t2t_jax.commands.entry import COMMANDS, entry_command
from t2t_jax.config import Config
from t2t_jax.config.config import known_fields
from t2t_jax.config.families import FAMILIES, fields_of
from t2t_jax.config.tables import NAMED

# What the paper states of these is stated of what follows from them.
_STATED_OF = {"model.d_k": "model.key_size", "model.d_v": "model.value_size"}
_FAMILY = "model.architecture"
_COLUMNS = 120  # in a wider terminal a help has boxes side by side


def config_summary() -> str:
    """Every field of the config in a line, in Markdown: tables of sections and families."""
    lines: list[str] = []
    for name, section in get_type_hints(Config).items():
        meanings = _meanings(_classes(name, section))
        tables: dict[str, list[str]] = {}
        for path, field in known_fields().items():
            if path.startswith(f"{name}."):
                meaning = _first_sentence(" ".join(meanings[field.name])).replace("|", r"\|")
                row = f"| {{confval}}`{path}` | `{field.default!r}` | {meaning} |"
                tables.setdefault(_where(path, field), []).append(row)
        lines += [f"**{name}**: {_first_sentence(section.__doc__ or '')}", ""]
        for where, rows in tables.items():
            lines += [f"{where}:", ""] if where else []
            lines += ["| field | default | what it is |", "|---|---|---|", *rows, ""]
    return "\n".join(lines)


def _first_sentence(text: str) -> str:
    """A text to its first semicolon or full stop, but for that of "et al.", without the mark."""
    return re.split(r"(?:;|(?<!et al)\.)\s", f"{' '.join(text.split())} ")[0]


def _classes(name: str, section: type) -> list[Any]:
    """The classes of a section of the config, of which the network has one for each family."""
    return [one.config for one in FAMILIES.values()] if name == "model" else [section]


def config_reference() -> str:
    """Every field of the config, in Markdown: type, default, meaning, and what the paper has."""
    lines: list[str] = []
    for name, section in get_type_hints(Config).items():
        classes = _classes(name, section)
        meanings: dict[str, list[str]] = _meanings(classes)
        hints: dict[str, Any] = {}
        for kind in reversed(classes):
            hints |= get_type_hints(kind)
        lines += [f"## {name}", "", section.__doc__ or "", ""]
        for path, field in known_fields().items():
            if not path.startswith(f"{name}."):
                continue
            lines += [
                f"```{{confval}} {path}",
                f":type: `{_values(path) or _type(hints[field.name])}`",
                f":default: `{field.default!r}`",
                "",
                *meanings[field.name],
                *_remarks(path, field),
                "```",
                "",
            ]
    return "\n".join(lines)


def _meanings(classes: Sequence[type]) -> dict[str, list[str]]:
    """The documentation of the fields of some classes, by the name of the field."""
    found: dict[str, list[str]] = {}
    for kind in (base for one in classes for base in reversed(one.__mro__[:-1])):
        if kind.__module__.startswith("t2t_jax"):
            texts = ModuleAnalyzer.for_module(kind.__module__).find_attr_docs()
            found |= {name: text for (of, name), text in texts.items() if of == kind.__name__}
    return found


def _values(path: str) -> str:
    """The names that a field takes, where there is a table of them."""
    tables = {**NAMED, _FAMILY: FAMILIES}
    return " | ".join(map(repr, tables[path].names)) if path in tables else ""


def _type(hint: Any) -> str:
    """A type as its reader writes values of it: the values themselves, where they are listed."""
    text = hint.__name__ if isinstance(hint, type) else str(hint)
    text = re.sub(r"typing\.Literal\[(.*?)\]", lambda found: found[1].replace(", ", " | "), text)
    return text.replace("NoneType", "None")


def _remarks(path: str, field: "dataclasses.Field[Any]") -> Iterator[str]:
    attribute = _STATED_OF.get(path, path)
    for constant in paper.CONSTANTS:
        if attribute in constant.values:
            value = constant.values[attribute]
            yield f"*Section {constant.section} of the paper: {constant.name}, `{value!r}`.*\n"
    if where := _where(path, field):
        yield f"*{where}.*\n"
    if field.metadata.get("may_change"):
        yield "*A run may be continued with another value.*\n"


def _where(path: str, field: "dataclasses.Field[Any]") -> str:
    """The families of networks that have a field, as a clause; nothing where all of them have."""
    owners = [family for family in FAMILIES if field.name in fields_of(family)]
    if not path.startswith("model.") or len(owners) == len(FAMILIES):
        return ""
    return f"Where `model.architecture` is {' or '.join(f'`{one!r}`' for one in owners)}"


def command_reference() -> str:
    """Every command of `t2t-jax`, in Markdown: what it does and its flags, out of its help."""
    lines: list[str] = []
    for group, commands in COMMANDS.items():
        lines += [f"## {group.capitalize()}", ""]
        for name in commands:
            program = f"t2t-jax {name}"
            usage, about, flags = _parts(_help(name), has_config=name in ("train", "preflight"))
            lines += [f"### {program}", "", about, "", "```text", usage, "```", ""]
            lines += [f"```{{program}} {program}", "```", ""]
            for flag, meaning in flags:
                lines += [f"```{{option}} {flag}", meaning, "```", ""]
    return "\n".join(lines)


def _parts(text: str, has_config: bool) -> tuple[str, str, list[tuple[str, str]]]:
    """The parts of a help: the usage, what the command does, and each flag with its meaning.

    Fields of the config, which are flags of training, are left to their own reference.
    """
    usage, _, rest = text.partition("\n\n")
    about, *boxes = re.split(r"\n (?=[\w ]+\n -{9})", rest)
    sections = [f"{name} options" for name in get_type_hints(Config)] if has_config else []
    flags: list[tuple[str, str]] = []
    for box in boxes:
        if box.startswith(tuple(sections)):
            continue
        described = box.rpartition(f"\n  {'-' * 9}")[2]  # what a section is, stands above a rule
        for entry in re.split(r"\n  (?=\S)", described)[1:]:
            flag, meaning = re.split(r"\s\s+|\n", entry, maxsplit=1)
            if flag != "-h, --help":
                flags.append((flag, _with_flags(" ".join(meaning.split()))))
    return usage, _with_flags(about), flags


def _with_flags(text: str) -> str:
    """A text with the flags in it as code: elsewhere, two hyphens become a dash."""
    code_or_flag = r"`[^`]*`|(?<![\w-])--[a-z][\w-]*(?:\.[\w-]+)?"
    return re.sub(code_or_flag, lambda found: f"`{found[0].strip('`')}`", text)


def _help(command: str) -> str:
    """What a command prints with --help."""
    printed = io.StringIO()
    with (
        mock.patch.dict(os.environ, COLUMNS=str(_COLUMNS)),
        contextlib.redirect_stdout(printed),
        contextlib.suppress(SystemExit),
    ):
        entry_command([command, "--help"])
    return printed.getvalue()


def _directive(make: Callable[[], str]) -> type[SphinxDirective]:
    """A directive whose content is a text that a function makes."""

    class Reference(SphinxDirective):
        def run(self) -> list[nodes.Node]:
            return self.parse_text_to_nodes(make(), allow_section_headings=True)

    return Reference


def setup(app: Sphinx) -> dict[str, bool]:
    """Add this to a build of the site."""
    app.add_directive("config-summary", _directive(config_summary))
    app.add_directive("config-reference", _directive(config_reference))
    app.add_directive("command-reference", _directive(command_reference))
    return {"parallel_read_safe": True}
