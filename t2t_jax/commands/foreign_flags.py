"""Accept or explain flags of fairseq, JoeyNMT, OpenNMT-py, transformers and T5X."""

import re
from collections.abc import Collection, Mapping

ALIASES: Mapping[str, tuple[str, ...]] = {
    "--model.d-model": ("--hidden-size",),
    "--model.num-heads": ("--heads",),
    "--model.d-ff": ("--transformer-ff",),
    "--model.num-encoder-layers": ("--encoder-layers", "--enc-layers"),
    "--model.num-decoder-layers": ("--decoder-layers", "--dec-layers"),
    "--model.dropout-rate": ("--dropout",),
    "--model.attention-dropout-rate": ("--attention-dropout",),
    "--model.activation-dropout-rate": ("--activation-dropout", "--relu-dropout"),
    "--data.source-language": ("--source-lang",),
    "--data.target-language": ("--target-lang",),
    "--training.num-train-steps": ("--steps", "--max-steps", "--train-steps", "--max-update"),
    "--training.warmup-steps": ("--warmup-steps", "--warmup-updates"),
    "--training.peak-learning-rate": ("--lr",),
    "--training.adam-beta1": ("--adam-beta1",),
    "--training.adam-beta2": ("--adam-beta2",),
    "--training.adam-epsilon": ("--adam-epsilon", "--adam-eps"),
    "--training.clip-gradient-norm": ("--clip-norm", "--max-grad-norm"),
    "--training.ema-decay": ("--ema-decay",),
    "--training.label-smoothing": ("--label-smoothing", "--label-smoothing-factor"),
    "--training.seed": ("--seed",),
    "--training.log-every-steps": ("--log-interval", "--logging-steps", "--report-every"),
    "--training.stop-after-evaluations-without-gain": ("--patience", "--early-stopping"),
    "--checkpoint.every-steps": ("--save-steps", "--save-checkpoint-steps"),
    "--checkpoint.keep": ("--keep-checkpoint",),
    "--evaluation.every-steps": ("--eval-steps", "--valid-steps", "--validate-interval-updates"),
    "--parallel.tensor": ("--tensor-parallel-size", "--model-parallel-size"),
    "--beam-size": ("--beam", "--num-beams"),
    "--num-best": ("--nbest", "--n-best"),
}
"""Flags of other programs with the same effect and unit, by our flag."""

