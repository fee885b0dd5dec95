"""Write `runs/NAME/`: small runs as the version of `t2t_jax` that is installed writes them.

    python tests/goldens/make_run_golden.py [NAME ...]

Each released version makes the run that has its number. `RUNS` has other runs, which the commit
08046c0 (tag before-cut) made. They are never changed: every later version has to load them,
compute the same outputs with them and train them on, with the same losses.

    run/            the run directory: config, vocabulary, the log, and one checkpoint
    corpus/         the text that it was trained on: the first pairs of the bundled corpus
    expected.json   `tokens`: of some lines, those of their translation by greedy search and by a
                    beam of 4; or `texts`, pairs of input and output of a model that does not
                    translate; `losses`: the training loss of each of the steps that come next
"""

import contextlib
import json
import shutil
import sys
import tempfile
from pathlib import Path

import t2t_jax
from t2t_jax.config import DataConfig
from t2t_jax.config.file import load_config
from t2t_jax.data.corpus import open_corpus

STEPS, STEPS_MORE = 800, 6
PAIRS = {"train": 150, "dev": 8}
FIELDS = {
    "model.d_model": 32,
    "model.num_heads": 4,
    "model.d_ff": 64,
    "model.num_encoder_layers": 1,
    "model.num_decoder_layers": 1,
    "model.compute_dtype": "float32",  # the same on every processor
    "data.vocab_size": 300,
    "data.max_length": 64,
    "data.batching": "pack",
    "data.source_tokens_per_step": 1024,
    "data.target_tokens_per_step": 1024,
    "training.num_train_steps": STEPS,
    "training.warmup_steps": 100,
    "training.log_every_steps": 100,
    "evaluation.every_steps": 400,
    "evaluation.num_samples": 0,
    "decoding.max_extra_length": 10,
    "checkpoint.every_minutes": None,
    "checkpoint.every_steps": STEPS,
    "checkpoint.keep": 1,
    "checkpoint.average": 1,
    "checkpoint.keep_best": False,
}
# The two layers a stack of configs/quickstart.py, and fields of each section off their defaults.
TRANSLATION = {
    "model.d_model": 64,
    "model.d_ff": 128,
    "model.num_encoder_layers": 2,
    "model.num_decoder_layers": 2,
    "model.dropout_rate": 0.05,
    "model.attention_dropout_rate": 0.05,
    "model.num_kv_heads": 2,
    "model.norm_epsilon": 1e-5,
    "model.score_function": "cosine",
    "data.batching": "bucket",
    "data.protected_tokens": ("Crazyhouse",),
    "training.schedule": "wsd",
    "training.adam_beta2": 0.99,
    "training.clip_gradient_norm": 1.0,
    "training.weight_decay": 0.01,
    "training.optimizer": "adamw",
    "training.ema_decay": 0.98,
    "training.label_smoothing": 0.05,
    "training.seed": 3,
    "decoding.length_penalty": 1.0,
    "decoding.no_repeat_ngram_size": 4,
    "decoding.forbidden": ("Apfel",),
    "parallel.remat": "dots",
    "parallel.tokens_per_device": 512,
}
LANGUAGE_MODEL = {
    "model.architecture": "decoder_only",
    "model.num_decoder_layers": 2,
    "model.norm_order": "pre",
    "model.position": "rotary",
    "model.norm": "rms",
    "model.feed_forward": "swiglu",
    "data.task": "language_modelling",
}
MASKED = {
    "model.architecture": "encoder_only",
    "model.num_encoder_layers": 2,
    "model.norm_order": "pre",
    "model.position": "relative_bias",
    "data.task": "masked_language_modelling",
    "training.label_smoothing": 0.0,
}
RUNS = {
    "before-cut-translation": TRANSLATION,
    "before-cut-language-model": LANGUAGE_MODEL,
    "before-cut-masked": MASKED,
}
SCORE_FUNCTION = """
import jax.numpy as jnp
import t2t_jax


def cosine(query, key, temperature):
    '''Cosines of queries [b, q, h, d_k] and keys [b, k, h, d_k], times a number of each head.'''
    query, key = (x / (1e-6 + jnp.linalg.norm(x, axis=-1, keepdims=True)) for x in (query, key))
    return temperature[:, None, None] * jnp.einsum("bqhd,bkhd->bhqk", query, key)


t2t_jax.register_score_function(
    "cosine", cosine, lambda d_k: {"temperature": t2t_jax.Parameter((), 10.0)}
)
"""


