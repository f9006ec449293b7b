#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# Linux 6.18, github.com/vishvananda/netlink v1.3.1, host-device of containernetworking/plugins v1.10.0: alternative names of links.
#
# A good guess: an alternative name, such as udev gives, is a second name of the link. A program that takes the first name also takes an
# alternative name, or refuses it with an error. A rule with `iif` and an alternative name matches as long as the link has this name. A link
# can take one of its own alternative names as its first name, because no other link has this name.
#
# What happens: the kernel takes an alternative name in a rule, and the rule matches. But a rename of the link detaches the rule for good:
# the kernel then compares only the first name. The link still has the alternative name, also after a rename back, and `ip rule` shows
# "[detached]". netlink.LinkByName and a socket's bind take an alternative name. Go's net.InterfaceByName says that there is no such link. A
# link cannot be renamed to its own alternative name: "file exists". So host-device fails if it must move a link into a pod under an
# alternative name of this link. The script needs root, Go and ip(8).
set -euo pipefail

dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
cd "$dir"
GOBIN=$dir go install github.com/containernetworking/plugins/plugins/main/host-device@v1.10.0
printf 'module example.com/names\n\ngo 1.26\n\nrequire github.com/vishvananda/netlink v1.3.1\n' >go.mod
cat >main.go <<'EOF'
package main

import (
	"fmt"
	"net"
	"syscall"

	"github.com/vishvananda/netlink"
)

func main() {
	l, err := netlink.LinkByName("alt0")
	if err != nil {
		panic(err)
	}
	_, err = net.InterfaceByName("alt0")
	fmt.Printf("netlink.LinkByName: %s; net.InterfaceByName: %v\n", l.Attrs().Name, err)
	fd, _ := syscall.Socket(syscall.AF_INET, syscall.SOCK_DGRAM, 0)
	fmt.Println("bind a socket to alt0:", syscall.BindToDevice(fd, "alt0"))
	rule := netlink.NewRule()
	rule.IifName, rule.Type, rule.Priority = "alt0", 8, 10 // RTN_PROHIBIT
	fmt.Println("add a rule with iif alt0:", netlink.RuleAdd(rule))
	fmt.Println("rename to alt0:", netlink.LinkSetName(l, "alt0"))
}
EOF
go mod tidy >/dev/null 2>&1
go build -o probe .
cases() {
	look() { ip rule show pref 10; ip route get 203.0.113.1 from 192.0.2.2 iif v0 2>&1 | head -1 || :; }
	ip link set lo up && ip link add v0 type veth peer name v1 && ip link set v1 up && ip link set v0 up
	ip addr add 192.0.2.1/24 dev v0 && echo 1 >/proc/sys/net/ipv4/ip_forward && ip route add 203.0.113.0/24 dev lo
	ip link property add dev v0 altname alt0 && ./probe && look
	ip link set v0 down && ip link set v0 name w0 && ip link set w0 name v0 && ip link set v0 up && ip -o link show alt0 | grep -o 'altname .*'
	look
	touch pod && unshare --net=pod true
	CNI_COMMAND=ADD CNI_CONTAINERID=pod CNI_NETNS=$PWD/pod CNI_IFNAME=alt0 CNI_PATH=$PWD \
		./host-device <<<'{"cniVersion": "1.0.0", "name": "net", "type": "host-device", "device": "v0"}' | grep msg || :
}
export -f cases
uname -sr
unshare --net --mount bash -euo pipefail -c cases | sed 's/ $//' | tee seen
diff - seen <<'EOF'
netlink.LinkByName: v0; net.InterfaceByName: route ip+net: no such network interface
bind a socket to alt0: <nil>
add a rule with iif alt0: <nil>
rename to alt0: file exists
10:	from all iif alt0 prohibit
RTNETLINK answers: Permission denied
altname alt0
10:	from all iif alt0 [detached] prohibit
203.0.113.1 from 192.0.2.2 dev lo
    "msg": "failed to move link failed to rename host device \"v0\" to \"alt0\": file exists"
EOF
