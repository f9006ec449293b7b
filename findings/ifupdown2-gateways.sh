#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# ifupdown2 3.0.0 (Debian 13): the gateways of a node with two ENIs.
#
# A good guess: `ifquery --check` compares the interfaces file with the node, so it fails if a default route is missing. `ifreload` makes
# the node as the file says: if the file has other metrics, the default routes have them afterwards, and the old routes are gone. If two
# gateways need the same route, ifup fails, as the ifup of Debian's ifupdown does.
#
# What happens: `ifquery --check` does not look at gateways. It passes on a node without any default route. After a new metric, ifreload adds
# a route, and leaves the old one. So an operator raises the metric of ens5, and all traffic still leaves by ens5. If the metrics of both
# ENIs are swapped, nothing changes at all. If the gateway of ens5 goes, only one of its routes goes. If both ENIs have no metric, ifup makes
# only the first route. Each command succeeds, without a message. The script needs root, and Debian.
set -euo pipefail

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir" && mkdir -p state/lists/partial cache/archives/partial root/{dev,etc/network,proc,sys,run,tmp,usr/{lib,lib64,sbin,bin}}
# shellcheck disable=SC2016 # apt replaces it
echo "deb $(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Label: Debian' | head -1) trixie main" >sources && touch status
options=(-qq -o Dir::Etc::SourceList="$dir/sources" -o Dir::Etc::SourceParts=- -o Dir::State="$dir/state"
	-o Dir::State::status="$dir/status" -o Dir::Cache="$dir/cache" -o APT::Sandbox::User=root -o APT::Install-Recommends=0)
apt-get "${options[@]}" update
apt-get "${options[@]}" install --download-only -y ifupdown2=3.0.0-1.3 bash coreutils dash mount procps >log
for top in lib lib64 sbin bin; do ln -s "usr/$top" "root/$top"; done
for deb in cache/archives/*.deb; do dpkg-deb --fsys-tarfile "$deb" | tar -x -C root --keep-directory-symlink; done
chmod +x root/usr/share/ifupdown2/__main__.py # as the package's own script does
# run COMMAND...: in the root. Of what it prints to stderr, only the messages of ifupdown2 count.
run() {
	local status=0
	chroot root "$@" >out 2>err || status=$?
	echo "$*: status $status$(grep -E '^(warning|error)' err || :)"
}
# file METRIC METRIC: the interfaces file. An empty metric is none, and - is no gateway.
file() {
	printf 'auto lo\niface lo inet loopback\n'
	for i in 5 6; do
		printf 'auto ens%d\niface ens%d inet static\n\taddress 10.0.1.%d/24\n' $i $i $i
		if [ "$1" != - ]; then printf '\tgateway 10.0.1.1\n'; fi
		if [ "${1:--}" != - ]; then printf '\tmetric %s\n' "$1"; fi
		shift
	done
}
routes() { ip route show default | sed 's/.*dev //; s/proto kernel //; s/ onlink//; s/ $//' | paste -sd ',' | sed 's/^$/none/; s/^/  default routes: /'; }
cases() {
	export PYTHONWARNINGS=ignore
	mount -t proc none root/proc && mount -t sysfs none root/sys && mount -t tmpfs none root/run && mount --bind /dev root/dev && mkdir root/run/network
	for i in 5 6; do ip link add ens$i type veth peer name peer$i && ip link set peer$i up; done
	file '' '' >root/etc/network/interfaces && run ifup -a && routes
	ip route del default && run ifquery --check -a && echo "$(grep -c pass out) times pass" && routes
	for metrics in '100 200' '200 100' '300 200' '- 200'; do
		# shellcheck disable=SC2086 # two words
		file $metrics >root/etc/network/interfaces && echo "metrics $metrics in the file:" && run ifreload -a && routes
	done
}
export -f cases file routes run
grep -oP "^__version__ = '\K[^']*" root/usr/share/ifupdown2/__init__.py
unshare -nmp --fork bash -euo pipefail -c cases | tee seen
diff - seen <<'END'
ifup -a: status 0
  default routes: ens5
ifquery --check -a: status 0
4 times pass
  default routes: none
metrics 100 200 in the file:
ifreload -a: status 0
  default routes: ens5 metric 100,ens6 metric 200
metrics 200 100 in the file:
ifreload -a: status 0
  default routes: ens5 metric 100,ens6 metric 200
metrics 300 200 in the file:
ifreload -a: status 0
  default routes: ens5 metric 100,ens6 metric 200,ens5 metric 300
metrics - 200 in the file:
ifreload -a: status 0
  default routes: ens6 metric 200,ens5 metric 300
END
