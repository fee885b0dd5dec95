"""The OpenAPI description of a server, from which `/docs` makes a page."""

import re
from importlib.metadata import version
from typing import Any

from t2t_jax.serving.answers import Answers
from t2t_jax.serving.routes import GET_ROUTES, POST_ROUTES, GetRoute, PostRoute

_REFUSALS = {
    "400": "The request is malformed, or asks for what the server does not have.",
    "401": "An API key is needed.",
    "403": "The API key is wrong.",
    "404": "There is no such file any more.",
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
    """Describe the server's routes, their fields and their answers in OpenAPI 3.1."""
    most = min(one.engine.most_best for one in answers.languages.models)
    posts = {path: _post(one, answers, most, needs_key) for path, one in POST_ROUTES.items()}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Translation server of t2t_jax",
            "version": version("t2t-jax"),
            "description": "The API of LibreTranslate, and beside it /v1/translations.",
        },
        "paths": posts | {path: _get(path, one) for path, one in GET_ROUTES.items()},
    }


def _get(path: str, route: GetRoute) -> dict[str, Any]:
    of_path = {"in": "path", "required": True, "schema": {"type": "string"}}
    names = [{"name": name} | of_path for name in re.findall(r"{(\w+)}", path)]
    answers = {"200": "The answer."} | {status: _REFUSALS[status] for status in route.refusals}
    responses = {status: {"description": why} for status, why in answers.items()}
    return {"get": {"summary": route.about, "parameters": names, "responses": responses}}


def _post(route: PostRoute, answers: Answers, most: int, needs_key: bool) -> dict[str, Any]:
    fields = dict(route.fields(answers, most))
    if not needs_key:
        del fields["api_key"]
    body = {
        "schema": {
            "type": "object",
            "properties": {name: field.schema for name, field in fields.items()},
            "required": [name for name, field in fields.items() if field.missing is not None],
        }
    }
    kinds = route.kinds if route.is_lenient else route.kinds[:1]
    refused = {"schema": {"type": "object", "properties": {"error": {"type": "string"}}}}
    responses: dict[str, Any] = {
        "200": {
            "description": "The answer.",
            "content": {"application/json": {"schema": route.answer}},
        }
    }
    for status, why in _REFUSALS.items():
        if status == "404":
            continue
        responses[status] = {"description": why, "content": {"application/json": refused}}
    return {
        "post": {
            "summary": route.about,
            "requestBody": {"required": True, "content": dict.fromkeys(kinds, body)},
            "responses": responses,
        }
    }
