"""What a training returns: the run, to look at and to load."""

import pytest

import t2t_jax
from t2t_jax.config import Config

LINES = {"en": ["a red house", "the dog", "two dogs"], "de": ["ein Haus", "der Hund", "zwei Hunde"]}


@pytest.fixture
def config(tmp_path):
    for split in ("train", "dev"):
        for language, lines in LINES.items():
            (tmp_path / f"{split}.{language}").write_text("".join(f"{line}\n" for line in lines))
    return Config().replace(
        {
            "model.d_model": 16,
            "model.num_heads": 2,
            "model.d_ff": 32,
            "model.num_encoder_layers": 1,
            "model.num_decoder_layers": 1,
            "data.corpus": f"text:{tmp_path}",
            "data.cache_dir": str(tmp_path / "cache"),
            "data.vocab_size": 40,
            "data.max_length": 32,
            "data.batching": "pack",
            "data.source_tokens_per_step": 64,
            "data.target_tokens_per_step": 64,
            "training.num_train_steps": 2,
            "training.log_every_steps": 1,
            "evaluation.num_sentences": 1,
            "decoding.max_extra_length": 2,
            "checkpoint.average": 1,
        }
    )


@pytest.mark.thorough
def test_a_training_returns_the_run_with_its_history_and_its_model(config, tmp_path, capsys):
    run = t2t_jax.train(config, str(tmp_path / "run"))
    assert isinstance(run, t2t_jax.TrainedRun)
    assert (run.directory, run.exit_code) == (tmp_path / "run", 0)
    assert [record["step"] for record in run.history.training] == [1, 2]
    [evaluation] = run.history.evaluations
    assert (evaluation["step"], evaluation["of"]) == (2, "dev")
    assert run.history.end["text"] == "2 steps are done"
    assert run.load(step=2).steps == (2,)
    assert "loss" not in repr(run)  # a notebook shows it after the cell
    assert f"score: t2t-jax evaluate --workdir {tmp_path / 'run'}" in capsys.readouterr().out

    more = t2t_jax.train(config.replace({"training.num_train_steps": 3}), run.directory)
    assert [record["step"] for record in more.history.training] == [1, 2, 3]
