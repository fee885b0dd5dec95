"""The files of a Space, which the real Gradio serves from a run on a hub of this machine."""

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

import t2t_jax
from t2t_jax.__main__ import main
from tests.programs import ROOT, free_port, wait_until

_NAME = "hf://someone/en-de"
_RUN = ROOT / "tests/goldens/runs/0.2.0/run"
_LINES = ["The file is open.", "No devices were found."]


def _publish(*flags):
    return main(["publish", str(_RUN), *map(str, flags), "--licence", "mit"])


def test_a_space_names_the_commit_and_has_what_the_hub_asks_for(hub, tmp_path, capsys):
    space = tmp_path / "space"
    assert _publish(_NAME, "--space", space) == 0
    printed = capsys.readouterr().out
    commit = hub.models["someone/en-de"].refs["main"]
    assert f"{space} contains a Space" in printed
    assert f't2t_jax.load("{_NAME}@{commit}")' in (space / "app.py").read_text()
    _, metadata, _ = (space / "README.md").read_text().split("---\n")
    assert 'app_file: app.py\nmodels: ["someone/en-de"]\n' in metadata
    requirement = (space / "requirements.txt").read_text().splitlines()[-1]
    assert requirement == f"t2t-jax[hub]=={t2t_jax.__version__}"


@pytest.mark.parametrize(
    ("destination", "message"),
    [("elsewhere", "--space is for hf://NAME/MODEL, not for"), (_NAME, "space exists and is not")],
)
def test_where_no_space_can_be_written_nothing_is_published(
    destination, message, hub, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "space").mkdir()
    (tmp_path / "space/app.py").write_text("mine")
    with pytest.raises(t2t_jax.UserError, match=message):
        _publish(destination, "--space", "space")
    assert hub.models == {}
    assert not (tmp_path / "elsewhere").exists()
    assert (tmp_path / "space/app.py").read_text() == "mine"


@pytest.mark.thorough
@pytest.mark.skipif(find_spec("gradio") is None, reason="gradio is not installed")
@pytest.mark.filterwarnings("ignore")  # of Gradio's own client
def test_gradio_serves_the_translations_of_the_run(hub, tmp_path):
    from gradio_client import Client

    assert _publish(_NAME, "--space", tmp_path / "space") == 0
    port = free_port()
    settings = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path), "HF_TOKEN": hub.token}
    settings |= {"GRADIO_SERVER_PORT": str(port), "GRADIO_ANALYTICS_ENABLED": "False"}
    log = (tmp_path / "log").open("w+")
    command = [sys.executable, "app.py"]
    with subprocess.Popen(
        command, cwd=tmp_path / "space", env=os.environ | settings, stdout=log, stderr=log
    ) as app:
        try:
            wait_until(lambda: app.poll() or "Running on" in (tmp_path / "log").read_text(), 120)
            assert app.poll() is None, (tmp_path / "log").read_text()
            client = Client(f"http://127.0.0.1:{port}", verbose=False)
            shown = client.predict("\n".join(_LINES), api_name="/translate")
        finally:
            app.terminate()
    assert shown.splitlines() == t2t_jax.load(_RUN).translate(_LINES)
