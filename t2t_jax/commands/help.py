"""The help of every command: what one needs first, one section of the flags, or all of them."""

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
"""The fields that one sets or looks up most often: the short help of a command lists only these."""
_SCREEN = 40
"""The lines of a help that is printed whole."""
_LONG = 20
"""The characters of the values of a flag beyond which they are named and not listed."""
_WIDEST, _NARROWEST = 100, 40
_ENDS = re.compile(r"[.;](?= |$)| (?=\()|$")
_COLONS = re.compile(r":(?= )")


def print_help(
    command: object, flags: Sequence[Flag], program: str, given: Mapping[str, Sequence[str]]
) -> None:
    """Print the help that a command line asks for.

    Args:
      command: the dataclass whose docstring says what the command does. Where its `lists_fields` is
        False, the short help leaves the fields of the config out.
      flags: the flags of the command, with the defaults that they have beside these arguments.
      given: the flags of the command line, with their values. `--help-all` asks for every flag, and
        `--help NAME` for those of a section, or for a single one.
    """
    flags = sorted(flags, key=lambda flag: not flag.is_positional)
    width = _columns()
    if asked := given.get("--help"):
        print(*_named(flags, asked[0], width), sep="\n")
        return
    head = [usage(flags, program), "", *_paragraphs(command.__doc__ or "", width)]
    whole = [line for section in _sections(flags) for line in _whole(flags, section, width)]
    calls = (f"{program} {one}" for one in getattr(command, "examples", ()))
    examples = [" \\\n".join(wrapped(call, width - 2, "  ", " " * 6)) for call in calls]
    tail = ["", "examples:", *examples] if examples else []
    if "--help-all" in given or len(head) + len(whole) + len(tail) <= _SCREEN:
        print(*head, *whole, *tail, sep="\n")
        return
    common = [*COMMON, *getattr(command, "common", ())]
    has_fields = getattr(command, "lists_fields", True)
    shown = [flag for flag in flags if has_fields or not flag.section]
    brief = [line for section in _sections(shown) for line in _brief(shown, section, common, width)]
    sections = ", ".join(_sections(flags)[1:])
    named = f"a flag, or a section: {sections}" if sections else "a flag"
    more = wrapped(f"More: --help-all has every flag; --help NAME has {named}.", width)
    print(*head, *brief, *tail, "", *more, sep="\n")


def _named(flags: Sequence[Flag], asked: str, width: int) -> Iterator[str]:
    """Yield the help of a section, or of the flags of a name."""
    asked = asked.replace("-", "_")
    if asked in _sections(flags):
        return _whole(flags, asked, width)
    found = [flag for flag in flags if asked in _names(flag)]
    if not found:
        known = [*_sections(flags)[1:], *(flag.name for flag in flags)]
        sections = ", ".join(_sections(flags)[1:])
        otherwise = f"the sections are {sections}" if sections else "--help has all flags"
        hint = did_you_mean(asked, known, otherwise)
        raise UserError(f"--help {asked}: there is no such section or flag; {hint}")
    return (line for flag in found for line in _entry(flag, width))


def _names(flag: Flag) -> list[str]:
    aliases = [one.removeprefix("--").replace("-", "_") for one in flag.aliases]
    return [flag.name, flag.name.rpartition(".")[2], *aliases]


def _sections(flags: Iterable[Flag]) -> list[str]:
    """Return the names of the sections of flags, beginning with "" for the command itself."""
    return list(dict.fromkeys(["", *(flag.section for flag in flags)]))


def usage(flags: Iterable[Flag], program: str) -> str:
    """Return the line that shows how a program is called."""
    words = []
    for flag in flags:
        if flag.is_positional:
            text = flag.flag if flag.takes else f"{flag.flag} ..."
            words.append(text if flag.is_required else f"[{text}]")
    return " ".join(["usage:", program, *words, "[--flag value ...]"])


