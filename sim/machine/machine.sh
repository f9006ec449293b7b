# machine NAME DISK WRITABLE...: process 1 of a machine, in mount, UTS, IPC and PID namespaces that package machine has made, and
# in the cgroup of the machine. The script makes all other parts of the machine, prints "ready", and ends when its standard input
# ends. The WRITABLE directories are the machine's own, and their files are below DISK.
set -e
name=$1 disk=$2; shift 2
mount --make-rprivate /
for dir in "$@"; do
	mkdir -p "$dir"
	mount --bind "$disk$dir" "$dir"
done
! mountpoint -q /run || umount --lazy /run # /run has the namespaces of the other instances
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t cgroup2 cgroup /sys/fs/cgroup
mount -t bpf bpf /sys/fs/bpf
mount -t tmpfs -o mode=755 tmpfs /run
mkdir /run/netns /run/lock
mount --make-rshared / # as systemd does: kubelet's mounts reach containers
# kubelet wants the speed of the processor, which user-mode Linux does not report.
grep -q '^cpu MHz' /proc/cpuinfo || {
	sed 's/^bogomips/cpu MHz\t\t: 2000.000\n&/' /proc/cpuinfo >/run/cpuinfo
	mount --bind /run/cpuinfo /proc/cpuinfo
	# A pod in a user namespace may mount a proc only if the machine has a proc that no mount covers.
	mkdir /run/proc && mount -t proc proc /run/proc
}
hostname "$name"
# A cgroup without processes can enable controllers for the cgroups below it.
for c in $(cat /sys/fs/cgroup/cgroup.controllers); do echo "+$c" >/sys/fs/cgroup/cgroup.subtree_control; done
echo ready
cat >/dev/null || exit # || exit keeps sh as process 1: it reaps orphans
