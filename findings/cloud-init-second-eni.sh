#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# cloud-init 25.1.4, netplan 1.1.2, systemd-networkd 257 (Debian 13): an EC2 instance with two ENIs in one subnet. cloud-init converts the
# metadata of EC2, and netplan and networkd do the rest.
#
# A good guess: cloud-init gives the ENIs the metrics 100 and 200, so the node's own traffic leaves by the first ENI, from its first address.
# The second ENI has a table of its own, and rules for all its addresses. So each answer leaves by the ENI whose address it has.
#
# What happens: the second table has a default route for IPv4 only. An IPv6 packet from the second ENI's address falls through to the main
# table, and leaves by the first ENI. If the second ENI has secondary addresses, the metric does not count for them: their route of the
# subnet has metric 0, and wins. The node then talks to its whole subnet by the second ENI. The source is the address that is first as text
# (10.0.1.100 before 10.0.1.20), not the first of the metadata. The first ENI has no rule, so its answers to neighbours leave by the second
# ENI, too. EC2 drops packets whose source is not an address of the ENI (here, nft does). So neighbours cannot reach the node at its first
# address, but hosts in other subnets can. The script needs root, and Debian.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir" && mkdir -p state/lists/partial cache/archives/partial root/{dev,etc/ssl/certs,proc,sys,run,tmp,usr/{lib,lib64,sbin,bin}}
# shellcheck disable=SC2016 # apt replaces it
echo "deb $(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Label: Debian' | head -1) trixie main" >sources && touch status
options=(-qq -o Dir::Etc::SourceList="$dir/sources" -o Dir::Etc::SourceParts=- -o Dir::State="$dir/state"
	-o Dir::State::status="$dir/status" -o Dir::Cache="$dir/cache" -o APT::Sandbox::User=root -o APT::Install-Recommends=0)
apt-get "${options[@]}" update
apt-get "${options[@]}" install --download-only -y cloud-init=25.1.4-1+deb13u1 netplan-generator=1.1.2-7 systemd=257.13-1~deb13u1 \
	dnsmasq-base=2.91-1+deb13u2 nftables iputils-ping ca-certificates bash coreutils >log
