#!/usr/bin/env bash
# emulated.sh ROOT BUNDLE: an arm64 root file system under QEMU's user emulation, as uid 10001 on a read-only root, in mount and
# PID namespaces of its own: verify (parity within the ISA's tolerance), run, serve and an answer over loopback.
set -euo pipefail

ROOT=${1:?which root file system} BUNDLE=${2:?which bundle}
PORT=${PORT:-18080}

if [ -z "${INSIDE:-}" ]; then
  INSIDE=1 exec unshare --mount --pid --fork --kill-child --propagation private "$0" "$@"
fi

mount --bind "$ROOT" "$ROOT"
mkdir -p "$ROOT/bundle" "$ROOT/cache"
mount --bind "$BUNDLE" "$ROOT/bundle"
mount -t tmpfs -o size=2g,mode=1777 tmpfs "$ROOT/cache"
mount -t tmpfs -o size=64m,mode=1777 tmpfs "$ROOT/tmp"
mount -t proc proc "$ROOT/proc"
mount --rbind /sys "$ROOT/sys"
mount --bind /dev "$ROOT/dev"
# ONNX Runtime reads it, and the host's would name another processor.
cpuinfo=$(mktemp) && chmod 644 "$cpuinfo"
for i in $(seq 0 $(($(nproc --all) - 1))); do  # as many as /sys shows
  printf 'processor\t: %d\nBogoMIPS\t: 108.00\nFeatures\t: fp asimd evtstrm crc32 cpuid\nCPU implementer\t: 0x41\nCPU architecture: 8\nCPU variant\t: 0x0\nCPU part\t: 0xd08\nCPU revision\t: 3\n\n' "$i"
done > "$cpuinfo"
mount --bind "$cpuinfo" "$ROOT/proc/cpuinfo"
mount -o remount,bind,ro "$ROOT/bundle"
mount -o remount,bind,ro "$ROOT"

# The default is -cpu max, which has every instruction: a Cortex-A72 has neither dot product nor half floats.
export QEMU_CPU=cortex-a72
# A simple command, not a function: started with & it is the process itself that takes a signal.
inside=(chroot --userspec=10001:10001 "$ROOT" /usr/bin/env -i PATH=/opt/edgepeft/bin:/usr/bin:/bin HOME=/cache
  EDGEPEFT_CACHE=/cache/edgepeft ORT_DISABLE_TELEMETRY=1 PYTHONDONTWRITEBYTECODE=1 NO_COLOR=1 "QEMU_CPU=$QEMU_CPU")

"${inside[@]}" python -c 'import platform, os; print("inside:", platform.machine(), "uid", os.getuid())'
if "${inside[@]}" touch /opt/x 2>/dev/null; then echo 'the root file system can be written to' >&2; exit 1; fi
"${inside[@]}" edgepeft --version
"${inside[@]}" edgepeft verify /bundle
"${inside[@]}" edgepeft run /bundle 'The soup was cold, and still we laughed all evening.'
"${inside[@]}" edgepeft serve /bundle --port "$PORT" &
server=$!
for _ in $(seq 240); do
  curl -sf "http://127.0.0.1:$PORT/readyz" >/dev/null && break
  kill -0 "$server" || { echo 'serve ended' >&2; exit 1; }
  sleep 1
done
task=$(curl -sf "http://127.0.0.1:$PORT/v1/tasks" | sed 's/.*"name":"\([^"]*\)".*/\1/')
curl -sf -H 'Content-Type: application/json' -d '{"text":"The soup was cold, and still we laughed all evening."}' \
  "http://127.0.0.1:$PORT/v1/tasks/$task:predict"
echo
curl -sf "http://127.0.0.1:$PORT/" | grep -q '<title>edgepeft' || { echo 'no page' >&2; exit 1; }
kill -TERM "$server"
wait "$server" || { echo "serve ended with $?" >&2; exit 1; }
echo 'served, answered and drained'
