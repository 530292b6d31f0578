#!/usr/bin/env bash
# Builds the runtime image for amd64 and arm64 without an engine, looks at what is in it, and runs the arm64 one under user
# emulation as a Cortex-A72: verify, run, serve and an answer over loopback. Then the same root file system as a guest of four
# cores and 8 GB, see guest.sh. `make images-test`; Debian, root, about 20 minutes the first time.
#   packages: buildah mmdebstrap arch-test qemu-user-static binfmt-support qemu-system-arm cpio curl
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

ROOT=$PWD
WORK=${WORK:-$ROOT/build/images}
ARCHES=${ARCHES:-amd64 arm64}
BUNDLE=${BUNDLE:-}
PYTHON=${PYTHON:-python3}
MOST_MB=500
BASE=docker.io/library/python:3.11-slim-bookworm
BUILDAH=(buildah --storage-driver vfs --root "$WORK/storage" --runroot "$WORK/run")

say() { printf '\n== %s (%d s)\n' "$*" "$SECONDS"; }
fail() { printf 'images-test: %s\n' "$*" >&2; exit 1; }

[ "$(id -u)" = 0 ] || fail 'root is needed: building without an engine mounts and changes users.'
for tool in buildah mmdebstrap qemu-aarch64-static update-binfmts curl; do
  command -v "$tool" >/dev/null || fail "$tool is missing: apt-get install buildah mmdebstrap arch-test qemu-user-static binfmt-support qemu-system-arm cpio curl"
done
[ -n "$BUNDLE" ] || fail 'say which bundle is to be run: make images-test BUNDLE=FOLDER'
BUNDLE=$(cd "$BUNDLE" && pwd)
mkdir -p "$WORK"

emulation() {
  mountpoint -q /proc/sys/fs/binfmt_misc || mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc
  [ -e /proc/sys/fs/binfmt_misc/qemu-aarch64 ] || update-binfmts --enable qemu-aarch64
}

# Stands in for the official image, which needs a registry: the same Debian, its own Python 3.11, without manuals and translations, which the slim image has not
# either.
base() {
  local arch=$1 context=$WORK/base-$1
  if [ ! -s "$WORK/$arch.tar" ]; then
    mmdebstrap --quiet --variant=minbase --arch="$arch" --include=python3,python3-pip,python3-venv,ca-certificates bookworm "$WORK/$arch.tar"
  fi
  mkdir -p "$context"
  ln -f "$WORK/$arch.tar" "$context/root.tar"
  printf 'FROM scratch\nADD root.tar /\nRUN ln -sf python3 /usr/bin/python && rm -rf /usr/lib/python3*/EXTERNALLY-MANAGED /usr/share/doc/* /usr/share/man/* /usr/share/locale/* /usr/share/info/*\n' > "$context/Dockerfile"
  "${BUILDAH[@]}" bud -q --isolation chroot --platform "linux/$arch" --layers=false -t "$BASE" "$context"
  echo "base of $arch: Debian bookworm by mmdebstrap, $(sha256sum < "$WORK/$arch.tar" | cut -c1-16), tagged $BASE; not the official image"
}

# Wheels are fetched by the host, which has a network; the build has none. pip reads markers for the host: they are spelt out.
wheels() {
  local arch=$1 machine platforms=()
  machine=$([ "$arch" = arm64 ] && echo aarch64 || echo x86_64)
  if [ ! -d "$WORK/wheels-$arch" ]; then
    for version in 2_34 2_28 2_27 2_17; do platforms+=(--platform "manylinux_${version}_$machine"); done
    "$PYTHON" docker/pins.py "$machine" > "$WORK/pins-$arch.txt"
    "$PYTHON" -m pip download -q --dest "$WORK/wheels-$arch.part" "${platforms[@]}" --platform "manylinux2014_$machine" \
      --python-version 3.11 --implementation cp --only-binary=:all: --no-deps --require-hashes -r "$WORK/pins-$arch.txt"
    mv "$WORK/wheels-$arch.part" "$WORK/wheels-$arch"
  fi
  rm -rf docker/wheels
  cp -r "$WORK/wheels-$arch" docker/wheels
}

