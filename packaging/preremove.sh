#!/bin/sh
# Before the last version goes, not at an upgrade: what the operator has enabled is disabled, so that no link to a unit stays.
# dpkg says "remove" (deb-prerm(5)), rpm how many versions will be left.
case ${1:-} in
remove | 0) ;;
*) exit 0 ;;
esac
units="cni-gc.timer cni-metrics.timer cni-warm.path cni-warm.service cni-links.service"
# shellcheck disable=SC2086 # a list
if [ -z "${DPKG_ROOT:-}" ] && [ -d /run/systemd/system ]; then
	systemctl disable --now $units || :
elif command -v systemctl >/dev/null; then
	systemctl --root="${DPKG_ROOT:-/}" disable $units || :
fi
