#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# containernetworking/plugins v1.10.0, on Linux 6.18: CHECK of the plugin tuning, directly after its ADD.
#
# A good guess: CHECK after a successful ADD, with nothing changed in between, succeeds. Both read and write the same files of /proc/sys.
#
# What happens: CHECK compares the text of the configuration with the text of the file. The kernel does not return the text that was
# written: it puts a tab between two numbers. So for ranges of ports, ranges of groups and sizes of TCP's buffers, each CHECK fails. Only a
# configuration with a tab passes, such as "1024\t60999". `0x2` comes back as 2, `0600` as 384, and a port that a range contains is gone
# from the list. A runtime that uses CHECK reports a healthy pod as broken. With other runtimes, the same configuration works for years. The
# script needs root and Go.
set -euo pipefail

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
GOBIN=$dir go install github.com/containernetworking/plugins/plugins/meta/tuning@v1.10.0
cases() {
	mount -t tmpfs none /run && mkdir /run/netns && touch /run/netns/pod && unshare --net=/run/netns/pod true
	export CNI_CONTAINERID=pod CNI_NETNS=/run/netns/pod CNI_IFNAME=lo CNI_PATH=$PWD
	while IFS='=' read -r name value; do
		conf='{"cniVersion": "1.0.0", "name": "net", "type": "tuning", "dataDir": "'$PWD'/data", "sysctl": {"'$name'": "'$value'"}, "prevResult": {
			"cniVersion": "1.0.0", "interfaces": [{"name": "lo", "mac": "00:00:00:00:00:00", "sandbox": "/run/netns/pod"}]}}'
		CNI_COMMAND=ADD ./tuning <<<"$conf" >/dev/null && echo "$name=$value: added"
		(CNI_COMMAND=CHECK ./tuning <<<"$conf" || :) | sed -n 's/.*"msg": "Error: .*current/ CHECK fails: current/p'
	done
}
export -f cases
go version -m tuning | grep -o 'containernetworking/plugins.v[^ ]*' | cut -f 1,2
unshare --net --mount bash -euo pipefail -c cases <<'END' | tee seen
net.ipv4.ip_local_port_range=1024 60999
net.ipv4.ip_local_port_range=1024\t60999
net.ipv4.tcp_rmem=4096 131072 6291456
net.ipv4.ping_group_range=0 2147483647
net.ipv4.conf.all.arp_announce=0x2
net.ipv4.tcp_keepalive_time=0600
net.ipv4.ip_local_reserved_ports=8080,30000-30002,30001
net.core.somaxconn=4096
END
diff - seen <<'END'
net.ipv4.ip_local_port_range=1024 60999: added
 CHECK fails: current value is 1024\t60999"
net.ipv4.ip_local_port_range=1024\t60999: added
net.ipv4.tcp_rmem=4096 131072 6291456: added
 CHECK fails: current value is 4096\t131072\t6291456"
net.ipv4.ping_group_range=0 2147483647: added
 CHECK fails: current value is 0\t2147483647"
net.ipv4.conf.all.arp_announce=0x2: added
 CHECK fails: current value is 2"
net.ipv4.tcp_keepalive_time=0600: added
 CHECK fails: current value is 384"
net.ipv4.ip_local_reserved_ports=8080,30000-30002,30001: added
 CHECK fails: current value is 8080,30000-30002"
net.core.somaxconn=4096: added
END
