# A workstation: train, export, inspect, and all that the runtime image does. CPU wheels of PyTorch.
#   docker build -f docker/train.Dockerfile -t edgepeft:train .
# The base is that of runtime.Dockerfile.
ARG BASE=docker.io/library/python:3.11-slim-bookworm@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b

FROM ${BASE} AS build
ARG PIP_NO_INDEX=
ARG PIP_FIND_LINKS=
# Where CPU wheels of PyTorch come from, on amd64: --build-arg PIP_EXTRA_INDEX_URL=... The lock has their hashes, and no CUDA.
ARG PIP_EXTRA_INDEX_URL=
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
WORKDIR /src
COPY pyproject.toml README.md LICENSE docker/train.lock ./
COPY edgepeft edgepeft
COPY profiles profiles
COPY bench/scenarios bench/scenarios
# The glob may match nothing; a COPY needs one file that is there.
COPY docker/README.md docker/wheels* /wheels/
RUN python -m venv --without-pip /opt/edgepeft \
 && python -m pip --python /opt/edgepeft/bin/python install --only-binary=:all: --require-hashes -r train.lock \
 && python -m pip --python /opt/edgepeft/bin/python install --no-build-isolation --no-deps . \
 && python -m pip --python /opt/edgepeft/bin/python uninstall -y hatchling pathspec pluggy trove-classifiers tomlkit

FROM ${BASE}
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="edgepeft train" \
      org.opencontainers.image.description="Training and export of parameter-efficient tasks." \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
RUN groupadd --gid 10001 edgepeft \
 && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /cache --shell /usr/sbin/nologin edgepeft \
 && install -d -o 10001 -g 10001 /cache /work
COPY --from=build /opt/edgepeft /opt/edgepeft
ENV PATH=/opt/edgepeft/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    ORT_DISABLE_TELEMETRY=1 \
    HOME=/cache \
    EDGEPEFT_CACHE=/cache/edgepeft \
    HF_HOME=/cache/huggingface \
    MPLCONFIGDIR=/tmp/matplotlib
USER 10001:10001
WORKDIR /work
VOLUME ["/cache", "/work"]
ENTRYPOINT ["edgepeft"]
CMD ["--help"]
