"""The core without the extras trains, evaluates, translates, runs a grid and loads its runs."""

import shutil
from itertools import product

from tests.programs import ROOT, run_python

TINY = (
    *("--training.num-train-steps", "2", "--model.d-model", "16", "--model.num-heads", "2"),
    *("--model.num-encoder-layers", "1", "--model.num-decoder-layers", "1"),
    *("--data.corpus", "text:corpus", "--data.vocab-size", "60", "--data.cache-dir", "cache"),
    *("--evaluation.num-sentences", "2", "--decoding.beam-size", "1"),
)
NOUNS, VERBS = ("dog", "cat", "bird", "cow"), ("run", "sit", "sing", "eat")
PROGRAM = f"""
import shutil
from pathlib import Path
import pytest
import t2t_jax
from t2t_jax.__main__ import main

if __name__ == "__main__":
    assert not (Path(t2t_jax.__file__).parent / "extras").exists()
    train = ["--config", "configs/quickstart.py", *{TINY!r}]
    assert main(["train", "run", *train, "--model.d-ff", "32"]) == 0
    assert main(["evaluate", "run", "--num-sentences", "2"]) == 0
    Path("sources").write_text("No devices found\\n")
    assert main(["translate", "run", "--input", "sources", "--output", "translation"]) == 0
    assert main(["sweep", "grid", *train, "--vary", "model.d_ff=16,32"]) == 0
    translator = t2t_jax.load("run")
    [translation] = translator.translate(["No devices found"])
    assert Path("translation").read_text() == translation + "\\n"
    assert not hasattr(t2t_jax, "explore")
    labels = ["--data.task", "classification", "--model.architecture", "encoder_only"]
    labels += ["--model.share-embeddings", "False"]
    public, shards = (["--data.corpus", name] for name in ("wmt14-en-de:corpus", "shards:corpus/*"))
    for extra, flags in (("encoders", labels), ("corpora", public), ("shards", shards)):
        with pytest.raises(t2t_jax.UserError, match=f"is in the extra {{extra}} of t2t-jax, which"):
            main(["train", "other", *train[:2], *flags])
    for kind in ("paired", "pretrained", "framed"):  # of an imported model
        shutil.copytree("run", kind)
        (Path(kind) / "vocabulary.model").write_text(f'{{{{"kind": "{{kind}}"}}}}')
        with pytest.raises(t2t_jax.UserError, match="is in the extra interchange of t2t-jax, whi"):
            t2t_jax.load(kind)
    main(["serve", "run"])
"""


def test_the_core_works_without_the_extras(tmp_path):
    without = shutil.ignore_patterns("extras", "__pycache__")
    shutil.copytree(ROOT / "t2t_jax", tmp_path / "t2t_jax", ignore=without)
    shutil.copytree(ROOT / "configs", tmp_path / "configs", ignore=without)
    (tmp_path / "corpus").mkdir()
    for split, language in product(("train", "dev", "test"), ("en", "de")):
        lines = (f"{noun} {verb}s\n" for noun, verb in product(NOUNS, VERBS))
        (tmp_path / "corpus" / f"{split}.{language}").write_text("".join(lines))
    (tmp_path / "program.py").write_text(PROGRAM)
    done = run_python("program.py", cwd=tmp_path, PYTHONPATH=str(tmp_path), code=1)
    refusal = "'serve' (this installation lacks t2t_jax.extras); did you mean sweep?"
    assert done.stderr.endswith(f"UserError: t2t-jax has no command {refusal}\n")
    table = (tmp_path / "grid/table.csv").read_text().splitlines()
    assert len(table) == 3
