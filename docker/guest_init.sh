#!/bin/sh
# /init of the guest that guest.sh boots: what a board would do, on four Cortex-A72 cores with 8 GB and control groups v2.
export PATH=/opt/edgepeft/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/cache EDGEPEFT_CACHE=/cache/edgepeft ORT_DISABLE_TELEMETRY=1 NO_COLOR=1
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
mount -t tmpfs -o mode=1777 tmpfs /tmp; mount -t tmpfs -o mode=1777 tmpfs /cache
mount -t cgroup2 none /sys/fs/cgroup
echo '+cpu +memory +cpuset' > /sys/fs/cgroup/cgroup.subtree_control
mkdir /sys/fs/cgroup/board && echo $$ > /sys/fs/cgroup/board/cgroup.procs
python - <<'P'
import fcntl, socket, struct
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)  # there is no ip command: loopback, up
fcntl.ioctl(s, 0x8914, struct.pack("16sh14x", b"lo", 0x41))
P
check() { # name, expected exit code, command...
  name=$1 expected=$2; shift 2
  "$@" > /tmp/out 2>&1; code=$?
  if [ "$code" = "$expected" ]; then echo "GUEST ok: $name (exit $code)"; else echo "GUEST FAILED: $name: exit $code, expected $expected"; fi
  tail -n "${LINES_SHOWN:-6}" /tmp/out | sed 's/^/GUEST   /'
}
limited() { # bytes, command...: in a group of its own
  group=/sys/fs/cgroup/limited; mkdir -p $group; echo "$1" > $group/memory.max; echo 0 > $group/memory.swap.max 2>/dev/null; shift
  sh -c 'echo $$ > /sys/fs/cgroup/limited/cgroup.procs; exec "$@"' sh "$@"
}
check 'four cores of a Cortex-A72, 8 GB' 0 python -c '
import os
cpu, memory = open("/proc/cpuinfo").read(), open("/proc/meminfo").readline()
assert len(os.sched_getaffinity(0)) == 4, os.sched_getaffinity(0)
assert cpu.count("0xd08") == 4, cpu
assert int(memory.split()[1]) > 7_500_000, memory
print(memory.strip())'
check 'verify: parity within the tolerance' 0 edgepeft verify /bundle
check 'run' 0 edgepeft run /bundle 'The soup was cold, and still we laughed all evening.'
check 'serve under 700 MB, asked over loopback' 0 limited 734003200 python /guest_serve.py
echo "GUEST   peak $(cat /sys/fs/cgroup/limited/memory.peak) bytes"
check 'a bench that does not fit its device: exit 5' 5 edgepeft bench /bundle --profile /small.toml --batch-size 1 --length 16
dmesg 2>/dev/null | grep -i 'undefined instruction' && echo 'GUEST FAILED: an illegal instruction'
echo GUEST done
sync; echo o > /proc/sysrq-trigger; sleep 60
