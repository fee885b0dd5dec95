"""The schema of a route's fields: what is described is what requests are held to."""

import pytest

from t2t_jax.decoding.open_search import ClosedError, QueueFullError
from t2t_jax.serving.answers import Answers
from t2t_jax.serving.app import refusal
from t2t_jax.serving.bodies import SentFile
from t2t_jax.serving.fields import Asked
from t2t_jax.serving.languages import Languages
from t2t_jax.serving.metrics import ServerMetrics
from t2t_jax.serving.routes import POST_ROUTES
from t2t_jax.serving.service import ServedModel
from t2t_jax.serving.settings import Bounds, RefusedError
from tests.serving.conftest import Quick

MOST = 4
BOUNDS = Bounds(max_characters=10, max_lines=3, timeout=2.5)
ANSWERS = Answers(Languages([ServedModel("en", "de", Quick(), BOUNDS)]), BOUNDS, ServerMetrics())
FIELDS = {
    f"{path} {name}": (POST_ROUTES[path], name)
    for path, route in POST_ROUTES.items()
    for name in route.fields(ANSWERS, MOST)
}


def _read(route, name, value):
    asked = Asked(lambda most: route.fields(ANSWERS, most), {name: value}, "", lenient=False)
    asked.bound(MOST)
    return asked[name]


def _fitting(schema):
    """Values that a schema allows."""
    if "oneOf" in schema:
        return ["a" * schema["oneOf"][0]["maxLength"], ["a", "b"]]
    if "enum" in schema:
        return schema["enum"]
    if schema["type"] == "integer":
        return [schema["minimum"], schema["maximum"]]
    if schema["type"] == "object":
        return [{"a": "b"}]
    if schema.get("format") == "binary":
        return [SentFile("a.txt", b"a")]
    return [True, False] if schema["type"] == "boolean" else ["a"]


def _others(schema):
    """Values that it does not allow; codes of languages have a refusal of their own."""
    if "oneOf" in schema:
        return ["a" * (schema["oneOf"][0]["maxLength"] + 1), 1, ["a", None], {}]
    if schema["type"] == "integer":
        ends = schema.get("enum") or [schema["minimum"], schema["maximum"]]
        return [ends[0] - 1, ends[-1] + 1, True, 1.0, None, "a"]
    if schema["type"] == "object":
        return [1, [], "a", {"a": 1}, {"a": " "}]
    return [1, [], {}, "\x00", SentFile("a", b"")][: 4 if schema.get("format") else 5]


@pytest.mark.parametrize("case", FIELDS)
def test_a_field_is_held_to_what_the_description_says_of_it(case):
    route, name = FIELDS[case]
    field = route.fields(ANSWERS, MOST)[name]
    for value in _fitting(field.schema):
        found = _read(route, name, value)
        if name == "glossary":
            found = {one.source: one.target for one in found.terms}
        assert (found[0] if name == "q" else found) in (value, [value])
    for value in _others(field.schema):
        with pytest.raises(RefusedError, match=name):
            _read(route, name, value)
    if "default" in field.schema:
        assert field.default == field.schema["default"]


def test_a_route_has_no_field_but_its_own():
    own = POST_ROUTES["/v1/translations"].fields
    with pytest.raises(RefusedError, match="unknown field 'text'; there are q, source, target"):
        Asked(lambda most: own(ANSWERS, most), {"text": "a"}, "", lenient=False)
    asked = Asked(lambda most: own(ANSWERS, most), {"text": 1, "target": ""}, "", lenient=True)
    with pytest.raises(RefusedError, match="target is missing"):
        asked["target"]


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (RefusedError(413, "too large"), 413, "too large"),
        (QueueFullError("9 sentences wait already"), 429, "9 sentences wait already; try again"),
        (ClosedError("a search is closed"), 503, "the server is stopping; try again"),
        (TimeoutError("a"), 504, "the translation took longer than 2.5 s; send less at once"),
        (ZeroDivisionError("a secret"), 500, "the server has failed; it has written down why"),
    ],
)
def test_what_goes_wrong_has_one_answer(error, status, message):
    found = refusal(error, BOUNDS)
    assert found.status == status
    assert str(found).startswith(message)
    assert ("Retry-After" in found.headers) == (status in (429, 503))
