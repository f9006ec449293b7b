#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# netplan 1.1.2, systemd-networkd 257 (Debian 13): tables, marks and priorities from 2147483648 on.
#
# A good guess: netplan checks these numbers of 32 bits, and writes them for both renderers. networkd and NetworkManager then make the same
# routes and rules. If a number is too large, `netplan generate` fails.
#
# What happens: for NetworkManager the numbers are right. For networkd, netplan writes them as negative numbers: `mark: 2147483649` becomes
# FirewallMark=-2147483647. It succeeds. networkd warns of the line, and drops the whole route or rule. It makes the address, and says that
# the link is configured and online. So a node whose marks use the highest bit has no rule for them, and no program reports a failure. The
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
apt-get "${options[@]}" install --download-only -y netplan-generator=1.1.2-7 systemd=257.13-1~deb13u1 iproute2=6.15.0-1 bash coreutils >log
for top in lib lib64 sbin bin; do ln -s "usr/$top" "root/$top"; done
for deb in cache/archives/*.deb; do dpkg-deb --fsys-tarfile "$deb" | tar -x -C root --keep-directory-symlink; done
echo 0123456789abcdef0123456789abcdef >root/etc/machine-id
echo 'systemd-network:x:998:998::/:/bin/false' >root/etc/passwd && echo 'systemd-network:x:998:' >root/etc/group
cases() {
	ip() { chroot root /usr/sbin/ip "$@"; }
	mount -t proc none root/proc && mount -t sysfs -o ro none root/sys && mount -t tmpfs none root/run && mount --bind /dev root/dev
	for renderer in NetworkManager networkd; do
		mkdir -p "root/tmp/$renderer/etc/netplan"
		cat >"root/tmp/$renderer/etc/netplan/a.yaml" <<END
network:
  renderer: $renderer
  ethernets:
    eth1:
      addresses: [10.0.1.5/24]
      routes:
      - {to: default, via: 10.0.1.1, table: 100}
      - {to: default, via: 10.0.1.1, table: 3000000000}
      routing-policy:
      - {from: 10.0.1.5, table: 100, priority: 50}
      - {mark: 2147483649, to: 0.0.0.0/0, table: 100, priority: 60}
      - {from: 10.0.1.6, table: 3000000000, priority: 70}
      - {from: 10.0.1.7, table: 100, priority: 3000000000}
END
		chmod 600 "root/tmp/$renderer/etc/netplan/a.yaml"
		chroot root /usr/libexec/netplan/generate --root-dir "/tmp/$renderer" && echo "generate for $renderer: success"
	done
	grep -hE '^rout.*(mark|3000000000)' root/tmp/NetworkManager/run/NetworkManager/system-connections/*
	grep -hE '=-' root/tmp/networkd/run/systemd/network/*.network
	mkdir -p root/run/systemd/network && install -m 644 root/tmp/networkd/run/systemd/network/*.network root/run/systemd/network
	ip link add eth1 type veth peer name peer && ip link set peer up
	chroot root /usr/lib/systemd/systemd-networkd 2>/dev/null &
	for _ in {1..60}; do if grep -qs ADMIN_STATE=configured root/run/systemd/netif/links/*; then break; else sleep 0.5; fi; done
	grep -hE '^(ADMIN|ONLINE)_STATE=(configured|online)' root/run/systemd/netif/links/*
	ip rule | grep -v 'from all lookup' | tr '\t' ' ' && ip -4 route show table all type unicast
}
export -f cases
unshare --net --mount --pid --fork bash -euo pipefail -c cases | sed 's/ $//' | tee seen
diff - seen <<'EOF'
generate for NetworkManager: success
generate for networkd: success
route2_options=table=3000000000
routing-rule2=priority 60 to 0.0.0.0/0 fwmark 2147483649 table 100
routing-rule3=priority 70 from 10.0.1.6 table 3000000000
routing-rule4=priority 3000000000 from 10.0.1.7 table 100
Table=-1294967296
FirewallMark=-2147483647
Table=-1294967296
Priority=-1294967296
ADMIN_STATE=configured
ONLINE_STATE=online
50: from 10.0.1.5 lookup 100 proto static
default via 10.0.1.1 dev eth1 table 100 proto static
10.0.1.0/24 dev eth1 proto kernel scope link src 10.0.1.5
EOF
