"""Print the help of a command: common flags, one section of flags, or all flags."""

import ast
import dataclasses
import inspect
import itertools
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache

from t2t_jax.commands.flag_table import Flag
from t2t_jax.errors import UserError, did_you_mean

COMMON = (
    *("model.architecture", "model.d_model", "model.num_heads", "model.d_ff"),
    *("model.num_encoder_layers", "model.num_decoder_layers", "model.patch_size"),
    *("model.dropout_rate", "model.compute_dtype"),
    *("data.corpus", "data.source_language", "data.target_language", "data.task"),
    *("data.vocab_size", "data.source_tokens_per_step", "data.target_tokens_per_step"),
    *("training.num_train_steps", "training.warmup_steps", "training.peak_learning_rate"),
    *("training.init_from", "training.seed"),
    *("checkpoint.every_steps", "checkpoint.average"),
    "evaluation.every_steps",
    *("decoding.beam_size", "decoding.length_penalty"),
    *("parallel.fsdp", "parallel.tensor"),
)
"""Config fields in the short help of a command."""
_SCREEN = 40
"""Maximum lines of a help that lists all flags by default."""
_LONG = 20
"""Maximum characters of the listed values of a flag in the short help."""
_WIDEST, _NARROWEST = 100, 40
_ENDS = re.compile(r"[.;](?= |$)| (?=\()|$")
_COLONS = re.compile(r":(?= )")


def print_help(
    command: object, flags: Sequence[Flag], program: str, requests: Mapping[str, Sequence[str]]
) -> None:
    """Print the help that a command line asks for.

    Args:
      command: the dataclass of the command, with a docstring about the command. If `lists_fields`
        is False, the short help omits config fields.
      flags: the flags of the command, with the defaults for this command line.
      requests: the flags of the command line, by name; `--help` and `--help-all` are read.
    """
    # Positional arguments first, as on the command line.
    flags = sorted(flags, key=lambda flag: not flag.is_positional)
    width = _columns()
    if names := requests.get("--help"):
        print(*_help_of(flags, names[0], width), sep="\n")
        return
    head = [usage(flags, program), "", *_paragraphs(command.__doc__ or "", width)]
    full_lines = [line for section in _sections(flags) for line in _full(flags, section, width)]
    calls = (f"{program} {example}" for example in getattr(command, "examples", ()))
    examples = [" \\\n".join(wrap(call, width - 2, "  ", " " * 6)) for call in calls]
    tail = ["", "examples:", *examples] if examples else []
    if "--help-all" in requests or len(head) + len(full_lines) + len(tail) <= _SCREEN:
        print(*head, *full_lines, *tail, sep="\n")
        return
    common = [*COMMON, *getattr(command, "common", ())]
    has_fields = getattr(command, "lists_fields", True)
    subset = [flag for flag in flags if has_fields or not flag.section]
    brief = [line for name in _sections(subset) for line in _brief(subset, name, common, width)]
    sections = ", ".join(_sections(flags)[1:])
    topics = f"a flag, or a section: {sections}" if sections else "a flag"
    hint = wrap(f"More: --help-all has every flag; --help NAME has {topics}.", width)
    print(*head, *brief, *tail, "", *hint, sep="\n")


def _help_of(flags: Sequence[Flag], name: str, width: int) -> Iterator[str]:
    """Return the lines of help on a section, or on each flag with a name."""
    name = name.replace("-", "_")
    if name in _sections(flags):
        return _full(flags, name, width)
    matches = [flag for flag in flags if name in _names(flag)]
    if not matches:
        candidates = [*_sections(flags)[1:], *(flag.name for flag in flags)]
        sections = ", ".join(_sections(flags)[1:])
        fallback = f"the sections are {sections}" if sections else "--help has all flags"
        hint = did_you_mean(name, candidates, fallback)
        raise UserError(f"--help {name}: there is no such section or flag; {hint}")
    return (line for flag in matches for line in _entry(flag, width))


def _names(flag: Flag) -> list[str]:
    aliases = [alias.removeprefix("--").replace("-", "_") for alias in flag.aliases]
    return [flag.name, flag.name.rpartition(".")[2], *aliases]


def _sections(flags: Iterable[Flag]) -> list[str]:
    """List the config sections that have flags, after "" for the flags without a section."""
    return list(dict.fromkeys(["", *(flag.section for flag in flags)]))


def usage(flags: Iterable[Flag], program: str) -> str:
    """Return the usage line of a program, with its positional arguments."""
    words = []
    for flag in flags:
        if flag.is_positional:
            text = flag.flag if flag.num_words else f"{flag.flag} ..."
            words.append(text if flag.is_required else f"[{text}]")
    return " ".join(["usage:", program, *words, "[--flag value ...]"])


