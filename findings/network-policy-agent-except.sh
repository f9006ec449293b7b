#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# github.com/aws/aws-network-policy-agent v1.4.3, which turns the rules of a pod's network policies into a table of prefixes for eBPF.
#
# A good guess: rules add up, as Kubernetes documents it. An address is allowed on a port if one rule allows it. "except" limits its own
# rule only. The same rules give the same table each time. A subnet may have 24 ports, as EKS documents it.
#
# What happens: the table denies the whole excepted prefix, if no rule is for exactly this prefix. One rule allows DNS to all addresses, and
# another rule allows HTTPS to all addresses except 10.0.0.0/8. Then a pod in such a VPC cannot ask its DNS server. If the exception is in a
# rule for another prefix, a third rule for port 80 of the excepted prefix brings DNS back. A rule gets the ports of rules for wider prefixes,
# too. Of more than 24 in sum, 24 stay, in the random order of a map, although each rule has only 15. No call fails. The script needs Go.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir" && printf 'module example.com/policy\n\ngo 1.26\n\nrequire github.com/aws/aws-network-policy-agent v1.4.3\n' >go.mod
cat >main.go <<'EOF'
package main

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"github.com/aws/aws-network-policy-agent/api/v1alpha1"
	fw "github.com/aws/aws-network-policy-agent/pkg/fwruleprocessor"
	core "k8s.io/api/core/v1"
)

func rule(prefix string, except []v1alpha1.NetworkAddress, port, last int32) fw.EbpfFirewallRules {
	r, tcp := fw.EbpfFirewallRules{IPCidr: v1alpha1.NetworkAddress(prefix), Except: except}, core.ProtocolTCP
	for ; port <= last; port++ {
		r.L4Info = append(r.L4Info, v1alpha1.Port{Protocol: &tcp, Port: new(port)})
	}
	return r
}

// allowed returns the ports of the longest prefix with the address, as the kernel looks it up.
func allowed(address string, rules ...fw.EbpfFirewallRules) (ports []uint32) {
	table, err := fw.NewFirewallRuleProcessor("192.0.2.1", "/32", false).ComputeMapEntriesFromEndpointRules(rules)
	if err != nil {
		panic(err)
	}
	longest, value := -1, []byte(nil)
	for key, v := range table {
		p := netip.PrefixFrom(netip.AddrFrom4([4]byte([]byte(key[4:]))), int(binary.LittleEndian.Uint32([]byte(key))))
		if p.Contains(netip.MustParseAddr(address)) && p.Bits() > longest {
			longest, value = p.Bits(), v
		}
	}
	for entry := range slices.Chunk(value, 12) {
		if binary.LittleEndian.Uint32(entry) == 6 {
			ports = append(ports, binary.LittleEndian.Uint32(entry[4:]))
		}
	}
	return slices.Sorted(slices.Values(ports))
}

func main() {
	dns, https := rule("0.0.0.0/0", nil, 53, 53), rule("0.0.0.0/0", []v1alpha1.NetworkAddress{"10.0.0.0/8"}, 443, 443)
	fmt.Println("10.1.2.3:", allowed("10.1.2.3", dns, https), "198.51.100.1:", allowed("198.51.100.1", dns, https))
	other := rule("10.0.0.0/8", []v1alpha1.NetworkAddress{"10.1.0.0/16"}, 443, 443)
	third := rule("10.1.0.0/16", nil, 80, 80)
	fmt.Println("exception in another prefix:", allowed("10.1.2.3", dns, other), "with a third rule:", allowed("10.1.2.3", dns, other, third))
	sets, more, many := map[string]bool{}, rule("10.0.0.0/8", nil, 1001, 1015), rule("10.1.0.0/16", nil, 2001, 2015)
	for range 100 {
		sets[fmt.Sprint(allowed("10.1.2.3", more, many))] = true
	}
	fmt.Printf("ports of two rules with 15 each: %d, the same each time: %v\n", len(allowed("10.1.2.3", more, many)), len(sets) == 1)
}
EOF
go mod tidy >/dev/null 2>&1 && go list -m github.com/aws/aws-network-policy-agent
go run . 2>log | tee seen || { cat log; exit 1; }
diff - seen <<'EOF'
10.1.2.3: [] 198.51.100.1: [53 443]
exception in another prefix: [] with a third rule: [53 80]
ports of two rules with 15 each: 24, the same each time: false
EOF
