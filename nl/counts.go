// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"os"
	"strconv"
	"strings"
)

// dropCounterNames are the names of the counters for packets that IP drops: see snmp and netstat in proc_net(5). Each
// namespace has its own counters.
var dropCounterNames = []string{"InNoRoutes", "OutNoRoutes", "IPReversePathFilter", "InAddrErrors", "FragFails",
	"InHdrErrors"}

// DropCounts maps each name in dropCounterNames to the value of the counter.
func (n *NS) DropCounts() (map[string]uint64, error) {
	var text string
	err := n.Do(func() error {
		for _, file := range []string{"snmp", "netstat"} {
			b, err := os.ReadFile("/proc/thread-self/net/" + file)
			if err != nil {
				return err
			}
			text += string(b)
		}
		return nil
	})
	counts := map[string]uint64{}
	var names []string
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(names) != len(words) || len(words) == 0 || names[0] != words[0] {
			names = words
			continue
		}
		for i, name := range names {
			for _, wanted := range dropCounterNames {
				if v, err := strconv.ParseUint(words[i], 10, 64); name == wanted && err == nil {
					counts[name] = v
				}
			}
		}
	}
	return counts, err
}