# Flags of other programs that need a hint instead of an alias. An indented line continues a row.
_HINTS = """\
--save-interval: give a number of steps, not of epochs: --checkpoint.every-steps
--validate-interval: give a number of steps, not of epochs: --evaluation.every-steps
--save-interval-updates: give --checkpoint.every-steps and --evaluation.every-steps
--keep-last-epochs --keep-best-checkpoints --save-total-limit: --checkpoint.keep counts the newest
  checkpoints; the best one is kept in addition
--epochs --num-epochs --max-epoch --num-train-epochs: give a number of steps, not of epochs:
  --training.num-train-steps
--batch-size --max-sentences --per-device-train-batch-size --gin.BATCH-SIZE: a batch is counted in
  tokens over all devices, not in sentences: --data.source-tokens-per-step and
  --data.target-tokens-per-step
--max-tokens: tokens are counted over all devices, not for each GPU: --data.source-tokens-per-step
  and --data.target-tokens-per-step
--update-freq --gradient-accumulation-steps --accum-count: --data.target-tokens-per-step is the
  whole batch of a step, which --parallel.tokens-per-device splits into passes
--gpus --gpu --num-gpus --ngpu --gpu-ranks --devices --num-devices --world-size
  --distributed-world-size: a training run uses all visible devices: choose GPUs by
  CUDA_VISIBLE_DEVICES, and several hosts by t2t-jax launch
--cpu --use-cpu --no-cuda --use-cuda: JAX_PLATFORMS=cpu in the environment chooses the CPU
--local-rank --node-rank --distributed-rank --distributed-init-method --master-ip --master-addr
  --master-port: t2t-jax launch starts several processes; by hand, --coordinator, --num-processes
  and --process-id join them
--fsdp --deepspeed --zero-sharding: --parallel.fsdp N shards parameters and optimizer state over N
  devices
--workers --num-workers --dataloader-num-workers: leave it out; --data.prefetch is the number
  of batches that are made ahead of the step
--resume --resume-from-checkpoint --restore-file --train-from: run the same t2t-jax train command
  again to resume the run in its directory; --training.init-from RUN starts a new run from the
  parameters of another one
--finetune-from-model --model-name-or-path: --training.init-from RUN starts from the parameters of a
  run, and t2t-jax import makes a run of a model in another format
--overwrite --overwrite-output-dir: a run is never overwritten: name another directory
--wandb --use-wandb --wandb-project --report-to --mlflow: --track sends the log to wandb:PROJECT,
  mlflow:EXPERIMENT or trackio:PROJECT
--tensorboard --tensorboard-logdir --tensorboard-log-dir: the directory of a run has events for
  TensorBoard
--learning-rate: --training.peak-learning-rate is the rate at the end of the warmup; the factor of
  the schedule noam is --training.learning-rate-factor
--lr-scheduler --lr-scheduler-type --decay-method: --training.schedule has other names, and each
  schedule begins with a warmup
--warmup-ratio: the warmup is counted in steps: --training.warmup-steps
--weight-decay: --training.weight-decay is for matrices of the layers, not for embeddings, and for
  --training.optimizer adamw rather than adam
--adam-betas: give --training.adam-beta1 and --training.adam-beta2
--average-decay: --training.ema-decay is 1 minus that number
--arch: --config names a network, such as base or big
--layers --num-layers: give --model.num-encoder-layers and --model.num-decoder-layers
--embed-dim --encoder-embed-dim --decoder-embed-dim --word-vec-size --rnn-size: embeddings, encoder
  and decoder have one width: --model.d-model
--encoder-ffn-embed-dim --decoder-ffn-embed-dim: --model.d-ff is for encoder and decoder
--encoder-attention-heads --decoder-attention-heads: --model.num-heads is for encoder and decoder
--share-embeddings: to share source and target embeddings and not the output projection, give
  --model.share-embeddings False and --model.share-source-embedding True
--share-decoder-embeddings --share-decoder-input-output-embed: give --model.share-embeddings False
  and --model.share-target-embedding True
--share-all-embeddings: that is the default, --model.share-embeddings True
--no-scale-embedding: give --model.scale-embeddings False
--encoder-normalize-before --decoder-normalize-before: --model.norm-order pre is for encoder and
  decoder
--fp16 --bf16 --amp --dtype --precision --model-dtype: --model.compute-dtype is float32, bfloat16 or
  auto; there is no float16
--gradient-checkpointing --checkpoint-activations: give --parallel.remat layer
--metric-for-best-model --best-checkpoint-metric --early-stopping-criteria: --evaluation.metric,
  bleu or chrf, chooses the best checkpoint
--save-dir --output-dir --model-dir --save-model --run-directory --model --gin.MODEL-DIR: give the
  run directory without a flag, or as --workdir DIR
--data --train-file --dataset-name --gin.MIXTURE-OR-TASK-NAME: --data.corpus names the corpus, as
  text:DIR
--src-vocab-size --tgt-vocab-size: there is one vocabulary: --data.vocab-size
--max-source-length --max-target-length --max-source-positions --max-target-positions
  --src-seq-length --tgt-seq-length --gin.TASK-FEATURE-LENGTHS: --data.max-length is for sources and
  targets; longer pairs are left out, not cut
--lenpen: to divide by length ** N, give --beam-rule transformers and --length-penalty N
--alpha: --length-penalty is the alpha of Wu et al. 2016
--push-to-hub --hub-model-id: t2t-jax publish uploads a run to the hub
--do-train --do-eval --do-predict: use the commands t2t-jax train, t2t-jax evaluate and t2t-jax
  translate
--gin-file: --config names a config file, in Python
--gin.TRAIN-STEPS: give --training.num-train-steps
--gin.DROPOUT-RATE: give --model.dropout-rate and --model.attention-dropout-rate
--version: the version is printed by t2t-jax --version
"""
_BY_FLAG = {
    flag: hint
    for row in _HINTS.replace("\n  ", " ").splitlines()
    for flags, _, hint in [row.partition(": ")]
    for flag in flags.split()
}
_FLAGS_IN_HINT = re.compile(r"(?<!t2t-jax )--[a-z][\w.-]*\w")


def foreign_hint(flag: str, flags: Collection[str]) -> str | None:
    """Return a hint for a flag of another program; None if the flag is of no such program.

    The hint is "" if it would name a flag that is not in `flags`, the flags of the command.
    """
    hint = _BY_FLAG.get(flag)
    return hint if hint is None or {*_FLAGS_IN_HINT.findall(hint)} <= {*flags} else ""