def wrapped(text: str, width: int | None = None, first: str = "", later: str = "") -> list[str]:
    """Return a text in lines of a width, the first and the later ones of which are indented.

    Without a width, it is that of the terminal.
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
    filled = ("\n".join(wrapped(one, width)) for one in inspect.cleandoc(text).split("\n\n"))
    return "\n\n".join(filled).split("\n")


def _brief(flags: Sequence[Flag], section: str, common: Sequence[str], width: int) -> Iterator[str]:
    """Yield the common flags of a section, each with its default and the gist of its meaning.

    All flags are shown of a section none of whose flags is common.
    """
    of_section = [flag for flag in flags if flag.section == section]
    paths = [f"{section}.{flag.field.name}".removeprefix(".") for flag in of_section]
    shown = [flag for flag, path in zip(of_section, paths, strict=True) if path in common]
    shown = [flag for flag in of_section if flag.is_positional or flag in shown]
    shown = shown if any(not flag.is_positional for flag in shown) else of_section
    yield from _title(section, f" ({len(shown)} of {len(of_section)})" * (shown != of_section))
    left = [f"  {_short_label(flag)}" for flag in shown]
    column = max(map(len, left), default=0) + 2
    for label, flag in zip(left, shown, strict=True):
        gist = wrapped(_gist(meaning(flag), width - column), width - column) or [""]
        yield f"{label:<{column}}{gist[0]}"
        yield from (" " * column + line for line in gist[1:])


def _short_label(flag: Flag) -> str:
    """Return a flag with its default if it is one word, or else with what the flag takes."""
    if flag.is_positional or flag.is_switch:
        return flag.label
    kinds = flag.values.removesuffix("|None")
    if not (flag.is_required or flag.default in (None, (), "")):
        kinds = flag.written
    elif kinds.isupper() or len(kinds) > _LONG:
        kinds = kinds.split("|")[0]
    return f"{flag.flag} {kinds}"


def _gist(text: str, room: int) -> str:
    """Return as much of a text as fits into a line, up to the end of a clause, or else the least.

    A clause ends before a parenthesis, a semicolon or the end of a sentence, or else at a colon.
    """
    outside = [
        [place for place in places if text.count("(", 0, place) == text.count(")", 0, place)]
        for places in ([end.start() for end in ends.finditer(text)] for ends in (_ENDS, _COLONS))
    ]
    fitting = ([end for end in ends if end <= room] for ends in outside)
    return text[: max(next(filter(None, fitting), outside[0][:1]))].rstrip(".")


def _whole(flags: Sequence[Flag], section: str, width: int) -> Iterator[str]:
    yield from _title(section, "")
    for flag in flags:
        if flag.section == section:
            yield from _entry(flag, width)


def _title(section: str, remark: str) -> list[str]:
    return ["", f"{section or 'arguments and flags'}{remark}:"]


def _entry(flag: Flag, width: int) -> Iterator[str]:
    text, label = meaning(flag), flag.label
    if len(flag.values) > width // 2:  # they would not fit beside the flag
        text, label = f"{text} It is one of {flag.values.replace('|', ', ')}.", f"{flag.flag} NAME"
    if flag.aliases:
        text = f"{text} Also {', '.join(flag.aliases)}."
    if flag.is_required:
        text = f"{text} (required)"
    elif not (flag.is_switch or flag.is_positional):
        text = f"{text} (default: {flag.written})"
    yield f"  {label}"
    yield from wrapped(text, width, " " * 6, " " * 6)


def meaning(flag: Flag) -> str:
    """Return what a flag means, in one line: the docstring of its field, or what replaces it."""
    text = flag.setting("help")
    bases = (documented(base).get(flag.field.name) for base in flag.owner.__mro__)
    return " ".join((text or next(filter(None, bases), "")).split())


@cache
def documented(kind: type) -> dict[str, str]:
    """Return the docstrings of the fields of a class, which stand below them."""
    if not dataclasses.is_dataclass(kind):
        return {}
    classes = (node for node in _parsed(kind.__module__).body if isinstance(node, ast.ClassDef))
    body = next((node.body for node in classes if node.name == kind.__name__), [])
    found: dict[str, str] = {}
    for field, below in itertools.pairwise(body):
        match field, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                found[name] = text
    return found


@cache
def _parsed(module: str) -> ast.Module:
    return ast.parse(inspect.getsource(sys.modules[module]))
