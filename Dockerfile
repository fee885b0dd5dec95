# The translation server (docs/serving.md): t2t-jax serve for a user without rights.
#
#   docker build -t t2t-jax .
#   docker run -p 5000:5000 -v "$PWD/runs:/runs:ro" -v t2t-cache:/cache t2t-jax /runs/quickstart
#
# Every other command, as a job of Kubernetes that trains (docs/launch.md) has it:
#
#   docker build -t t2t-jax --build-arg EXTRAS=train,cuda13,gcs .
#   docker run --gpus all --entrypoint t2t-jax t2t-jax train --config configs/base.py --workdir gs://BUCKET/base

# constraints.txt pins the packages. A digest pins the system, too: --build-arg BASE=python:3.11-slim@sha256:...
ARG BASE=python:3.11-slim
FROM ${BASE}

# Without these, NCCL does not see InfiniBand or RoCE, and several hosts train over TCP.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libibverbs1 ibverbs-providers \
    && rm -r /var/lib/apt/lists/*

# PyPI's JAX for CPUs; for a GPU: --build-arg EXTRAS=serve,cuda13
ARG EXTRAS=serve

WORKDIR /src
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY t2t_jax t2t_jax
COPY configs configs
RUN pip install --no-cache-dir --constraint constraints.txt ".[${EXTRAS}]" \
    && rm -r /src/* \
    && useradd --uid 10001 --create-home t2t \
    && install -d -o t2t -g t2t /cache

USER t2t
WORKDIR /home/t2t
# Compiled programs are kept here; mount a volume, so that a new container finds them.
ENV XDG_CACHE_HOME=/cache PYTHONUNBUFFERED=1
VOLUME /cache
EXPOSE 5000

# The first start loads and compiles for minutes.
HEALTHCHECK --interval=10s --timeout=5s --start-period=5m --retries=3 \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:5000/health', timeout=4)"]

ENTRYPOINT ["t2t-jax", "serve", "--host", "0.0.0.0"]
