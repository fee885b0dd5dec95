"""The routes of the API, each with its fields, its answer, and the function that answers it.

From these tables `app` serves the routes, and `description` describes them.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from t2t_jax.decoding.open_search import ClosedError
from t2t_jax.markup.files import SUFFIXES
from t2t_jax.serving.answers import Answers
from t2t_jax.serving.fields import (
    Asked,
    Field,
    JsonSchema,
    beam_size_field,
    file_field,
    number_field,
    terms_field,
    text_field,
    texts_field,
    truth_field,
    word_field,
)
from t2t_jax.serving.settings import RefusedError

_TEXT = {"type": "string"}
_ABOUT_TEXTS = "A text, or a list of texts. Each has as many lines in its translation."
_ABOUT_TERMS = "Terms with the translations that they get, where the server has `--glossaries yes`."
_LINKS = {
    "type": "array",
    "items": {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2},
    "description": "Pairs of a source word and a target word, counted from 0; words are what "
    "spaces separate.",
}


@dataclass(frozen=True)
class PostRoute:
    """A route that reads the fields of a request."""

    about: str
    """The summary of the route in the description."""
    fields: Callable[[Answers, int], Mapping[str, Field]]
    """A function of a server's answers and its most translations of a sentence that returns the
    fields of the route."""
    answer: JsonSchema
    """The JSON Schema of the answer."""
    respond: Callable[[Answers, Asked], Awaitable[Any]]
    """A function that answers a request with values for JSON, or with the events of a stream."""
    is_lenient: bool = True
    """Whether unknown and empty fields are ignored, as LibreTranslate does, instead of refused."""
    kinds: tuple[str, ...] = ("application/json", "application/x-www-form-urlencoded")
    """The types of bodies that are described; a route that is not lenient has the first alone."""


@dataclass(frozen=True)
class GetRoute:
    """A route that reads nothing but its path."""

    about: str
    """The summary of the route in the description."""
    respond: Callable[..., Any]
    """A function of the `Server`, and of what the path has in the place of names in braces, that
    returns values for JSON, or a whole response."""
    refusals: tuple[str, ...] = ()
    """The statuses with which the route refuses requests."""


def _object(**properties: Any) -> JsonSchema:
    return {"type": "object", "properties": properties}


def _list(items: JsonSchema, **more: Any) -> JsonSchema:
    return {"type": "array", "items": items, **more}


def _fields(answers: Answers, **more: Field) -> dict[str, Field]:
    """Return the fields of a route that takes texts, with more fields and the API key."""
    key = text_field("An API key, unless a header has it.")._replace(missing=None)
    return {"q": texts_field(_ABOUT_TEXTS, answers.bounds), **more, "api_key": key}


def _pair(answers: Answers) -> dict[str, Field]:
    """Return the fields of the two languages."""
    languages, about = answers.languages, "The language of the texts; `auto` has it detected."
    return {
        "source": text_field(about, [*languages.sources, "auto"], "auto"),
        "target": text_field("The language to translate to.", languages.targets),
    }


def _of_file(answers: Answers, _: int) -> dict[str, Field]:
    fields = _fields(answers, file=file_field(f"A file: {', '.join(SUFFIXES)}."), **_pair(answers))
    return {name: field for name, field in fields.items() if name != "q"}


def _of_translation(answers: Answers, **more: Field) -> dict[str, Field]:
    """Return the fields of a route that translates, with more fields."""
    about_format = "Of html, tags go to the words of the translation that theirs became."
    return _fields(
        answers,
        **_pair(answers),
        format=word_field(about_format, ["text", "html"], "text"),
        glossary=terms_field(_ABOUT_TERMS),
        **more,
    )


def _of_libretranslate(answers: Answers, most: int) -> dict[str, Field]:
    more = number_field("Other translations of each text.", 0, 100, default=0)
    return _of_translation(answers, alternatives=more)


def _of_own(answers: Answers, most: int) -> dict[str, Field]:
    about_beam = "1 chooses the most probable token each time."
    about_tokens = "The most subwords of the translation of a sentence."
    about_stream = (
        "Answer with server-sent events: `partial` whenever subwords of a sentence were chosen, "
        "with beam_size 1; then `done` with the whole answer, or `error`."
    )
    return _of_translation(
        answers,
        split=word_field("What is translated as one.", ["sentences", "lines"], answers.split),
        num_best=number_field("Translations of each text, best first.", 1, most, default=1),
        beam_size=beam_size_field(about_beam, most),
        max_tokens=number_field(about_tokens, 1, 100_000),
        alignments=truth_field("Link words."),
        stream=truth_field(about_stream),
    )


_CONFIDENCE = (
    "From 0 to 1: the geometric mean of the probabilities of its subwords, or of a model that is "
    "calibrated, the chrF expected of it."
)
_HYPOTHESES = _list(
    _object(
        text=_TEXT,
        score={"type": "number", "description": "What hypotheses are ranked by."},
        log_prob={"type": "number", "description": "Log-probability, in nats."},
        confidence={"type": "number", "description": _CONFIDENCE},
    )
)
_DETECTED = _object(language=_TEXT, confidence={"type": "number", "description": "In percent."})
_ABOUT_DETECTED = "Only with source `auto`; of a list, one for each text."

POST_ROUTES: Mapping[str, PostRoute] = {
    "/translate": PostRoute(
        "Translate texts, as LibreTranslate does.",
        _of_libretranslate,
        _object(
            translatedText={"oneOf": [_TEXT, _list(_TEXT)], "description": _ABOUT_TEXTS},
            alternatives=_list(_TEXT, description="Of a list of texts, a list for each."),
            detectedLanguage=_DETECTED | {"description": _ABOUT_DETECTED},
        ),
        Answers.translate,
    ),
    "/translate_file": PostRoute(
        "Translate a file, as LibreTranslate does.",
        _of_file,
        _object(translatedFileUrl={"type": "string", "description": "Where to fetch the file."}),
        Answers.translate_file,
        kinds=("multipart/form-data",),
    ),
    "/detect": PostRoute(
        "Say which of the source languages a text is written in.",
        lambda answers, _: _fields(answers),
        _list(_DETECTED),
        Answers.detect,
    ),
    "/v1/translations": PostRoute(
        "Translate texts: several translations, scores, alignments, streams.",
        _of_own,
        _object(
            source=_TEXT,
            target=_TEXT,
            translations=_list(
                _object(
                    hypotheses=_HYPOTHESES,
                    sentences=_list(
                        _object(source=_TEXT, hypotheses=_HYPOTHESES, alignment=_LINKS)
                    ),
                )
            ),
        ),
        Answers.translations,
        is_lenient=False,
    ),
}


def _languages(server: Any) -> Any:
    return server.answers.languages.described()


def _health(server: Any) -> Any:
    if not server.is_ready:
        raise ClosedError
    return {"status": "ok"}


def _metrics(server: Any) -> Response:
    page = server.answers.metrics.page()
    return Response(page, media_type="text/plain; version=0.0.4; charset=utf-8")


def _download(server: Any, name: str) -> Response:
    content = server.answers.downloads.get(name)
    if content is None:
        raise RefusedError(404, "there is no such file any more; translate it again")
    headers = {"content-disposition": "attachment", "x-content-type-options": "nosniff"}
    return Response(content, media_type="application/octet-stream", headers=headers)


GET_ROUTES: Mapping[str, GetRoute] = {
    "/languages": GetRoute("The language pairs.", _languages),
    "/download_file/{name}": GetRoute("A file that was translated.", _download, ("404",)),
    "/health": GetRoute("Whether requests are taken.", _health, ("503",)),
    "/live": GetRoute("Whether the process answers.", lambda _: {"status": "ok"}),
    "/metrics": GetRoute("Counters, in the format of Prometheus.", _metrics),
}