for top in lib lib64 sbin bin; do ln -s "usr/$top" "root/$top"; done
for deb in cache/archives/*.deb; do dpkg-deb --fsys-tarfile "$deb" | tar -x -C root --keep-directory-symlink; done
printf '%s\n' root:x:0:0::/: systemd-network:x:998:998::/: >root/etc/passwd && printf '%s\n' root:x:0: systemd-network:x:998: >root/etc/group
echo 0123456789abcdef0123456789abcdef >root/etc/machine-id
cat root/usr/share/ca-certificates/mozilla/*.crt >root/etc/ssl/certs/ca-certificates.crt # an import of Python reads it
cat >root/tmp/convert.py <<'END'
import cloudinit.version, json, sys
from cloudinit.net import netplan
from cloudinit.sources.DataSourceEc2 import convert_ec2_metadata_network_config as convert
class Distro:
    network_renderer = netplan.Renderer({})
    class dhcp_client: dhcp_discovery = lambda nic, distro: {"routers": "10.0.1.1"}
def eni(number, v4, v6): return {"device-number": number, "local-ipv4s": v4, "subnet-ipv4-cidr-block": "10.0.1.0/24", "ipv6s": v6,
        "subnet-ipv6-cidr-blocks": "2001:db8:1:1::/64"}
second = ["10.0.1.6", "10.0.1.20", "10.0.1.100"] if sys.argv[1] == "several" else "10.0.1.6"
macs = {"02:00:00:00:00:01": eni("0", "10.0.1.5", "2001:db8:1:1::5"), "02:00:00:00:00:02": eni("1", second, "2001:db8:1:1::6")}
print("cloud-init", cloudinit.version.version_string(), file=sys.stderr)
print(json.dumps({"network": convert({"interfaces": {"macs": macs}}, Distro, dict(zip(macs, ["ens5", "ens6"])))}))
END
vpc() { ip netns exec vpc chroot root "$@"; }
cases() {
	mount -t proc none root/proc && mount -t sysfs -o ro none root/sys && mount --bind /dev root/dev && mount -t tmpfs none root/run
	mount -t tmpfs none /run && rm -rf root/tmp/{etc,run} && mkdir -p root/{tmp/etc/netplan,run/systemd}
	chroot root /usr/bin/python3 /tmp/convert.py "$1" >root/tmp/etc/netplan/a.yaml && chmod 600 root/tmp/etc/netplan/a.yaml
	chroot root /usr/libexec/netplan/generate --root-dir /tmp && cp -r root/tmp/run/systemd/network root/run/systemd/
	sed -i s/PermanentMAC/MAC/ root/run/systemd/network/*.network && chmod a+r root/run/systemd/network/* # veth has no permanent address
	ip netns add vpc && ip -n vpc link add subnet type bridge && ip -n vpc link set subnet up && ip -n vpc link set lo up
	for i in 1 2; do
		ip link add name ens$((4 + i)) address 02:00:00:00:00:0$i type veth peer name eni$i netns vpc && ip -n vpc link set eni$i master subnet up
		ip -n vpc neigh add 10.0.1.$((4 + i)) lladdr 02:00:00:00:00:0$i dev subnet
	done
	for ip in 10.0.1.{1,77}/24 10.9.9.9/32 2001:db8:1:1::1/64 2001:db8:9::9/128; do ip -n vpc addr add "$ip" dev subnet; done
	vpc nft 'table netdev ec2 {
		chain eni1 { type filter hook ingress device eni1 priority 0; ip saddr != {0.0.0.0, 10.0.1.5} drop; ip6 saddr 2001:db8:1:1::6 drop; }
		chain eni2 { type filter hook ingress device eni2 priority 0; ip saddr 10.0.1.5 drop; ip6 saddr 2001:db8:1:1::5 drop; }; }'
	vpc dnsmasq -d -C /dev/null -p 0 -i subnet -u root -l /run/leases --enable-ra --dhcp-range={10.0.1.2,2001:db8:1:1::},static \
		--dhcp-host=02:00:00:00:00:01,{10.0.1.5,[2001:db8:1:1::5]} --dhcp-host=02:00:00:00:00:02,{10.0.1.6,[2001:db8:1:1::6]} 2>/dev/null & dnsmasq=$!
	chroot root /usr/lib/systemd/systemd-networkd 2>/dev/null & networkd=$!
	for _ in {1..60}; do if [ "$(cat root/run/systemd/netif/links/* 2>/dev/null | grep -c STATE=configured)" = 2 ]; then break; else sleep 0.5; fi; done && sleep 3
	echo "second ENI with $1: node to 10.0.1.77: $(ip route get 10.0.1.77 | grep -oE 'dev.*src [^ ]*')"
	for pair in {10.0.1.77,10.9.9.9}-10.0.1.{5,6} 2001:db8:{1:1::1,9::9}-2001:db8:1:1::{5,6}; do
		vpc ping -n -c 1 -W 1 -I "${pair%-*}" "${pair#*-}" >/dev/null || echo "$pair: no answer"; done
	kill $dnsmasq $networkd && wait
}
export -f cases vpc && for what in one several; do unshare -nmp --fork --kill-child bash -euo pipefail -c "cases $what"; done | tee seen
diff - seen <<'END'
second ENI with one: node to 10.0.1.77: dev ens5 src 10.0.1.5
2001:db8:9::9-2001:db8:1:1::6: no answer
second ENI with several: node to 10.0.1.77: dev ens6 src 10.0.1.100
10.0.1.77-10.0.1.5: no answer
2001:db8:9::9-2001:db8:1:1::6: no answer
END
