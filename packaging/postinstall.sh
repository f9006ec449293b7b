#!/bin/sh
# Runs after units were installed or removed. It enables and starts no unit: the operator does that when the conflist is
# there. During the build of an image in a root directory, no systemd runs. Then this script does nothing.
if [ -z "${DPKG_ROOT:-}" ] && [ -d /run/systemd/system ]; then
	systemctl daemon-reload || :
	# systemd-networkd reads its drop-in only when it starts. With the drop-in, a restart leaves the routes and rules of pods
	# alone. The argument is "configure" from dpkg, and from rpm the number of versions. A removal leaves no drop-in.
	case ${1:-} in
	configure | 1 | 2)
		[ ! -e /usr/lib/systemd/networkd.conf.d/cni-ipvlan-vpc-k8s.conf ] || systemctl try-restart systemd-networkd.service || :
		;;
	esac
fi
