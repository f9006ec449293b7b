#!/bin/sh
# instance COMMAND...: process 1 of the instance, in mount and PID namespaces of its own. Tools that look at the whole node see
# only the instance, and not the programs that simulate it.
set -e
mount --make-rprivate /
! mountpoint -q /run || umount --lazy /run # /run has the namespaces of the other instances
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t bpf bpf /sys/fs/bpf
mkdir -p /var/lib/cni
for dir in /run /var/lib/cni; do mount -t tmpfs -o mode=755 instance "$dir"; done
mkdir /run/netns /run/lock
"$@" || exit # without ||, the command may replace sh, and no process would reap orphans
