"""The fields of requests: the JSON Schema of each one bounds its values and describes it."""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from t2t_jax.data.terms import Glossary, Term
from t2t_jax.serving.bodies import Fields, SentFile
from t2t_jax.serving.settings import Bounds, RefusedError

JsonSchema: TypeAlias = dict[str, Any]
"""A JSON Schema in the form that OpenAPI takes."""

_MOST_TERMS = 1000
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_KINDS: Mapping[type, str] = {
    type(None): "null",
    bool: "true or false",
    int: "a number",
    float: "a number",
    str: "a string",
    list: "a list",
    dict: "an object",
    SentFile: "a file",
}
"""The name of each type's values in the terms of JSON."""


class Field(NamedTuple):
    """A field of a request."""

    schema: JsonSchema
    """The JSON Schema of the values that the field may have."""
    read: Callable[[str, Any, JsonSchema], Any]
    """A function of the field's name, a value and the schema that returns the value in the type
    that the answers use, or raises a `RefusedError`."""
    default: Any = None
    """The value of the field in a request that leaves it out."""
    missing: str | None = None
    """The text after `... is missing` in the refusal of a request that leaves the field out; None
    if a request may leave it out."""


class Asked:
    """The fields of a request, each of which is read when it is looked up.

    Attributes:
      client: the identifier of the client, from `Access.admit`.
      base: the address of the server as the client has it, which ends with a slash.
    """

    def __init__(
        self,
        of: Callable[[int], Mapping[str, Field]],
        given: Fields,
        client: str,
        base: str = "/",
        *,
        lenient: bool,
    ) -> None:
        """Take the values `given` for the fields that `of` returns for a number of translations.

        A lenient route ignores fields that it does not have and leaves out empty ones; any other
        route refuses unknown fields with a `RefusedError`.
        """
        self.client, self.base = client, base
        self._of, self._fields = of, of(1)
        self._given, self._read = given, dict[str, Any]()
        if lenient:
            said = (one for one in given.items() if one[0] == "q" or one[1] not in (None, ""))
            self._given = dict(said)
        elif unknown := [name for name in given if name not in self._fields]:
            known = ", ".join(self._fields)
            raise RefusedError(400, f"unknown field {unknown[0]!r:.80}; there are {known}")

    def bound(self, most_best: int) -> None:
        """Read fields from now on for an engine that gives at most so many translations."""
        self._fields = self._of(most_best)

    def __getitem__(self, name: str) -> Any:
        """Return the value of a field, or its default; refuse a bad or missing value."""
        field = self._fields[name]
        if name not in self._given:
            if field.missing is not None:
                raise RefusedError(400, f"{name} is missing{field.missing}")
            return field.default
        if name not in self._read:
            self._read[name] = field.read(name, self._given[name], field.schema)
        return self._read[name]


def texts_field(about: str, bounds: Bounds) -> Field:
    """Return a field that is read as a list of texts, and whether a list was given or one text."""
    text = {"type": "string", "maxLength": bounds.max_characters}
    schema = {"oneOf": [text, {"type": "array", "items": text}], "description": about}
    missing = ": the text to translate, or a list of texts"
    return Field(schema, partial(_read_texts, bounds), missing=missing)


def text_field(about: str, known: Sequence[str] | None = None, default: str | None = None) -> Field:
    """Return a field of a short text; the known values are for the description only."""
    schema = _schema("string", about, enum=known, default=default)
    return Field(schema, _read_text, default, "" if default is None else None)


def word_field(about: str, words: Sequence[str], default: str) -> Field:
    """Return a field of one of a few words."""
    return Field(_schema("string", about, enum=words, default=default), _read_word, default)


def number_field(about: str, least: int, most: int, default: int | None = None) -> Field:
    """Return a field of a whole number, or of its digits, as a form sends them."""
    return Field(_schema("integer", about, minimum=least, maximum=most), _read_whole, default)


def beam_size_field(about: str, most: int) -> Field:
    """Return the field of the beam size: 1 or `most`, for which there are programs."""
    return Field(_schema("integer", about, enum=sorted({1, most})), _read_beam_size, most)


def truth_field(about: str) -> Field:
    """Return a field of true or false, which is false where it is left out."""
    return Field(_schema("boolean", about, default=False), _read_truth, False)