def write_corpus(folder):
    """The first pairs of the bundled corpus, as text files."""
    folder.mkdir(parents=True)
    bundled = open_corpus(DataConfig())
    for split, count in PAIRS.items():
        for language, lines in zip(("en", "de"), bundled.lines(split), strict=True):
            text = "".join(f"{line}\n" for line in lines[:count])
            (folder / f"{split}.{language}").write_text(text, encoding="utf-8")
        shutil.copy(folder / f"{split}.en", folder / f"{split}.txt")


def outputs(workdir, lines):
    """What the model of a run computes from lines; see `expected.json`."""
    translator = t2t_jax.load(workdir)
    task = translator.config.data.task
    if task == "language_modelling":
        from t2t_jax.tasks.language_modelling import generate

        prompts = [line.partition(" ")[0] for line in lines]
        texts = generate(translator, prompts, max_tokens=20, temperature=0.0)
        return {"texts": list(zip(prompts, texts, strict=True))}
    if task == "masked_language_modelling":
        from t2t_jax.tasks.encoder_only import MASKED

        masked = [" ".join(["<mask>", *line.split()[1:]]) for line in lines if line]
        return {"texts": list(zip(masked, MASKED.lines(translator, masked), strict=True))}
    nbest = {n: translator.nbest(lines, 1, beam_size=n) for n in (1, 4)}
    return {
        "tokens": [
            {"line": line, **{f"beam_{n}": list(nbest[n][i][0].tokens) for n in nbest}}
            for i, line in enumerate(lines)
        ]
    }


def next_losses(config, workdir, scratch):
    """The training loss of each of the next steps, taken in a copy of the run."""
    shutil.copytree(workdir, scratch)
    steps = {
        "training.num_train_steps": STEPS + STEPS_MORE,
        "training.log_every_steps": 1,
        "evaluation.every_steps": 10 * STEPS,
    }
    assert t2t_jax.train(config.replace(steps), scratch).exit_code == 0
    records = map(json.loads, (scratch / "log.jsonl").read_text().splitlines())
    return {r["step"]: r["loss"] for r in records if r["of"] == "train" and r["step"] > STEPS}


def make(home, fields):
    """Write a golden run into an empty directory, which is also where the program stands."""
    write_corpus(Path("corpus"))
    changes = {**FIELDS, **fields, "data.corpus": "text:corpus", "data.cache_dir": "cache"}
    family = changes.get("model.architecture", "encoder_decoder")
    other = {"decoder_only": "encoder", "encoder_only": "decoder"}.get(family, "neither")
    changes.pop(f"model.num_{other}_layers", None)
    Path("config.py").write_text(
        f"from t2t_jax import Config\n{SCORE_FUNCTION if 'model.score_function' in fields else ''}"
        f"\n\ndef get_config():\n    return Config().replace({changes!r})\n"
    )
    config = load_config("config.py")
    assert t2t_jax.train(config, Path("run")).exit_code == 0
    # Lines that the model has learned: rounding turns no choice of a token.
    learned = Path("corpus/train.en").read_text(encoding="utf-8").splitlines()[:12]
    expected = {
        **outputs(Path("run"), ["", *learned]),
        "losses": next_losses(config, Path("run"), Path("more")),
    }
    for path in (*Path("run").glob("events.*"), Path("run/.lock")):
        path.unlink()
    for name in ("corpus", "run"):
        shutil.copytree(name, home / name)
    (home / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


def main():
    for name in sys.argv[1:] or [t2t_jax.__version__]:
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            make(Path(__file__).parent / "runs" / name, RUNS.get(name, {}))


if __name__ == "__main__":
    main()
