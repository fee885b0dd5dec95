"""GPT-2's smallest model (Radford et al. 2019): 124,439,808 parameters with a vocabulary of 50,257.

    t2t-jax train --config configs/gpt2_small.py --workdir runs/gpt2_small

The sizes are those of the published model, which has learned positions, biases in all projections,
norms before the sub-layers, and gelu in its approximation by tanh. Rows are 1,024 subwords of a
text that runs on over the ends of documents, 512 of them a step. The paper does not state its
learning rate; the schedule here is that of "Attention Is All You Need". Nothing was trained by this
config: it needs accelerators and text, which goes into `corpora/text` as `train.txt` and `dev.txt`
with blank lines between documents.
"""

from t2t_jax import Config


def get_config() -> Config:
    return Config().replace(
        {
            "model.architecture": "decoder_only",
            "model.d_model": 768,
            "model.num_heads": 12,
            "model.d_ff": 3072,
            "model.feed_forward": "gelu_tanh",
            "model.num_decoder_layers": 12,
            "model.norm_order": "pre",
            "model.norm_epsilon": 1e-5,
            "model.attention_bias": True,
            "model.position": "learned",
            "model.max_positions": 1024,
            "model.scale_embeddings": False,
            "model.start_token": "end",
            "model.attention_dropout_rate": 0.1,
            "data.task": "language_modelling",
            "data.corpus": "text:corpora/text",
            "data.documents": "paragraphs",
            "data.text_rows": "run_on",
            "data.vocab_size": 50_257,
            "data.max_length": 1024,
            "data.batching": "pack",
            "data.target_tokens_per_step": 512 * 1024,
            "parallel.tokens_per_device": 32_768,
        }
    )