def file_field(about: str) -> Field:
    """Return a field of a file, which a form sends."""
    schema = _schema("string", about, format="binary")
    return Field(schema, _read_file, missing=": the file to translate, in a form")


def terms_field(about: str) -> Field:
    """Return a field of an object with a translation for each of some terms, read as a glossary."""
    schema = _schema("object", about, additionalProperties={"type": "string"})
    return Field(schema, _read_terms)


def _schema(kind: str, about: str, **more: Any) -> JsonSchema:
    given = {name: value for name, value in more.items() if value is not None}
    return {"type": kind, **given, "description": about}


def _read_texts(
    bounds: Bounds, name: str, value: Any, schema: JsonSchema
) -> tuple[list[str], bool]:
    found = value if isinstance(value, list) else [value]
    _check_amount(name, len(found), "texts", bounds.max_lines)
    for number, one in enumerate(found):
        _check_text(f"{name}[{number}]" if isinstance(value, list) else name, one)
    _check_amount(name, sum(map(len, found)), "characters", bounds.max_characters)
    return found, isinstance(value, list)


def _check_amount(name: str, amount: int, what: str, most: int) -> None:
    if amount > most:
        raise RefusedError(
            400, f"{name} has {amount:,} {what}, more than {most:,}; send less at once"
        )


def _check_text(called: str, given: Any) -> None:
    if not isinstance(given, str):
        raise _wrong(called, given, "a string")
    for pattern, what in (
        (_CONTROL, "the control character"),
        (_SURROGATE, "half of a surrogate pair,"),
    ):
        if found := pattern.search(given):
            code = f"U+{ord(found[0]):04X}"
            raise RefusedError(
                400, f"{called} has {what} {code} at character {found.start() + 1}; remove it"
            )


def _read_text(name: str, value: Any, schema: JsonSchema) -> str:
    if value is None:
        raise RefusedError(400, f"{name} is missing")
    _check_text(name, value)
    return str(value)


def _read_word(name: str, value: Any, schema: JsonSchema) -> str:
    found = _read_text(name, value, schema)
    if found not in schema["enum"]:
        raise RefusedError(400, f"{name}={found!r:.80} is none of {', '.join(schema['enum'])}")
    return found


def _read_whole(name: str, value: Any, schema: JsonSchema) -> int:
    if isinstance(value, str) and re.fullmatch("-?[0-9]{1,9}", value):
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise _wrong(name, value, "a whole number")
    if not schema["minimum"] <= value <= schema["maximum"]:
        bounds = f"[{schema['minimum']}, {schema['maximum']}]"
        raise RefusedError(400, f"{name}={value} is outside {bounds}")
    return value


def _read_beam_size(name: str, value: Any, schema: JsonSchema) -> int:
    number = _read_whole(name, value, {"minimum": 1, "maximum": 1000})
    if number not in schema["enum"]:
        most = schema["enum"][-1]
        raise RefusedError(400, f"{name}={number} is neither 1 nor this server's {most}")
    return number


def _read_file(name: str, value: Any, schema: JsonSchema) -> SentFile:
    if not isinstance(value, SentFile):
        raise _wrong(name, value, "a file, as multipart/form-data")
    return value


def _read_terms(name: str, value: Any, schema: JsonSchema) -> Glossary:
    if not isinstance(value, dict):
        raise _wrong(name, value, "an object of terms and their translations")
    _check_amount(name, len(value), "terms", _MOST_TERMS)
    for source, target in value.items():
        _check_text(f"a term of {name}", source)
        _check_text(f"{name}[{source!r:.40}]", target)
        if not source.strip() or not target.strip():
            raise RefusedError(400, f"{name} has an empty term; leave it out")
    folded = Counter(_one_line(source).casefold() for source in value)
    for twice in (source for source, count in folded.items() if count > 1):
        raise RefusedError(400, f"{name} has {twice!r:.80} twice; leave one of them")
    terms = (Term(_one_line(source), _one_line(target)) for source, target in value.items())
    return Glossary(tuple(terms))


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _read_truth(name: str, value: Any, schema: JsonSchema) -> bool:
    if not isinstance(value, bool):
        raise _wrong(name, value, "true or false")
    return value


def _wrong(name: str, value: Any, wanted: str) -> RefusedError:
    return RefusedError(400, f"{name} is {_KINDS[type(value)]}; give {wanted}")
