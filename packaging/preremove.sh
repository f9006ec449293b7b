#!/bin/sh
# Runs before the last version is removed, not at an upgrade. It refuses the removal while pods have addresses: the
# runtime needs the plugins to delete these pods. It disables the units, so that no link to a unit stays. It removes the
# metrics: otherwise node_exporter would export the last values for ever.
# The argument is "remove" from dpkg (deb-prerm(5)), and the number of remaining versions from rpm.
case ${1:-} in
remove | 0) ;;
*) exit 0 ;;
esac
units="cni-advertise.timer cni-doctor.timer cni-gc.timer cni-metrics.timer cni-warm.path cni-warm.service cni-links.service"
if [ -z "${DPKG_ROOT:-}" ] && [ -d /run/systemd/system ]; then
	if [ "${CNI_IPVLAN_VPC_FORCE_REMOVE:-}" != 1 ] && ! cni-ipvlan-vpc-k8s-tool install --in-use; then
		echo "hint: to remove the package although pods have addresses, set CNI_IPVLAN_VPC_FORCE_REMOVE=1. The DELs of these pods then fail" >&2
		exit 1
	fi
	# shellcheck disable=SC2086 # a list
	systemctl disable --now $units || :
	systemctl stop cni-doctor.service cni-metrics.service || : # a run would write its metrics again
elif command -v systemctl >/dev/null; then
	# shellcheck disable=SC2086 # a list
	systemctl --root="${DPKG_ROOT:-/}" disable $units || :
fi
metrics=${DPKG_ROOT:-}/var/lib/node_exporter/textfile_collector
rm -f "$metrics/cni_ipvlan_vpc.prom" "$metrics/cni_ipvlan_vpc_doctor.prom"
