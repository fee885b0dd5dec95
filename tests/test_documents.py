"""Every link, command and block of Python in the documents does what its reader expects.

By default each command is parsed by its program, and each block of Python is run. With `-m slow`
each command is run by a shell as it is written, one after the other, in a directory where the
configs describe tiny models of the same names. What only another machine can run is named here.
"""

import contextlib
import io
import os
import re
import shlex
import shutil
import sys
import textwrap
from pathlib import Path
from typing import NamedTuple

import pytest
from matplotlib.image import imread

import t2t_jax
from t2t_jax.commands.entry import entry_command
from t2t_jax.config.file import load_config
from t2t_jax.extras.corpora.catalogue import CORPORA
from tests.programs import ROOT, run_program
from tests.tiny import tiny_sizes

# Without what a build of the site has written, and the tables that are data of pages of results.
IN_DOCS = [path for path in sorted((ROOT / "docs").rglob("*.md")) if "/docs/_" not in str(path)]
IN_DOCS = [path for path in IN_DOCS if path.name != "table.md"]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *IN_DOCS]
# Documents whose commands are not run: they show commands as indented text, or none.
LINKED = [
    *DOCUMENTS,
    *(ROOT / name for name in ("CHANGELOG.md", "CODE_OF_CONDUCT.md", "SECURITY.md")),
]
LINKED += [ROOT / "benchmarks/README.md", *sorted((ROOT / "t2t_jax/data/bundled").glob("*.md"))]
LINKED.append(ROOT / "t2t_jax/demo/README.md")
# Documents whose code prints in every run what stands indented below it.
EXACT = [ROOT / "docs/reference/api.md", ROOT / "docs/flax.md", ROOT / "docs/tour.md"]
PARALLEL_TEXT = ("train", "dev", "test", "newstest2014-filtered")
TREE = "(TOP (S (NP (DT The) (NN {})) (VP (VBZ {})) (. .)))\n"

SMALL = {
    **tiny_sizes(32, (1, 1), num_heads=16),
    "model.d_k": None,
    "model.d_v": None,
    "data.vocab_size": 300,
    "data.max_length": 64,
    "data.source_tokens_per_step": 512,
    "data.target_tokens_per_step": 512,
    "training.num_train_steps": 2,
    "evaluation.num_sentences": 2,
    "evaluation.num_samples": 0,
    "decoding.max_extra_length": 10,
    "checkpoint.every_steps": 1,
    "checkpoint.every_minutes": None,
    "parallel.tokens_per_device": None,
}
# Commands that need what no machine of a test has: the reason stands beside them.
ELSEWHERE = {"10.0.0.1:8476": "another host", "slurm_partition=gpu": "a Slurm cluster"}
ELSEWHERE["s3://"] = "a bucket; tests/test_object_storage.py has a server of its own"
ELSEWHERE["hf://"] = "the hub; tests/extras/interchange/test_publishing.py has a server of its own"
ELSEWHERE["hf auth login"] = "an account there"
ELSEWHERE["export AWS_"] = "credentials of a store"
ELSEWHERE["t2t-jax serve"] = "a server that goes on; tests/extras/serving has its own"
ELSEWHERE["localhost:5000"] = "such a server"
ELSEWHERE["docker "] = "Docker"
ELSEWHERE["t2t-jax launch"] = "clusters; its tests have their stand-ins, and a real one"
FETCHING = [f"t2t-jax data {corpus}" for corpus in CORPORA]
ELSEWHERE |= dict.fromkeys(FETCHING, "a network; tests/extras/corpora has a server")
ELSEWHERE |= dict.fromkeys(("--track", "t2t-jax track", "wandb login"), "a tracker's package")
ELSEWHERE["--profile-steps"] = "a run of more than two steps; tests/run/test_profile.py has one"


class Block(NamedTuple):
    """A block of code of a document."""

    language: str
    line: int
    text: str
    printed: str
    """The indented text below the block: what it prints."""


