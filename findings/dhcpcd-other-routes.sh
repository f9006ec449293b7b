#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# dhcpcd 10.1.0 (Debian 13, with dnsmasq 2.91, Linux 6.18): routes of other programs on a link that gets a lease.
#
# A good guess: dhcpcd adds its address, and routes with its own metric and `proto dhcp`. A route of another program with a lower metric stays,
# and stays preferred: this is what metrics are for. After a release, the link is as before. A link with two addresses of one subnet keeps the
# route to the subnet while it has one of them.
#
# What happens: for each route that dhcpcd adds, it deletes another program's route of the main table with the same destination and link, with
# another gateway and metric, too. It takes the one with the lowest metric, so the default route that the node used is gone. Routes of the same
# link with higher metrics stay. So do routes of other links and tables, and routes that the other program adds later. The kernel's own route to
# the subnet is among the deleted ones: it belongs to an address that dhcpcd never made. After a release, this address is still there, and
# the node sends packets for its neighbours to the gateway. The debug log tells of added routes only. The script needs root, and Debian.
set -euo pipefail

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir" && mkdir -p state/lists/partial cache/archives/partial root/{etc,proc,run,sys,dev,tmp,usr/{lib,lib64,sbin,bin}} && touch status
# shellcheck disable=SC2016 # apt replaces it
echo "deb $(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Label: Debian' | head -1) trixie main" >sources
options=(-qq -o Dir::Etc::SourceList="$dir/sources" -o Dir::Etc::SourceParts=- -o Dir::State="$dir/state" -o APT::Install-Recommends=0
	-o Dir::State::status="$dir/status" -o Dir::Cache="$dir/cache" -o APT::Sandbox::User=root)
apt-get "${options[@]}" update
apt-get "${options[@]}" install --download-only -y dhcpcd-base=1:10.1.0-11+deb13u5 dnsmasq-base=2.91-1+deb13u2 >log
for top in lib lib64 sbin bin; do ln -s "usr/$top" "root/$top"; done
for deb in cache/archives/*.deb; do dpkg-deb --fsys-tarfile "$deb" | tar -x -C root --keep-directory-symlink; done
echo root:x:0:0::/: >root/etc/passwd && mkdir -p root/var/lib/dhcpcd
cases() {
	mount -t tmpfs none /run && mount -t proc none root/proc && mount -t sysfs none root/sys && mount --bind /dev root/dev
	local server dnsmasq dhcpcd net
	unshare --net sleep 100 & server=$!
	until [ "$(readlink /proc/$server/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.05; done
	ip link add ens5 type veth peer name ens5 netns $server && ip link add ens6 type veth peer name far
	nsenter -n -t $server ip addr add 10.0.1.1/24 dev ens5 && nsenter -n -t $server ip link set ens5 up
	nsenter -n -t $server chroot root /usr/sbin/dnsmasq -k --user=root --port=0 --dhcp-range=10.0.1.50,10.0.1.50,255.255.255.0,10m \
		--dhcp-option=121,203.0.113.0/24,10.0.1.1,0.0.0.0/0,10.0.1.1 --dhcp-leasefile=/run/leases --pid-file= --log-facility=/run/log & dnsmasq=$!
	ip link set ens5 up && ip link set ens6 up && ip link set far up && ip addr add 10.0.1.20/24 dev ens5 && ip addr add 10.0.2.20/24 dev ens6
	ip route add default via 10.0.1.254 metric 50 && ip route add default via 10.0.1.254 metric 60 && ip route add default via 10.0.2.1 metric 70
	ip route add 203.0.113.0/24 via 10.0.1.254 && ip route add 198.51.100.0/24 via 10.0.1.254 && ip route add default via 10.0.1.254 table 100
	show() {
		echo "$1: $(ip -4 addr show dev ens5 | sed -nE 's/.* inet ([^ ]*).*/\1/p' | paste -sd ' ')"
		for net in default 10.0.1.0/24 203.0.113.0/24; do echo "   $net: $(ip route show $net | sed -E "s|^$net ||; s/ *$//" | paste -sd ';')"; done
		echo "   198.51.100.0/24: $(ip route show 198.51.100.0/24 | cut -d ' ' -f 2-), default of table 100: $(ip route show table 100 default)"
		echo "   to a neighbour: $( (ip route get 10.0.1.9 2>&1 || :) | head -1 | sed 's/uid.*//')"
	}
	show before
	chroot root /usr/sbin/dhcpcd -4 -B -d --noarp --nodelay -c /none ens5 >messages 2>&1 & dhcpcd=$!
	for _ in {1..100}; do if ip route show proto dhcp | grep 203 >/dev/null; then break; fi; sleep 0.2; done
	sleep 1 && show "with a lease" && grep -E '(add|delet|chang)ing.* route' messages
	kill -ALRM $dhcpcd && wait $dhcpcd || :
	show released && kill $dnsmasq $server
}
export -f cases && chroot root /usr/sbin/dhcpcd --version | head -1
unshare --net --mount bash -euo pipefail -c cases | sed 's/ *$//' | tee seen
diff - seen <<'EOF'
before: 10.0.1.20/24
   default: via 10.0.1.254 dev ens5 metric 50;via 10.0.1.254 dev ens5 metric 60;via 10.0.2.1 dev ens6 metric 70
   10.0.1.0/24: dev ens5 proto kernel scope link src 10.0.1.20
   203.0.113.0/24: via 10.0.1.254 dev ens5
   198.51.100.0/24: via 10.0.1.254 dev ens5 , default of table 100: default via 10.0.1.254 dev ens5
   to a neighbour: 10.0.1.9 dev ens5 src 10.0.1.20
with a lease: 10.0.1.20/24 10.0.1.50/24
   default: via 10.0.1.254 dev ens5 metric 60;via 10.0.2.1 dev ens6 metric 70;via 10.0.1.1 dev ens5 proto dhcp src 10.0.1.50 metric 1002
   10.0.1.0/24: dev ens5 proto dhcp scope link src 10.0.1.50 metric 1002
   203.0.113.0/24: via 10.0.1.1 dev ens5 proto dhcp src 10.0.1.50 metric 1002
   198.51.100.0/24: via 10.0.1.254 dev ens5 , default of table 100: default via 10.0.1.254 dev ens5
   to a neighbour: 10.0.1.9 dev ens5 src 10.0.1.50
ens5: adding route to 10.0.1.0/24
ens5: adding route to 203.0.113.0/24 via 10.0.1.1
ens5: adding default route via 10.0.1.1
released: 10.0.1.20/24
   default: via 10.0.1.254 dev ens5 metric 60;via 10.0.2.1 dev ens6 metric 70
   10.0.1.0/24:
   203.0.113.0/24:
   198.51.100.0/24: via 10.0.1.254 dev ens5 , default of table 100: default via 10.0.1.254 dev ens5
   to a neighbour: 10.0.1.9 via 10.0.1.254 dev ens5 src 10.0.1.20
EOF
