# docker build -t mlperf-bert .        needs nothing else; start_training.sh runs it when the image is missing
#
#   --build-arg ACCELERATOR=gpu        cpu (default), gpu, gpu-cuda13 or tpu: docs/containers.md
#   --build-arg BASE_IMAGE=...         any Debian with Python 3.11, 3.12 or 3.13 as python3; by digest: python@sha256:...
#   --build-arg COMMIT=$(git rev-parse HEAD)
ARG BASE_IMAGE=python:3.13.15-slim-trixie

FROM ${BASE_IMAGE}
ARG ACCELERATOR=cpu
# This layer depends only on the lock files and what installs them: a change of the code does not install again.
COPY environment /opt/bert/environment
RUN case "$ACCELERATOR" in \
      cpu) lock=requirements.lock ;; \
      gpu|gpu-cuda13|tpu) lock=requirements-$ACCELERATOR.lock ;; \
      *) echo "ACCELERATOR=$ACCELERATOR: give cpu, gpu, gpu-cuda13 or tpu" >&2; exit 1 ;; \
    esac \
 && PYTHON=python3 PIP_NO_CACHE_DIR=1 /opt/bert/environment/setup.sh /opt/venv "/opt/bert/environment/$lock" \
 && /opt/venv/bin/python -m pip uninstall --yes --quiet pip
COPY . /opt/bert
# The root file system may be read-only and the user id any number: all output goes to /output and /tmp.
ENV PATH=/opt/venv/bin:$PATH \
    HOME=/tmp \
    MPLCONFIGDIR=/tmp \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
RUN python -m compileall -q /opt/bert/mlperf_bert /opt/bert/mlperf_results /opt/bert/demo /opt/bert/pages
WORKDIR /opt/bert
USER 1000:1000
CMD ["./train_model.sh"]
# Last, because it changes with every commit.
ARG COMMIT=unknown
ARG VERSION=0.1.0
ENV MLPERF_BERT_COMMIT=${COMMIT}
LABEL org.opencontainers.image.title="MLPerf BERT pre-training" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}-${ACCELERATOR}" \
      org.opencontainers.image.revision="${COMMIT}"
