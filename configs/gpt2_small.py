"""GPT-2's smallest model (Radford et al. 2019): 124,439,808 parameters with a vocabulary of 50,257.

    t2t-jax train --config configs/gpt2_small.py --workdir runs/gpt2_small

The sizes are the published model's. The model has learned positions, biases in all projections,
pre-norm layers, and gelu approximated by tanh. A step has 512 batch rows of 1,024 subwords; a row
may cross the ends of documents. The GPT-2 paper does not state the learning rate, so this config
has the schedule of "Attention Is All You Need". We did not train this config, which needs
accelerators and more text. Put the text into `corpora/text` as `train.txt` and `dev.txt`, with
blank lines between documents.
"""

from t2t_jax.config import Config, DataConfig, DecoderOnlyConfig, ParallelConfig


def get_config() -> Config:
    return Config(
        model=DecoderOnlyConfig(
            d_model=768,
            num_heads=12,
            d_ff=3072,
            feed_forward="gelu_tanh",
            num_decoder_layers=12,
            norm_order="pre",
            norm_epsilon=1e-5,
            attention_bias=True,
            position="learned",
            max_positions=1024,
            scale_embeddings=False,
            start_token="end",
            attention_dropout_rate=0.1,
        ),
        data=DataConfig(
            task="language_modelling",
            corpus="text:corpora/text",
            documents="paragraphs",
            text_rows="run_on",
            vocab_size=50_257,
            max_length=1024,
            batching="pack",
            target_tokens_per_step=512 * 1024,
        ),
        parallel=ParallelConfig(tokens_per_device=32_768),
    )
