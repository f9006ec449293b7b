#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# systemd-networkd 257 (Debian 13, Linux 6.18): what another program made on a link that networkd configures.
#
# A good guess: with ManageForeignRoutes=no and ManageForeignRoutingPolicyRules=no, networkd leaves what another program made on the link, as
# long as no .network file says otherwise. A restart, for example by an update of the package, changes nothing.
#
# What happens: there is no such option for addresses and neighbours. At each start, networkd removes those that its files do not name, also
# permanent neighbours. So a restart cuts a pod that the node reaches by a permanent neighbour. If the link is new to networkd, the last
# foreign address goes before networkd's own comes. The kernel then drops all IPv4 routes of the link, so ManageForeignRoutes=no saves none.
# With KeepConfiguration=static in the .network file, all stays. When the carrier goes and comes back, the foreign ones stay. But networkd
# removes its own address, and adds it again behind the foreign one: new connections of the node then come from the foreign address. The
# script needs root, and Debian.
set -euo pipefail

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir" && mkdir -p state/lists/partial cache/archives/partial root/{dev,etc,proc,sys,run,tmp,usr/{lib,lib64,sbin,bin}}
# shellcheck disable=SC2016 # apt replaces it
echo "deb $(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Label: Debian' | head -1) trixie main" >sources && touch status
options=(-qq -o Dir::Etc::SourceList="$dir/sources" -o Dir::Etc::SourceParts=- -o Dir::State="$dir/state"
	-o Dir::State::status="$dir/status" -o Dir::Cache="$dir/cache" -o APT::Sandbox::User=root -o APT::Install-Recommends=0)
apt-get "${options[@]}" update
apt-get "${options[@]}" install --download-only -y systemd=257.13-1~deb13u1 bash coreutils >log
for top in lib lib64 sbin bin; do ln -s "usr/$top" "root/$top"; done
for deb in cache/archives/*.deb; do dpkg-deb --fsys-tarfile "$deb" | tar -x -C root --keep-directory-symlink; done
echo 0123456789abcdef0123456789abcdef >root/etc/machine-id
echo 'systemd-network:x:998:998::/:/bin/false' >root/etc/passwd && echo 'systemd-network:x:998:' >root/etc/group
chroot root /usr/lib/systemd/systemd-networkd --version | head -1
# start: returns when networkd has configured the link.
start() {
	rm -rf root/run/systemd/netif && chroot root /usr/lib/systemd/systemd-networkd 2>/dev/null &
	pid=$!
	for _ in {1..60}; do if grep -qs ADMIN_STATE=configured root/run/systemd/netif/links/*; then break; else sleep 0.5; fi; done
	sleep 0.5
}
foreign() {
	ip addr add 10.0.1.50/24 dev ens5 && ip neigh add 10.0.1.77 lladdr 02:00:00:00:00:77 dev ens5 nud permanent
	ip rule add from 10.0.1.50 lookup 101 pref 50 && ip route add default via 10.0.1.1 dev ens5 table 101
}
show() {
	{ ip -4 -br addr show dev ens5 | grep -oE '10.*' && ip rule | grep 101
		ip route show table 101 2>/dev/null || :
		ip neigh show dev ens5 nud permanent | sed 's/ lladdr.*/ permanent/' && ip route get 10.0.1.9 | grep -o 'src [^ ]*'; } |
		tr '\t' ' ' | sed 's/ *$//' | paste -sd ';' | sed "s/^/$1: /; s/;/; /g"
}
cases() {
	mount -t proc none root/proc && mount -t sysfs -o ro none root/sys && mount -t tmpfs none root/run && mount --bind /dev root/dev
	mkdir -p root/run/systemd/{network,networkd.conf.d}
	printf '[Network]\nManageForeign%s=no\n' Routes RoutingPolicyRules >root/run/systemd/networkd.conf.d/keep.conf
	printf '[Match]\nName=ens5\n[Network]\nAddress=10.0.1.5/24\nLinkLocalAddressing=no\n%s\n' "$2" >root/run/systemd/network/ens5.network
	ip link add ens5 type veth peer name peer && ip link set peer up && ip link set ens5 up
	echo "$1${2:+, $2}"
	if [ "$1" = new ]; then foreign; else start && foreign; fi
	show before
	if [ "$1" = restarted ]; then kill "$pid"; wait "$pid" || :; fi
	if [ "$1" = carrier ]; then ip link set peer down && sleep 1 && ip link set peer up && sleep 4; else start; fi
	show after && kill "$pid"
	wait "$pid" || :
}
export -f cases start foreign show
for what in new restarted carrier; do unshare -nmp --fork bash -euo pipefail -c "cases $what ''"; done | tee seen
unshare -nmp --fork bash -euo pipefail -c 'cases restarted KeepConfiguration=static' | tee -a seen
diff - seen <<'END'
new
before: 10.0.1.50/24; 50: from 10.0.1.50 lookup 101; default via 10.0.1.1 dev ens5; 10.0.1.77 permanent; src 10.0.1.50
after: 10.0.1.5/24; 50: from 10.0.1.50 lookup 101; src 10.0.1.5
restarted
before: 10.0.1.5/24 10.0.1.50/24; 50: from 10.0.1.50 lookup 101; default via 10.0.1.1 dev ens5; 10.0.1.77 permanent; src 10.0.1.5
after: 10.0.1.5/24; 50: from 10.0.1.50 lookup 101; default via 10.0.1.1 dev ens5; src 10.0.1.5
carrier
before: 10.0.1.5/24 10.0.1.50/24; 50: from 10.0.1.50 lookup 101; default via 10.0.1.1 dev ens5; 10.0.1.77 permanent; src 10.0.1.5
after: 10.0.1.50/24 10.0.1.5/24; 50: from 10.0.1.50 lookup 101; default via 10.0.1.1 dev ens5; 10.0.1.77 permanent; src 10.0.1.50
restarted, KeepConfiguration=static
before: 10.0.1.5/24 10.0.1.50/24; 50: from 10.0.1.50 lookup 101; default via 10.0.1.1 dev ens5; 10.0.1.77 permanent; src 10.0.1.5
after: 10.0.1.5/24 10.0.1.50/24; 50: from 10.0.1.50 lookup 101; default via 10.0.1.1 dev ens5; 10.0.1.77 permanent; src 10.0.1.5
END
