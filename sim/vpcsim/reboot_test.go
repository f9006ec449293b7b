// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package vpcsim_test

import (
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
)

// TestReboot changes everything on an instance that plugins change, and then reboots the instance. After the reboot,
// everything must be as before the changes.
func TestReboot(t *testing.T) {
	nltest.Need(t, "nftables")
	f := newFabric(t)
	node, host := run(t, f, "node", "subnet-dual"), run(t, f, "host", "subnet-dual")
	plug(t, node, 1)
	const look = `ip -br link | awk '{sub("@.*", "", $1); print $1, $3, $4}'; ip addr show scope global | grep -w inet6*
		for family in -4 -6; do ip $family rule; ip $family route show table all | grep -v fe80:: | sort; done
		nft list ruleset; cat /proc/sys/net/ipv4/ip_forward /proc/sys/net/ipv4/conf/all/rp_filter`
	before := nltest.Shell(t, node.NS, look)
	nltest.Shell(t, node.NS,
		`ip link set eth1 up; ip addr add 192.0.2.1/24 dev eth1; ip link add v type veth peer w; ip link set v up
		for family in -4 -6; do
			ip $family rule add pref 600 iif v table 300; ip $family route add default dev v table 300
			ip $family route add unreachable default metric 9 table 301
		done
		nft add table inet t; sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.rp_filter=1`)
	if err := node.Reboot(); err != nil {
		t.Fatal(err)
	}
	if after := nltest.Shell(t, node.NS, look); after != before {
		t.Errorf("after a reboot:\n%s\nwant\n%s", after, before)
	}
	meet(t, host.Namespace, node.Namespace, node.Addr(), host.Addr(), "tcp", "udp")
	meet(t, host.Namespace, node.Namespace, node.Addr6(), host.Addr6(), "tcp", "udp")
}