def blocks(path, language):
    """The blocks of a document in one language, with the line that each begins in."""
    found = []
    text = path.read_text(encoding="utf-8")
    pattern = r"^```(\w+)\n(.*?)^```$(?:\n\n((?: {4}[^\n]*\n)+))?"
    for match in re.finditer(pattern, text, re.MULTILINE | re.DOTALL):
        if match[1] == language:
            line, printed = text.count("\n", 0, match.start()) + 2, textwrap.dedent(match[3] or "")
            found.append(Block(match[1], line, match[2], printed))
    return found


def commands(block):
    """The command lines of a shell block, with continued lines joined."""
    joined = re.sub(r"\\\n\s*", " ", block.text)
    return [line for line in joined.splitlines() if line.strip() and not line.startswith("#")]


_ARGUMENTS = r"(?:'[^'\n]*'|[^|&;<>#'\n])*"
# At the start of a command, behind variables of its environment and what starts processes.
PROGRAM = re.compile(rf"(?:^|[|&;] )\s*(?:\w+=\S+ |mpirun -np \d+ )?t2t-jax((?:\s{_ARGUMENTS})?)")


def calls(path):
    """The arguments of each call of `t2t-jax` in a document."""
    for block in blocks(path, "bash"):
        for line in commands(block):
            if line.startswith(tuple(FETCHING)):
                continue
            for text in PROGRAM.findall(line):
                # There is no bucket to look into for the run that goes on.
                for stored in ("s3://", "hf://"):
                    text = text.replace(stored, "")
                text = text.replace("$i", "0").replace("$SHARED/", "")
                yield shlex.split(text)


CALLS = [
    pytest.param(arguments, id=f"{path.name}: {' '.join(arguments)}")
    for path in DOCUMENTS
    for arguments in calls(path)
]


def _write_text(folder):
    """Parallel text, treebanks and lines, under the names that the documents use."""
    golden = Path(__file__).parent / "goldens/runs/0.2.0/corpus"
    for name in ("DIR", "WSJ", "GUM", "DOMAIN"):
        (folder / name).mkdir()
        trees = "".join(
            TREE.format(noun, verb)
            for noun in ("dog", "cat", "bird", "horse", "cow", "wolf")
            for verb in ("barks", "sleeps", "sings", "runs", "eats", "howls")
        )
        for split in PARALLEL_TEXT:
            (folder / name / f"{split}.mrg").write_text(trees)
            for language, of in (("en", "en"), ("de", "de"), ("fr", "de")):
                lines = (golden / f"train.{of}").read_text(encoding="utf-8").splitlines()
                kept = lines if split == "train" else lines[:4]
                text = "".join(f"{line}\n" for line in kept)
                (folder / name / f"{split}.{language}").write_text(text, encoding="utf-8")
    for name in ("test.en", "test.de", "base.de", "wide.de"):
        source = folder / "DIR" / f"test.{name[-2:]}"
        (folder / name).write_bytes(source.read_bytes())
    (folder / "sentences").write_text("The dog barks .\nThe cow eats .\n")
    (folder / "dev.mrg").write_text(TREE.format("dog", "barks") + TREE.format("cow", "eats"))
    (folder / "trees.mrg").write_text(TREE.format("dog", "barks") + TREE.format("cow", "eats"))


_SMALL_CONFIG = """
import runpy

MODULE = runpy.run_path({path!r})
SMALL = {small!r}
CORPUS = "trees:DIR" if "parsing" in {path!r} else "text:DIR"


def _small(config):
    sizes = {{"data.vocab_size": 70}} if CORPUS == "trees:DIR" else {{}}
    places = {{"data.corpus": CORPUS, "data.cache_dir": "cache"}}
    small = {{path: one for path, one in SMALL.items() if hasattr(config.model, path[6:])
              or not path.startswith("model.")}}
    return config.replace({{**small, **sizes, **places}})


if "get_config" in MODULE:
    def get_config():
        return _small(MODULE["get_config"]())

VARIANTS = {{
    name: _small(config) for name, config in MODULE.get("VARIANTS", {{}}).items()
    if name in ("base", "A-h4")
}}
"""


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    """A directory that looks like a clone of the repository, in which all models are tiny."""
    folder = tmp_path_factory.mktemp("documents")
    (folder / "configs").mkdir()
    for path in (ROOT / "configs").glob("*.py"):
        text = _SMALL_CONFIG.format(path=str(path), small=SMALL)
        (folder / "configs" / path.name).write_text(text)
    _write_text(folder)
    return folder


