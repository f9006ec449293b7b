#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# Linux 6.18, iproute2 6.1.0 (Debian 12) and 6.15.0 (Debian 13), github.com/vishvananda/netlink v1.3.1: weights of next hops above 256.
#
# A good guess: a group of next hops has two members, with the weights 257 and 256. So each gets about half of the packets. Each tool that
# lists the group or a route by it shows these weights, or fails, if it cannot show them. The listing, written again, shares packets as before.
#
# What happens: this kernel has 16 bits for a weight. The upper 8 bits are in a field of the group that is reserved in older headers.
# A listing of routes has 8 bits for a weight, and the kernel cuts it there. So `ip route` of any version and RouteList show the weights 1 and
# 256 for this group. iproute2 6.1 does not know the new field, and shows 1 and 256 for the group, too. When one of them writes what it
# has listed, almost all packets go to the second next hop. There is no error. The script needs root, Go, and Debian 12 or later.
set -euo pipefail

dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
cd "$dir" && mkdir -p state/lists/partial cache/archives/partial root/old root/usr/{lib,lib64,sbin,bin}
# shellcheck disable=SC2016 # apt replaces it
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Label: Debian' | head -1)
echo -e "deb $mirror bookworm main\ndeb $mirror trixie main" >sources
options=(-qq -o Dir::Etc::SourceList="$dir/sources" -o Dir::Etc::SourceParts=- -o Dir::State="$dir/state"
	-o Dir::State::status=/dev/null -o Dir::Cache="$dir/cache" -o APT::Sandbox::User=root)
apt-get "${options[@]}" update
apt-get "${options[@]}" download iproute2=6.1.0-3 iproute2=6.15.0-1 libbpf1 libbsd0 libc6 libcap2 libelf1t64 libmd0 libmnl0 libpcre2-8-0 \
	libselinux1 libzstd1 zlib1g
dpkg -x iproute2_6.1.0*.deb root/old && rm iproute2_6.1.0*.deb
for top in lib lib64 sbin bin; do ln -s "usr/$top" "root/$top"; done
for deb in *.deb; do dpkg-deb --fsys-tarfile "$deb" | tar -x -C root --keep-directory-symlink; done
printf 'module example.com/weights\n\ngo 1.26\n\nrequire github.com/vishvananda/netlink v1.3.1\n' >go.mod
cat >main.go <<'END'
package main

import "fmt"
import "github.com/vishvananda/netlink"

func main() {
	routes, err := netlink.RouteList(nil, netlink.FAMILY_V4)
	for _, r := range routes {
		if len(r.MultiPath) > 1 {
			err = netlink.RouteReplace(&r)
			fmt.Println("RouteList:", r.MultiPath[0].Hops+1, r.MultiPath[1].Hops+1, "RouteReplace:", err)
		}
	}
}
END
GOFLAGS=-mod=mod go build -o probe . 2>/dev/null && go list -m github.com/vishvananda/netlink
cases() {
	ip12() { chroot "$dir/root" /old/bin/ip "$@" 2>/dev/null; }
	ip13() { chroot "$dir/root" /bin/ip "$@" 2>/dev/null; }
	share() { # of 200 destinations
		local i first
		first=$(for i in {1..200}; do echo "route get 10.99.0.$i"; done | ip13 -batch - | grep -c 10.0.5.2 || :)
		echo "$1: the first next hop gets $([ "$first" -gt 60 ] && echo 'about half' || echo 'almost nothing')"
	}
	echo "$(ip12 -V); $(ip13 -V)"
	ip13 link add ens5 type veth peer name peer && ip13 link set peer up && ip13 link set ens5 up && ip13 addr add 10.0.5.1/24 dev ens5
	ip13 nexthop add id 1 via 10.0.5.2 dev ens5 && ip13 nexthop add id 2 via 10.0.5.3 dev ens5 && ip13 nexthop add id 9 group 1,257/2,256
	ip13 route add 10.99.0.0/16 nhid 9
	for tool in ip13 ip12; do
		echo "$tool: $($tool nexthop show id 9)route: $($tool route show 10.99.0.0/16 | grep -oE 'weight [0-9]+' | paste -sd ' ')"
	done
	share 'at first'
	ip12 nexthop show id 9 | sed 's/^/nexthop replace /' | ip12 -batch - && share 'ip12 nexthop replace'
	ip13 nexthop replace id 9 group 1,257/2,256 && share 'as at first'
	./probe && share RouteReplace
}
export -f cases && export dir
unshare --net bash -euo pipefail -c cases | sed 's/ $//' | tee seen
diff - seen <<'END'
ip utility, iproute2-6.1.0, libbpf 1.1.0; ip utility, iproute2-6.15.0, libbpf 1.5.0
ip13: id 9 group 1,257/2,256 route: weight 1 weight 256
ip12: id 9 group 1/2,256 route: weight 1 weight 256
at first: the first next hop gets about half
ip12 nexthop replace: the first next hop gets almost nothing
as at first: the first next hop gets about half
RouteList: 1 256 RouteReplace: <nil>
RouteReplace: the first next hop gets almost nothing
END
