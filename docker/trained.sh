#!/usr/bin/env bash
# trained.sh ROOT BUNDLE: the train image's root file system, of this machine's processor, as uid 10001 on a read-only root, in
# mount and PID namespaces of its own: a task trained on the bundle's backbone, exported and verified. /work, /cache and /bundle are
# the image's folders, as train.Dockerfile has them.
set -euo pipefail

ROOT=${1:?which root file system} BUNDLE=${2:?which bundle}

if [ -z "${INSIDE:-}" ]; then
  INSIDE=1 exec unshare --mount --pid --fork --kill-child --propagation private "$0" "$@"
fi

mount --bind "$ROOT" "$ROOT"
mkdir -p "$ROOT/bundle"
mount --bind "$BUNDLE" "$ROOT/bundle"
for folder in cache work; do mount -t tmpfs -o size=2g,uid=10001,gid=10001,mode=755 tmpfs "$ROOT/$folder"; done
mount -t tmpfs -o size=512m,mode=1777 tmpfs "$ROOT/tmp"
mount -t proc proc "$ROOT/proc"
mount --rbind /sys "$ROOT/sys"
mount --bind /dev "$ROOT/dev"
mount -o remount,bind,ro "$ROOT/bundle"
mount -o remount,bind,ro "$ROOT"
for i in $(seq 40); do
  printf '{"sentence1": "evening %d was %s", "label": "%s"}\n' "$i" $([ $((i % 2)) = 0 ] && echo 'warm good' || echo 'cold bad')
done > "$ROOT/work/rows.jsonl"

inside=(chroot --userspec=10001:10001 "$ROOT" /usr/bin/env -i PATH=/opt/edgepeft/bin:/usr/bin:/bin HOME=/cache
  EDGEPEFT_CACHE=/cache/edgepeft MPLCONFIGDIR=/tmp/matplotlib ORT_DISABLE_TELEMETRY=1 PYTHONDONTWRITEBYTECODE=1 NO_COLOR=1)

"${inside[@]}" python -c 'import os, torch; print("inside: uid", os.getuid(), "PyTorch", torch.__version__)'
if "${inside[@]}" touch /opt/x 2>/dev/null; then echo 'the root file system can be written to' >&2; exit 1; fi
"${inside[@]}" edgepeft train --backbone /bundle --data /work/rows.jsonl --task mood --method pfeiffer --steps 20 --out /work/delta
"${inside[@]}" edgepeft export --backbone /bundle --delta /work/delta --out /work/out
"${inside[@]}" edgepeft verify /work/out
echo 'trained, exported and verified'
