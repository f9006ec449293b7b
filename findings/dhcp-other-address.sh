#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# dhcp of containernetworking/plugins v1.10.0, dnsmasq 2.91 (Debian 13): the server loses its leases, and refuses to renew a pod's address.
#
# A good guess: the daemon of the plugin treats this like the end of a lease. It sets the link down, or it gives the pod the address of its new
# lease. At least CHECK fails, as the pod has no lease for its address. DEL gives the lease back.
#
# What happens: the daemon tries until the time to rebind (T2), and then gets a lease for another address. It renews this lease from then on,
# and says so in its log only. The pod keeps the old address, which the server has given to another pod meanwhile. CHECK succeeds: it asks
# whether the daemon has a lease, and does not compare the addresses. DEL succeeds, but does not give the lease back: the daemon sends the
# release from the address of the lease, which the pod never had. The script needs root, Go, ip(8), and Debian.
set -euo pipefail

dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
cd "$dir" && mkdir -p state/lists/partial cache/archives/partial root/{dev,etc,run,tmp,usr/{lib,lib64,sbin,bin}}
# shellcheck disable=SC2016 # apt replaces it
echo "deb $(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Label: Debian' | head -1) trixie main" >sources && touch status
options=(-qq -o Dir::Etc::SourceList="$dir/sources" -o Dir::Etc::SourceParts=- -o Dir::State="$dir/state"
	-o Dir::State::status="$dir/status" -o Dir::Cache="$dir/cache" -o APT::Sandbox::User=root -o APT::Install-Recommends=0)
apt-get "${options[@]}" update
apt-get "${options[@]}" install --download-only -y dnsmasq-base=2.91-1+deb13u2 >log
for top in lib lib64 sbin bin; do ln -s "usr/$top" "root/$top"; done
for deb in cache/archives/*.deb; do dpkg-deb --fsys-tarfile "$deb" | tar -x -C root --keep-directory-symlink; done
echo 'root:x:0:0::/:/bin/false' >root/etc/passwd && echo 'root:x:0:' >root/etc/group
CGO_ENABLED=0 GOBIN=$dir go install github.com/containernetworking/plugins/plugins/ipam/dhcp@v1.10.0
go version -m dhcp | grep -oE 'networking/plugins\sv[0-9.]+' | tr '\t' ' '
cases() {
	# server: starts without leases. T1 (58) is 4 s, T2 (59) 8 s.
	server() {
		rm -f root/tmp/leases
		chroot root /usr/sbin/dnsmasq --no-daemon --port=0 --interface=br0 --user=root --group=root --no-ping \
			--dhcp-range=10.0.1.50,10.0.1.60,120 --dhcp-sequential-ip --dhcp-authoritative --dhcp-leasefile=/tmp/leases \
			--dhcp-option=58,4 --dhcp-option=59,8 2>/dev/null &
		server=$! && sleep 1
	}
	# call COMMAND POD: as a plugin that delegates to dhcp
	call() {
		CNI_COMMAND=$1 CNI_CONTAINERID=$2 CNI_NETNS=/run/netns/$2 CNI_IFNAME=eth0 CNI_PATH=$PWD ./dhcp >said <<-END || :
			{"cniVersion": "1.0.0", "name": "n", "type": "bridge", "ipam": {"type": "dhcp", "daemonSocketPath": "/run/dhcp.sock"}}
		END
		echo "$1 $2: $(grep -oE '"(address|msg)": ".*"' said || echo success)"
		if [ "$1" = ADD ]; then ip -n "$2" addr add "$(grep -oP 'address": "\K[^"]*' said)" dev eth0; fi
	}
	mount -t tmpfs run /run && mount --bind /dev root/dev && ip link add br0 type bridge && ip link set br0 up && ip addr add 10.0.1.1/24 dev br0
	for pod in a b; do
		ip netns add $pod && ip link add host$pod type veth peer name eth0 netns $pod && ip link set host$pod master br0 up && ip -n $pod link set eth0 up
	done
	./dhcp daemon -socketpath /run/dhcp.sock -timeout 2s -resendmax 1s -resendtimeout 2s 2>daemon.log & daemon=$!
	server && call ADD a && kill "$server" && server && call ADD b && sleep 12
	grep -oE 'a/n/eth0: lease rebound|with Nak' daemon.log | uniq
	leases() { echo "leases: $(cut -d ' ' -f 3,5 root/tmp/leases | sed 's/ 00:61:.*/ a/; s/ 00:62:.*/ b/' | sort | paste -sd ';')"; }
	for pod in a b; do echo "$pod has $(ip -n $pod -4 -o addr show dev eth0 | grep -oE '10[0-9./]+' | head -1)"; done
	leases && call CHECK a && call DEL a && leases && grep -oE 'failed to release' daemon.log
	kill "$daemon" "$server"
}
export -f cases
unshare -nmp --mount-proc --fork --kill-child bash -euo pipefail -c cases | tee seen
diff - seen <<'END'
ADD a: "address": "10.0.1.50/24"
ADD b: "address": "10.0.1.50/24"
with Nak
a/n/eth0: lease rebound
a has 10.0.1.50/24
b has 10.0.1.50/24
leases: 10.0.1.50 b;10.0.1.51 a
CHECK a: success
DEL a: success
leases: 10.0.1.50 b;10.0.1.51 a
failed to release
END