def wrap(text: str, width: int | None = None, first: str = "", later: str = "") -> list[str]:
    """Wrap a text into lines of `width` characters; None is the width of the terminal.

    Args:
      first: the indent of the first line.
      later: the indent of the other lines.
    """
    return textwrap.wrap(
        text,
        width or _columns(),
        initial_indent=first,
        subsequent_indent=later,
        break_on_hyphens=False,
    )


def _columns() -> int:
    return min(max(shutil.get_terminal_size().columns, _NARROWEST), _WIDEST)


def _paragraphs(text: str, width: int) -> list[str]:
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join("\n".join(wrap(text, width)) for text in paragraphs).split("\n")


def _brief(flags: Sequence[Flag], section: str, common: Sequence[str], width: int) -> Iterator[str]:
    """Yield lines of short help, which list the common flags of a config section with defaults.

    If no flag of the section is in `common`, the lines list all of its flags.
    """
    flags = [flag for flag in flags if flag.section == section]
    paths = {flag.name: f"{section}.{flag.field.name}".removeprefix(".") for flag in flags}
    subset = [flag for flag in flags if flag.is_positional or paths[flag.name] in common]
    subset = subset if any(not flag.is_positional for flag in subset) else flags
    yield from _title(section, f" ({len(subset)} of {len(flags)})" * (subset != flags))
    labels = [f"  {_short_label(flag)}" for flag in subset]
    text_column = max(map(len, labels), default=0) + 2
    for label, flag in zip(labels, subset, strict=True):
        gist_lines = wrap(_gist(help_text(flag), width - text_column), width - text_column) or [""]
        yield f"{label:<{text_column}}{gist_lines[0]}"
        yield from (" " * text_column + line for line in gist_lines[1:])


def _short_label(flag: Flag) -> str:
    """Return a flag with its default, or with the type of its value if there is no default."""
    if flag.is_positional or flag.is_switch:
        return flag.label
    values = flag.values.removesuffix("|None")
    if not (flag.is_required or flag.default in (None, (), "")):
        values = flag.default_text
    elif values.isupper() or len(values) > _LONG:
        values = values.split("|")[0]
    return f"{flag.flag} {values}"


def _gist(text: str, width: int) -> str:
    """Return as many clauses of a text as fit into `width` characters, at least one.

    A clause ends at a sentence end, a semicolon, before a parenthesis, or else at a colon.
    """
    clause_ends = [
        [end for end in ends if text.count("(", 0, end) == text.count(")", 0, end)]
        for ends in ([match.start() for match in kind.finditer(text)] for kind in (_ENDS, _COLONS))
    ]
    fitting_ends = ([end for end in ends if end <= width] for ends in clause_ends)
    return text[: max(next(filter(None, fitting_ends), clause_ends[0][:1]))].rstrip(".")


def _full(flags: Sequence[Flag], section: str, width: int) -> Iterator[str]:
    yield from _title(section, "")
    for flag in flags:
        if flag.section == section:
            yield from _entry(flag, width)


def _title(section: str, remark: str) -> list[str]:
    return ["", f"{section or 'arguments and flags'}{remark}:"]


def _entry(flag: Flag, width: int) -> Iterator[str]:
    text, label = help_text(flag), flag.label
    if len(flag.values) > width // 2:  # too long for the line of the flag
        text, label = f"{text} It is one of {flag.values.replace('|', ', ')}.", f"{flag.flag} NAME"
    if flag.aliases:
        text = f"{text} Also {', '.join(flag.aliases)}."
    if flag.is_required:
        text = f"{text} (required)"
    elif not (flag.is_switch or flag.is_positional):
        text = f"{text} (default: {flag.default_text})"
    yield f"  {label}"
    yield from wrap(text, width, " " * 6, " " * 6)


def help_text(flag: Flag) -> str:
    """Return the help text of a flag, from its annotation or the docstring of its field."""
    text = flag.setting("help")
    docstrings = (field_docstrings(base).get(flag.field.name) for base in flag.owner.__mro__)
    return " ".join((text or next(filter(None, docstrings), "")).split())


@cache
def field_docstrings(kind: type) -> dict[str, str]:
    """Parse the docstrings below the fields of a dataclass, by field name."""
    if not dataclasses.is_dataclass(kind):
        return {}
    classes = (node for node in _parse(kind.__module__).body if isinstance(node, ast.ClassDef))
    body = next((node.body for node in classes if node.name == kind.__name__), [])
    docstrings: dict[str, str] = {}
    for statements in itertools.pairwise(body):
        match statements:
            case ast.AnnAssign(ast.Name(name)), ast.Expr(ast.Constant(str(text))):
                docstrings[name] = text
    return docstrings


@cache
def _parse(module: str) -> ast.Module:
    return ast.parse(inspect.getsource(sys.modules[module]))
