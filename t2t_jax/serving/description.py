"""The OpenAPI description of a server, of which `/docs` makes a page."""

from importlib.metadata import version
from typing import Any

from t2t_jax.serving.answers import Answers

_TEXT = {"type": "string"}
_TEXTS = {
    "oneOf": [_TEXT, {"type": "array", "items": _TEXT}],
    "description": "A text, or a list of texts. Each has as many lines in its translation.",
}
_LINKS = {
    "type": "array",
    "items": {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2},
    "description": "Pairs of a source word and a target word, counted from 0; words are what "
    "spaces separate.",
}
_REFUSALS = {
    "400": "The request is malformed, or asks for what the server does not have.",
    "401": "An API key is needed.",
    "403": "The API key is wrong.",
    "408": "The body did not arrive in time.",
    "413": "The body is too large.",
    "415": "The content type is neither JSON nor a form.",
    "429": "Too many sentences wait, or too many requests were sent; Retry-After says when to "
    "try again.",
    "500": "The server has failed.",
    "501": "No detector of languages is installed.",
    "503": "The server is stopping, or too many connections are open; Retry-After says when to try "
    "again.",
    "504": "The translation took too long.",
}


def description(answers: Answers, *, needs_key: bool) -> dict[str, Any]:
    """What the server takes and gives, as OpenAPI 3.1 describes it.

    Args:
      answers: what the server answers with.
      needs_key: whether an API key is needed.
    """
    most = min(one.engine.most_best for one in answers.languages.services.values())
    asked, common = _asked(answers, needs_key)
    detected = {"language": _TEXT, "confidence": {"type": "number", "description": "In percent."}}
    detected_language = {"type": "object", "properties": detected}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Translation server of t2t_jax",
            "version": version("t2t-jax"),
            "description": "The API of LibreTranslate, and beside it /v1/translations.",
        },
        "paths": {
            "/translate": _post(
                "Translate texts, as LibreTranslate does.",
                common | {"alternatives": _whole(0, 100, "Other translations of each text.")},
                _object(
                    translatedText=_TEXTS,
                    alternatives={
                        "type": "array",
                        "items": _TEXT,
                        "description": "Of a list of texts, a list for each.",
                    },
                    detectedLanguage=detected_language
                    | {"description": "Only with source `auto`; of a list, one for each text."},
                ),
                is_form=True,
            ),
            "/detect": _post(
                "Say which of the source languages a text is written in.",
                asked,
                {"type": "array", "items": detected_language},
                is_form=True,
            ),
            "/v1/translations": _post(
                "Translate texts: several translations, scores, alignments, streams.",
                common | _own_fields(answers, most),
                _object(source=_TEXT, target=_TEXT, translations=_translations()),
            ),
            "/languages": _get("The language pairs."),
            "/health": _get("Whether requests are taken.", "503"),
            "/live": _get("Whether the process answers."),
            "/metrics": _get("Counters, in the format of Prometheus."),
        },
    }


def _asked(answers: Answers, needs_key: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fields of every request with texts, and those of one that has them translated."""
    sources = [*answers.languages.sources, "auto"]
    targets = sorted({target for _, target in answers.languages.services})
    text = _TEXT | {"maxLength": answers.bounds.max_characters}
    asked: dict[str, Any] = {"q": _TEXTS | {"oneOf": [text, {"type": "array", "items": text}]}}
    if needs_key:
        asked["api_key"] = _TEXT | {"description": "An API key, unless a header has it."}
    return asked, asked | {
        "source": {
            "type": "string",
            "enum": sources,
            "default": "auto",
            "description": "The language of the texts; `auto` has it detected.",
        },
        "target": {
            "type": "string",
            "enum": targets,
            "description": "The language to translate to.",
        },
        "format": {
            "type": "string",
            "enum": ["text", "html"],
            "default": "text",
            "description": "Of html, every tag stays where it is; the text between two tags is "
            "translated by itself.",
        },
    }


def _own_fields(answers: Answers, most: int) -> dict[str, Any]:
    """The fields of `/v1/translations` that `/translate` does not have."""
    return {
        "split": {
            "type": "string",
            "enum": ["sentences", "lines"],
            "default": answers.split,
            "description": "What is translated as one.",
        },
        "num_best": _whole(1, most, "Translations of each text, best first."),
        "beam_size": {
            "type": "integer",
            "enum": sorted({1, most}),
            "description": "1 chooses the most probable token each time.",
        },
        "max_tokens": _whole(1, 100_000, "The most subwords of the translation of a sentence."),
        "alignments": {"type": "boolean", "default": False, "description": "Link words."},
        "stream": {
            "type": "boolean",
            "default": False,
            "description": "Answer with server-sent events: `partial` whenever subwords of a "
            "sentence were chosen, with beam_size 1; then `done` with the whole answer, or "
            "`error`.",
        },
    }


def _translations() -> dict[str, Any]:
    hypotheses = {
        "type": "array",
        "items": {
            "type": "object",
            "properties": {
                "text": _TEXT,
                "score": {"type": "number", "description": "What hypotheses are ranked by."},
                "log_prob": {"type": "number", "description": "Log-probability, in nats."},
                "confidence": {
                    "type": "number",
                    "description": "From 0 to 1: the geometric mean of the probabilities of its "
                    "subwords, or of a model that is calibrated, the chrF expected of it.",
                },
            },
        },
    }
    sentence = {"source": _TEXT, "hypotheses": hypotheses, "alignment": _LINKS}
    sentences = {"type": "array", "items": {"type": "object", "properties": sentence}}
    text = {"hypotheses": hypotheses, "sentences": sentences}
    return {"type": "array", "items": {"type": "object", "properties": text}}


def _whole(least: int, most: int, about: str) -> dict[str, Any]:
    return {"type": "integer", "minimum": least, "maximum": most, "description": about}


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def _get(about: str, *refusals: str) -> dict[str, Any]:
    answers = {"200": "The answer."} | {status: _REFUSALS[status] for status in refusals}
    responses = {status: {"description": why} for status, why in answers.items()}
    return {"get": {"summary": about, "responses": responses}}


def _post(
    about: str, fields: dict[str, Any], answer: dict[str, Any], *, is_form: bool = False
) -> dict[str, Any]:
    required = [name for name in ("q", "target") if name in fields]
    body = {"schema": {"type": "object", "properties": fields, "required": required}}
    kinds = ["application/json", *(["application/x-www-form-urlencoded"] if is_form else [])]
    answered, refused = {"schema": answer}, {"schema": _object(error=_TEXT)}
    responses: dict[str, Any] = {
        "200": {"description": "The answer.", "content": {"application/json": answered}}
    }
    for status, why in _REFUSALS.items():
        responses[status] = {"description": why, "content": {"application/json": refused}}
    return {
        "post": {
            "summary": about,
            "requestBody": {"required": True, "content": dict.fromkeys(kinds, body)},
            "responses": responses,
        }
    }