image() {
  local arch=$1
  "${BUILDAH[@]}" bud -q --isolation chroot --pull-never --platform "linux/$arch" --layers=false --format docker \
    --build-arg "BASE=$BASE" --build-arg PIP_NO_INDEX=1 --build-arg PIP_FIND_LINKS=/wheels -f docker/runtime.Dockerfile -t "edgepeft:runtime-$arch" .
  rm -rf docker/wheels
}

# The root file system as the image has it, in a folder.
unpack() {
  local arch=$1 container mounted
  container=$("${BUILDAH[@]}" from --pull-never "edgepeft:runtime-$arch")
  mounted=$("${BUILDAH[@]}" mount "$container")
  rm -rf "$WORK/root-$arch"
  cp -a "$mounted" "$WORK/root-$arch"
  "${BUILDAH[@]}" rm "$container" >/dev/null
}

look() {
  local arch=$1 root=$WORK/root-$1 megabytes
  megabytes=$(du -sm "$root" | cut -f1)
  echo "edgepeft:runtime-$arch: $megabytes MB unpacked, of which /opt/edgepeft $(du -sm "$root/opt/edgepeft" | cut -f1) MB"
  [ "$megabytes" -lt "$MOST_MB" ] || fail "$megabytes MB are more than $MOST_MB"
  for tool in gcc cc make; do
    ! find "$root/usr/bin" "$root/usr/local/bin" "$root/opt" -name "$tool" 2>/dev/null | grep -q . || fail "$tool is left in the image"
  done
  ! find "$root/opt/edgepeft" -type d \( -name pip -o -name hatchling -o -name torch \) | grep -q . || fail 'pip, hatchling or torch is left'
  "${BUILDAH[@]}" inspect --type image "edgepeft:runtime-$arch" | "$PYTHON" -c '
import json, sys
config = json.load(sys.stdin)["Docker"]["config"]
assert config["User"] == "10001:10001", config["User"]
assert config["Healthcheck"]["Test"][0] == "CMD", config.get("Healthcheck")
assert config["Labels"]["org.opencontainers.image.licenses"] == "Apache-2.0"
print("non-root, health check and labels are there")'
}

# The workstation's image, for this machine's processor, built and used. CPU wheels of PyTorch come from where pip is told to look
# (PIP_FIND_LINKS, PIP_EXTRA_INDEX_URL).
train() {
  local arch container mounted
  arch=$(dpkg --print-architecture)
  base "$arch"
  rm -rf docker/wheels
  "$PYTHON" -m pip download -q --only-binary=:all: --dest docker/wheels --require-hashes -r docker/train.lock
  "${BUILDAH[@]}" bud -q --isolation chroot --pull-never --platform "linux/$arch" --layers=false --format docker \
    --build-arg "BASE=$BASE" --build-arg PIP_NO_INDEX=1 --build-arg PIP_FIND_LINKS=/wheels -f docker/train.Dockerfile -t edgepeft:train .
  rm -rf docker/wheels
  container=$("${BUILDAH[@]}" from --pull-never edgepeft:train)
  mounted=$("${BUILDAH[@]}" mount "$container")
  rm -rf "$WORK/root-train"
  cp -a "$mounted" "$WORK/root-train"
  "${BUILDAH[@]}" rm "$container" >/dev/null
  echo "edgepeft:train: $(du -sm "$WORK/root-train" | cut -f1) MB unpacked"
  bash docker/trained.sh "$WORK/root-train" "$BUNDLE"
}

for arch in $ARCHES; do
  say "building for $arch"
  [ "$arch" = amd64 ] || emulation
  base "$arch"
  wheels "$arch"
  image "$arch"
  unpack "$arch"
  look "$arch"
done

case " $ARCHES " in *' arm64 '*)
  say 'running the arm64 image as a Cortex-A72, user emulation'
  bash docker/emulated.sh "$WORK/root-arm64" "$BUNDLE"
  say 'running it as a guest: Cortex-A72, four cores, 8 GB, cgroup v2'
  if command -v qemu-system-aarch64 >/dev/null && [ -z "${NO_GUEST:-}" ]; then
    bash docker/guest.sh "$WORK/root-arm64" "$BUNDLE" "$WORK"
  else
    echo 'left out: qemu-system-aarch64 is missing, or NO_GUEST is set'
  fi
esac
if [ -n "${TRAIN:-}" ]; then
  say 'building the train image, training with it'
  train
fi
say 'images-test passed'
