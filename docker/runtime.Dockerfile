# What a board runs: verify, run, serve, tune, bench, pull; no PyTorch, no compiler, no pip. For linux/amd64 and linux/arm64.
#   docker build -f docker/runtime.Dockerfile -t edgepeft:runtime .
# The base is an index of images for all architectures, of 19 September 2026 (Python 3.11.16). A newer one, with Debian's later mendings:
#   docker buildx imagetools inspect python:3.11-slim-bookworm   # and its digest by --build-arg BASE=..., or here
ARG BASE=docker.io/library/python:3.11-slim-bookworm@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b

FROM ${BASE} AS build
# A folder of wheels in wheels/ and PIP_NO_INDEX=1 build without a network (make images-test does).
ARG PIP_NO_INDEX=
ARG PIP_FIND_LINKS=
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
WORKDIR /src
COPY pyproject.toml README.md LICENSE docker/runtime.lock ./
COPY edgepeft edgepeft
COPY profiles profiles
COPY bench/scenarios bench/scenarios
# The glob may match nothing; a COPY needs one file that is there.
COPY docker/README.md docker/wheels* /wheels/
# pip stays in the stage: the environment has none. It compiles what it installs, which a read-only root could not keep. Tests and C headers of the packages are not needed to run them.
RUN python -m venv --without-pip /opt/edgepeft \
 && python -m pip --python /opt/edgepeft/bin/python install --only-binary=:all: --require-hashes -r runtime.lock \
 && python -m pip --python /opt/edgepeft/bin/python install --no-build-isolation --no-deps . \
 && python -m pip --python /opt/edgepeft/bin/python uninstall -y hatchling pathspec pluggy trove-classifiers tomlkit \
 && find /opt/edgepeft -depth -type d \( -name tests -o -name test -o -name include \) -path '*site-packages*' -exec rm -rf {} + \
 && find /opt/edgepeft -depth -type d -path '*site-packages/onnx/backend/test' -exec rm -rf {} +

FROM ${BASE}
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="edgepeft runtime" \
      org.opencontainers.image.description="Many parameter-efficient tasks on one frozen Transformer, on one small board." \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
# The base's own pip and setuptools would be build tools.
RUN python -m pip uninstall -y pip setuptools wheel 2>/dev/null || true; \
    rm -rf /usr/local/lib/python3.*/ensurepip /usr/local/lib/python3.*/site-packages/pip* \
      /usr/lib/python3/dist-packages/pip* /usr/lib/python3/dist-packages/setuptools* /usr/lib/python3/dist-packages/wheel* \
 && groupadd --gid 10001 edgepeft \
 && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /cache --shell /usr/sbin/nologin edgepeft \
 && install -d -o 10001 -g 10001 /cache /bundle
COPY --from=build /opt/edgepeft /opt/edgepeft
ENV PATH=/opt/edgepeft/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    ORT_DISABLE_TELEMETRY=1 \
    HOME=/cache \
    EDGEPEFT_CACHE=/cache/edgepeft
USER 10001:10001
WORKDIR /bundle
# Prepacked weights; the only place that is written to, apart from /tmp while tuning.
VOLUME ["/cache"]
EXPOSE 8080
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s --retries=3 \
  CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8080/readyz', timeout=4)"]
ENTRYPOINT ["edgepeft"]
# Inside the container other addresses than its own loopback are needed; the token is a file that is mounted.
CMD ["serve", "/bundle", "--host", "0.0.0.0", "--token-file", "/run/secrets/edgepeft-token"]
