"""Documents quote the figures of result files, measured with the pinned versions."""

import json
import runpy
import shutil
import tomllib

from tests.programs import ROOT

MEASUREMENTS = runpy.run_path(str(ROOT / "docs/measurements.py"))


def test_documents_quote_the_figures_of_the_result_files():
    assert list(MEASUREMENTS["differences"]()) == []


def test_a_page_with_another_figure_is_named_and_corrected(tmp_path):
    table = tomllib.loads((ROOT / MEASUREMENTS["TABLE"]).read_text("utf-8"))
    pages = {path for row in table.values() for path, _ in row["quoted"]}
    for path in {MEASUREMENTS["TABLE"], *pages, *(row["results"] for row in table.values())}:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, tmp_path / path)
    readme = tmp_path / "README.md"
    readme.write_text(readme.read_text("utf-8").replace("18.67", "19.16"), "utf-8")
    [line] = MEASUREMENTS["differences"](tmp_path, write=True)
    assert "quotes 19.16, measured: 18.67" in line
    assert readme.read_text("utf-8") == (ROOT / "README.md").read_text("utf-8")


def test_figures_of_cpus_are_measured_with_the_versions_of_the_image():
    pins = dict(
        line.split("==") for line in (ROOT / "constraints.txt").read_text().split() if "==" in line
    )
    record = json.loads((ROOT / "docs/results/quickstart/scores.jsonl").read_text("utf-8"))
    versions = record["provenance"]["versions"]
    names = ["jax", "jaxlib", "flax", "optax", "numpy", "orbax-checkpoint"]
    assert {name: versions[name] for name in names} == {name: pins[name] for name in names}