@pytest.mark.parametrize("arguments", CALLS)
def test_a_command_of_the_documents_is_understood(scratch, arguments):
    with contextlib.chdir(scratch):
        if arguments[:1] == ["train"]:
            if "--config" not in arguments:  # to go on with a run
                arguments = [*arguments, "--config", "configs/base.py"]
            place = arguments.index("--config") + 1
            if arguments[place].startswith("runs/"):  # which another command makes
                arguments = [*arguments[:place], "configs/base.py", *arguments[place + 1 :]]
            config = entry_command(arguments).fields
            if "--model.d-model" not in arguments:
                assert config.model.d_model == SMALL["model.d_model"]
        else:
            assert entry_command(arguments)


@pytest.fixture(scope="module")
def trained(scratch):
    """The same directory, with a run of two steps in `runs/quickstart`."""
    with contextlib.chdir(scratch):
        assert t2t_jax.train(load_config("configs/quickstart.py"), "runs/quickstart").exit_code == 0
    return scratch


def _blocks_of_python():
    """The documents with such blocks; those beside the README are for the thorough run."""
    return [
        pytest.param(
            path, id=path.name, marks=[] if path.name == "README.md" else pytest.mark.thorough
        )
        for path in DOCUMENTS
        if blocks(path, "python")
    ]


@pytest.mark.usefixtures("tables")
@pytest.mark.parametrize("path", _blocks_of_python())
def test_the_python_of_a_document_runs_from_top_to_bottom(trained, path):
    with contextlib.chdir(trained):
        namespace = {}
        for block in blocks(path, "python"):
            # A block that trains on from the two steps of the run asks for many more.
            text = re.sub(
                r'"training.num_train_steps": \d+', '"training.num_train_steps": 3', block.text
            )
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile("\n" * (block.line - 1) + text, str(path), "exec"), namespace)
            if path in EXACT:
                assert printed.getvalue() == block.printed, f"{path.name} line {block.line}"


_SHIMS = {
    "t2t-jax": f'exec {shlex.quote(sys.executable)} -m t2t_jax "$@"',
    "python": f'exec {shlex.quote(sys.executable)} "$@"',
    "pip": "exit 0",
    "python3": "exit 0  # python3 -m venv",
    "mpirun": 'shift 2; exec "$@"',
}


@pytest.mark.slow
def test_every_command_of_the_documents_runs_in_a_shell(scratch, tmp_path):
    shims = tmp_path / "shims"
    shims.mkdir()
    for name, body in _SHIMS.items():
        (shims / name).write_text(f"#!/bin/bash\n{body}\n")
        (shims / name).chmod(0o755)
    (scratch / ".venv/bin").mkdir(parents=True, exist_ok=True)
    (scratch / ".venv/bin/activate").touch()
    environment = {
        "PATH": f"{shims}:{os.environ['PATH']}",
        "JAX_NUM_CPU_DEVICES": "16",
        "SHARED": str(scratch / "shared"),
    }
    failures = []
    for path in DOCUMENTS:
        for runs in ("runs", "shared"):
            shutil.rmtree(scratch / runs, ignore_errors=True)
        for block in blocks(path, "bash"):
            failures += _run(path, block, scratch, environment)
    assert not failures, "\n".join(failures)


def _run(path, block, scratch, environment):
    """Run a block line by line, or whole where its lines belong together."""
    whole = re.search(r"^(if|for)\b", block.text, re.MULTILINE)
    for text in [block.text] if whole else commands(block):
        # The programs of benchmarks/ and examples/ have tests of their own.
        if any(word in text for word in ("pytest", " benchmarks/", " examples/", *ELSEWHERE)):
            continue
        done = run_program("bash", "-o", "pipefail", "-c", text, cwd=scratch, **environment)
        if done.returncode:
            place = f"{path.name} line {block.line}"
            yield f"{place}: exit {done.returncode} from: {text}\n{done.stderr[-300:]}"


