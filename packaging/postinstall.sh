#!/bin/sh
# Runs after units were installed or removed. It enables and starts no unit: the operator does that when the conflist is
# there. During the build of an image in a root directory, no systemd runs. Then this script does nothing.
if [ -z "${DPKG_ROOT:-}" ] && [ -d /run/systemd/system ]; then
	systemctl daemon-reload || :
	# systemd-networkd reads its drop-in only when it starts. With the drop-in, a restart leaves the routes and rules of pods
	# alone. But a later file can override the drop-in. The argument is "configure" from dpkg, and from rpm the number of
	# versions. A removal leaves no drop-in.
	stays() { # whether systemd-networkd has $1=no
		systemd-analyze cat-config systemd/networkd.conf | sed -n "s/^[[:blank:]]*$1[[:blank:]]*=[[:blank:]]*//p" | tail -n 1 |
			grep -Eqx '(no|n|false|f|off|0)[[:blank:]]*'
	}
	case ${1:-} in
	configure | 1 | 2)
		if [ ! -e /usr/lib/systemd/networkd.conf.d/cni-ipvlan-vpc-k8s.conf ]; then
			: # removed
		elif stays ManageForeignRoutes && stays ManageForeignRoutingPolicyRules; then
			systemctl try-restart systemd-networkd.service || :
		elif systemctl -q is-active systemd-networkd.service; then
			echo "systemd-networkd was not restarted, because a restart may remove the routes and rules of pods. Run cni-tool doctor" >&2
		fi
		;;
	esac
fi
