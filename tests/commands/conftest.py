import pytest

from tests.commands.families import FAMILIES, make_family, write_corpora
from tests.commands.untrained import make_run, write_corpus


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A directory with a corpus, which the runs of a file stand in."""
    folder = tmp_path_factory.mktemp("commands")
    write_corpus(folder)
    return folder


@pytest.fixture(scope="module")
def workdir(folder):
    """A run of an untrained model with two checkpoints."""
    return make_run(folder, "run", f"text:{folder}", 55)


@pytest.fixture(scope="module")
def corpora(tmp_path_factory):
    """A directory with the corpora of all families of models."""
    place = tmp_path_factory.mktemp("families")
    write_corpora(place)
    return place


@pytest.fixture(scope="module")
def runs(corpora):
    """A run of each family, by its name."""
    return {name: make_family(corpora, name) for name in FAMILIES}
