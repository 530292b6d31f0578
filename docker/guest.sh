#!/usr/bin/env bash
# guest.sh ROOT BUNDLE WORK: the arm64 root file system as a machine of its own, with Debian's kernel and the root as its initramfs.
# Its times say nothing about a board.
set -euo pipefail

ROOT=$1 BUNDLE=$2 WORK=$3
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
LIMIT_S=${LIMIT_S:-1800}

if ! ls "$WORK"/kernel/boot/vmlinuz-* >/dev/null 2>&1; then
  mkdir -p "$WORK/kernel"
  mmdebstrap --quiet --variant=extract --arch=arm64 --include=linux-image-arm64 bookworm "$WORK/kernel.tar"
  tar -C "$WORK/kernel" -xf "$WORK/kernel.tar" ./boot
  rm "$WORK/kernel.tar"
fi

staging=$(mktemp -d "$WORK/guest.XXXX")
trap 'rm -rf "$staging"' EXIT
cp -a "$ROOT" "$staging/system"
mkdir -p "$staging/system/bundle" "$staging/system/cache"
cp -r "$BUNDLE/." "$staging/system/bundle/"
install -m 755 "$HERE/guest_init.sh" "$staging/system/init"
cp "$HERE/guest_serve.py" "$staging/system/"
sed -e 's/^value = 8$/value = 0.03/' -e '/^variants/d' -e 's/^name = "rpi4"/name = "small"/' "$HERE/../profiles/rpi4.toml" > "$staging/system/small.toml"
(cd "$staging/system" && find . -print0 | cpio --null --quiet -o -H newc) > "$staging/initrd.cpio"

timeout "$LIMIT_S" qemu-system-aarch64 -M virt -cpu cortex-a72 -smp 4 -m 8G -accel tcg,thread=multi -nic none \
  -kernel "$(ls "$WORK"/kernel/boot/vmlinuz-* | head -1)" -initrd "$staging/initrd.cpio" \
  -append 'console=ttyAMA0 quiet rdinit=/init panic=-1' -nographic -no-reboot < /dev/null | tr -d '\r' | tee "$WORK/guest.log" | grep --line-buffered GUEST

grep -q 'GUEST done' "$WORK/guest.log" || { echo 'the guest did not come to its end' >&2; exit 1; }
! grep -q 'GUEST FAILED' "$WORK/guest.log" || exit 1
