"""The reference of the config and of the commands, made of the code itself when the site is built.

`{config-summary}`, `{config-reference}` and `{command-reference}` stand for them in a document.
"""

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, get_type_hints

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from t2t_jax import paper
from t2t_jax.commands.entry import all_commands, command_class
from t2t_jax.commands.flag_table import flags_of
from t2t_jax.commands.foreign_flags import ALIASES
from t2t_jax.commands.help import field_docstrings, help_text, usage
from t2t_jax.config import Config
from t2t_jax.config.config import known_fields
from t2t_jax.config.families import FAMILIES, fields_of
from t2t_jax.config.tables import NAMED
from t2t_jax.extras.launch.launch_command import usage_of_launch

# What the paper states of these is stated of what follows from them.
_STATED_OF = {"model.d_k": "model.key_size", "model.d_v": "model.value_size"}
_FAMILY = "model.architecture"


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
        texts = field_docstrings(kind)
        found |= {name: [*inspect.cleandoc(text).split("\n"), ""] for name, text in texts.items()}
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
    if aliases := ALIASES.get(f"--{path.replace('_', '-')}"):
        yield f"*Also `{'`, `'.join(aliases)}` on a command line.*\n"
    if field.metadata.get("may_change"):
        yield "*A run may be continued with another value.*\n"


def _where(path: str, field: "dataclasses.Field[Any]") -> str:
    """The families of networks that have a field, as a clause; nothing where all of them have."""
    owners = [family for family in FAMILIES if field.name in fields_of(family)]
    if not path.startswith("model.") or len(owners) == len(FAMILIES):
        return ""
    return f"Where `model.architecture` is {' or '.join(f'`{one!r}`' for one in owners)}"


def command_reference() -> str:
    """Every command of `t2t-jax`, in Markdown: what it does and its flags.

    Fields of the config, which are flags of training, are left to their own reference.
    """
    lines: list[str] = []
    for group, commands in all_commands().items():
        lines += [f"## {group.capitalize()}", ""]
        for name in commands:
            program, kind = f"t2t-jax {name}", command_class(name)
            flags = [] if name == "launch" else flags_of(kind)
            if any(flag.name == _FAMILY for flag in flags):
                flags = [flag for flag in flags if flag.name not in known_fields()]
            about = _with_flags(inspect.cleandoc(kind.__doc__ or ""))
            call = usage(flags, program) if flags else f"usage: {usage_of_launch(program)}"
            lines += [f"### {program}", "", about, "", "```text", call, "```", ""]
            lines += [f"```{{program}} {program}", "```", ""]
            for flag in flags:
                default = "required" if flag.is_required else f"default: {flag.default_text}"
                also = f"Also {', '.join(flag.aliases)}." if flag.aliases else ""
                text = _with_flags(f"{help_text(flag)} {also}".rstrip())
                lines += [f"```{{option}} {flag.label}", text, f"({default})"]
                lines += ["```", ""]
    return "\n".join(lines)


def _with_flags(text: str) -> str:
    """A text with the flags in it as code: elsewhere, two hyphens become a dash."""
    code_or_flag = r"`[^`]*`|(?<![\w-])--[a-z][\w-]*(?:\.[\w-]+)?"
    return re.sub(code_or_flag, lambda found: f"`{found[0].strip('`')}`", text)


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
