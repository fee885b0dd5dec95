"""The paper's base model (Table 3, first row) for any corpus, with a 32k vocabulary.

    python train.py --config configs/base.py --data.corpus text:DIR --workdir runs/base

Everything else is the paper's, to the last constant: 25,000 + 25,000 tokens a step, Adam with
4,000 steps of warmup, 100,000 steps, a checkpoint every 10 minutes, beam 4 with length penalty 0.6;
score it with `eval.py bleu --average 5`. (The paper's own vocabulary, of WMT14 English-German, has
about 37,000 entries.)

The paper trained it in 12 hours on 8 P100 GPUs, each of which saw about 3,100 target tokens a step.
A device takes at most 4,096 at once here; raise `parallel.tokens_per_device` where memory allows.
"""

from t2t_jax import Config


def get_config() -> Config:
    return Config().replace({"data.vocab_size": 32_768, "parallel.tokens_per_device": 4096})
