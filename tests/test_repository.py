"""The files of the repository that GitHub and other services read: each follows its schema."""

import json
import re
import tomllib

import pytest
from packaging.requirements import Requirement

from tests.programs import ROOT

FORMS = ".github/ISSUE_TEMPLATE"
SCHEMAS = {
    ".github/workflows/ci.yml": "github-workflows",
    ".github/workflows/release.yml": "github-workflows",
    ".github/dependabot.yml": "dependabot",
    f"{FORMS}/bug.yml": "github-issue-forms",
    f"{FORMS}/idea.yml": "github-issue-forms",
    f"{FORMS}/config.yml": "github-issue-config",
    "CITATION.cff": "citation-file-format",
}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def _checked(schema, path):
    """The exit code and the output of `check-jsonschema`, whose schemas need no network."""
    pytest.importorskip("check_jsonschema", reason="check-jsonschema is not installed")
    from check_jsonschema import main
    from click.testing import CliRunner

    flags = ["--builtin-schema", f"vendor.{schema}", "--default-filetype", "yaml"]
    done = CliRunner().invoke(main, [*flags, str(path)])
    return done.exit_code, done.output


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_file_follows_its_schema(name):
    code, output = _checked(SCHEMAS[name], ROOT / name)
    assert code == 0, output


def test_every_such_file_has_a_schema():
    found = {path.relative_to(ROOT).as_posix() for path in (ROOT / ".github").rglob("*.yml")}
    assert found | {"CITATION.cff"} == SCHEMAS.keys()


def test_the_workflow_tests_every_python_that_the_package_supports():
    text = (ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8")
    [matrix] = re.findall(r"^ +python: \[(.*)\]$", text, re.MULTILINE)
    prefix = "Programming Language :: Python :: "
    supported = [c.removeprefix(prefix) for c in PROJECT["classifiers"] if c.startswith(prefix)]
    assert re.findall(r"[\d.]+", matrix) == supported


def test_the_image_has_one_version_of_every_package_within_the_bounds():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    extras = ["train", "serve", "gcs", "s3", "hub", "shards", "kubernetes"]
    needed = [name for extra in extras for name in PROJECT["optional-dependencies"][extra]]
    for requirement in map(Requirement, PROJECT["dependencies"] + needed):
        name = re.sub("[-_.]+", "-", requirement.name).lower()
        assert requirement.specifier.contains(pins[name]), requirement
    # JAX, its library and the plugins for GPUs are released together.
    assert len({pin for name, pin in pins.items() if re.match("jax(lib|-cuda|$)", name)}) == 1
    # The figures that documents quote are measured with these versions.
    record = json.loads((ROOT / "docs/results/quickstart/scores.jsonl").read_text("utf-8"))
    versions = record["provenance"]["versions"]
    assert versions | {name: pins[name] for name in ("jax", "flax", "optax", "numpy")} == versions
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert "--constraint constraints.txt" in dockerfile
    assert "!constraints.txt" in (ROOT / ".dockerignore").read_text(encoding="utf-8")
