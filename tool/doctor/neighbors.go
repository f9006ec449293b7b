// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/conf"
)

// sysctlFile is a file with the limits of the neighbour table. systemd sets these limits at each boot (sysctl.d(5)).
const sysctlFile = "/etc/sysctl.d/80-cni-ipvlan-vpc-k8s.conf"

// neighborsPerPod is how many entries of the neighbour table a pod may need. A pod needs one entry for the gateway, two
// entries for the veth pair, and one entry for each destination in its subnet.
const neighborsPerPod = 32

// checkNeighbors compares the limits of the neighbour table with the number of pods. All network namespaces share the
// table and its limits (arp(7), gc_thresh3). Only the first network namespace of the machine shows the limits.
func (p *Node) checkNeighbors(context.Context) ([]Finding, error) {
	pods := 0
	for _, l := range p.ours {
		pods = max(pods, l.IPAM.MaxPods)
	}
	leased := map[string]int{} // how many pods have an address of a family
	for a, l := range p.state.Leases.All() {
		if l.NIC == 0 {
			leased[strings.ToLower(nl.FamilyOf(a).String())]++
		}
	}
	var found []Finding
	for _, family := range []string{"ipv4", "ipv6"} {
		pods := max(cmp.Or(pods, conf.KubeletPods), leased[family])
		want := 1024
		for want < pods*neighborsPerPod {
			want *= 2
		}
		key := "net/" + family + "/neigh/default/gc_thresh3"
		text, err := p.kernel.Sysctl(key)
		if errors.Is(err, fs.ErrNotExist) {
			continue // not the first namespace, or no IPv6
		}
		limit, err2 := strconv.Atoi(text)
		if err := cmp.Or(err, err2); err != nil {
			return found, err
		}
		a, to := Finding{Severity: warning, About: strings.ReplaceAll(key, "/", "."),
			Means: fmt.Sprintf("the neighbour table has a limit of %d entries for all pods together, which is too low "+
				"for %d pods. ", limit, pods)}, want
		if entries := p.neighborCount(family); entries > limit*9/10 {
			// The table is nearly full with the present limit, which may be higher than want.
			to = max(want, 2*limit)
			a.Severity, a.Means = severe, fmt.Sprintf("the neighbour table has %d entries, and its limit is %d. ",
				entries, limit)
		} else if limit >= want {
			continue
		}
		a.fix = p.limitFix(to)
		a.Means += "At the limit, connections fail at random (in dmesg: neighbor table overflow)"
		a.Do = fmt.Sprintf("in %s, set this sysctl to %d, gc_thresh2 to %d, and gc_thresh1 to %d. Then run: "+
			"sysctl --system", sysctlFile, to, to/2, to/4)
		found = append(found, a)
	}
	return found, nil
}

// neighborCount returns how many entries the neighbour table of a family has. The kernel shows this number only in the
// first network namespace. In all other namespaces, the result is 0.
func neighborCount(family string) int {
	name := map[string]string{"ipv4": "arp_cache", "ipv6": "ndisc_cache"}[family]
	text, err := os.ReadFile("/proc/net/stat/" + name)
	if err != nil {
		return 0
	}
	return entryCount(string(text))
}

// entryCount reads the number of a table's entries from the table's statistics. The first line has headings. Each
// further line is for one CPU, and begins with the number of all entries, in hexadecimal.
func entryCount(stat string) int {
	_, lines, _ := strings.Cut(stat, "\n")
	first, _, _ := strings.Cut(lines, " ")
	n, _ := strconv.ParseInt(first, 16, 64)
	return int(n)
}

// limitFix returns a fix that raises the limits of the neighbour tables of both families, now and after a boot. It does
// not lower a limit.
func (p *Node) limitFix(limit int) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) {
		var w nl.Wiring
		var text, limits strings.Builder
		for _, family := range []string{"ipv4", "ipv6"} {
			for i, n := range []int{limit / 4, limit / 2, limit} {
				k := nl.Sysctl{Key: fmt.Sprintf("net/%s/neigh/default/gc_thresh%d", family, i+1)}
				is, err := p.pool.Host.Sysctl(k.Key)
				if err != nil {
					continue // the kernel has no IPv6
				}
				was, _ := strconv.Atoi(is)
				k.Value = strconv.Itoa(max(n, was))
				w = append(w, nl.Step{NS: p.pool.Host, Object: k})
				name := strings.ReplaceAll(k.Key, "/", ".")
				fmt.Fprintf(&text, "%s = %s\n", name, k.Value)
				if n == limit {
					fmt.Fprintf(&limits, "%s=%s, ", name, k.Value)
				}
			}
		}
		slices.Reverse(w) // the highest limit first
		if err := w.Add(); err != nil {
			return "", err
		}
		did, err := p.fileFix(sysctlFile, text.String(), "")(ctx)
		return "set " + limits.String() + "and " + did, err
	}
}
