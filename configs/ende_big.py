"""The paper's big model for WMT 2014 English-German.

    python train.py --config configs/ende_big.py --workdir runs/ende_big
    python eval.py bleu --workdir runs/ende_big

The paper trained it in 3.5 days (300,000 steps of 1.0 s) on 8 NVIDIA P100 and reports 28.4 BLEU on
newstest2014, the test split (Table 2). On newstest2013, the dev split on which it tuned, it reports
26.4 BLEU and a perplexity of 4.33 before checkpoint averaging (Table 3).

Data and constants are those of configs/ende_base.py, but for the size, a dropout of 0.3, the steps
and an average of 20 checkpoints. With Adam's moments, 20 checkpoints take about 50 GB of disk.
"""

from t2t_jax import Config


def get_config() -> Config:
    return Config().replace(
        {
            "model.d_model": 1024,
            "model.num_heads": 16,
            "model.d_ff": 4096,
            "model.dropout_rate": 0.3,
            "data.corpus": "tfds:wmt14_translate/de-en",
            "data.source_language": "en",
            "data.target_language": "de",
            "data.vocab_size": 37_000,
            "training.num_train_steps": 300_000,
            "checkpoint.keep": 20,
            "checkpoint.average": 20,
            "evaluation.every_steps": 5000,
            "parallel.tokens_per_device": 4096,
        }
    )