def test_every_test_that_is_named_exists():
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)(?:\[(.*?)\])?`", _all_text())
    assert len(named) > 60
    for file, function, case in named:
        text = (ROOT / file).read_text(encoding="utf-8")
        assert f"def {function}(" in text, f"{file}::{function}"
        # Ids of parameters stand in the file as they are, whole or in parts.
        for part in case.split("-") if case and case not in text else []:
            assert part in text, f"{file}::{function}[{case}]"


LINK = re.compile(r"\]\(([^)\s]+)\)")
PAPER = ROOT / "docs/paper"


def _anchors(path):
    """The names under which a document's headings are linked to, as GitHub makes them."""
    text = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", [pytest.param(p, id=str(p.relative_to(ROOT))) for p in LINKED])
def test_every_link_of_a_document_leads_somewhere(path):
    for link in LINK.findall(path.read_text(encoding="utf-8")):
        if re.match(r"\w+:", link):
            continue  # somebody else's page
        target, _, anchor = link.partition("#")
        if "_figures" in Path(target).parts:
            continue  # a picture that is drawn when the site is built
        place = (path.parent / target).resolve() if target else path
        assert place.exists(), f"{path.name}: {link}"
        assert not anchor or anchor in _anchors(place), f"{path.name}: {link}"


def test_every_picture_of_the_documents_opens():
    for path in (ROOT / "docs").rglob("*.png"):
        assert imread(path).size, path


def test_every_document_is_on_the_map():
    page = ROOT / "docs/contents.md"
    linked = {page.parent / "index.md", ROOT / "README.md"}
    # The README leads to the map, and some folders have a list of their pages.
    for index in (ROOT / "README.md", page, PAPER / "index.md", ROOT / "docs/decisions/index.md"):
        links = LINK.findall(index.read_text(encoding="utf-8"))
        linked |= {(index.parent / link.partition("#")[0]).resolve() for link in links}
    assert {*DOCUMENTS} <= linked


def shows(page: str, table: str) -> bool:
    """Return whether a page has all lines of a grid's table, unchanged."""
    rows = [line for line in table.splitlines() if line.startswith("|")]
    return bool(rows) and {*rows} <= {*page.splitlines()}


def test_a_page_of_results_shows_the_table_that_is_stored_beside_it():
    assert shows("# Results\n\n| base | 8.2 |\n\nText.", "| base | 8.2 |\n\nNotes.")
    assert not shows("# Results\n\n| base | 8.1 |\n\nText.", "| base | 8.2 |\n\nNotes.")
    for table in (ROOT / "docs/results").glob("*/table.md"):
        page = table.parent.with_suffix(".md").read_text(encoding="utf-8")
        assert shows(page, table.read_text(encoding="utf-8")), table
        assert all((table.parent / name).is_file() for name in ("seeds.csv", "curves.csv")), table


# Where a path in a document may begin; a run directory is no part of the repository.
_ROOTS = (ROOT, ROOT / "t2t_jax", ROOT / "tests/goldens")
_FOLDERS = r"(?:t2t_jax|tests|configs|benchmarks|docs|commands|sweep|run|extras|tasks"
_FOLDERS += r"|evaluation|decoding|training|modules|data|kernels|functional|parallel|config|system)"
_PATH = re.compile(rf"`({_FOLDERS}/(?:[\w.-]+/)*(?:[\w-]+\.\w+)?)`")


def test_every_file_that_a_document_names_exists():
    texts = [path.read_text(encoding="utf-8") for path in DOCUMENTS]
    named = {name for text in texts for name in _PATH.findall(text)}
    assert len(named) > 50
    assert [n for n in named if not any((root / n).exists() for root in _ROOTS)] == []


def _all_text():
    return "\n".join(path.read_text(encoding="utf-8") for path in LINKED)
