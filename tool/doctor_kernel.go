// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool

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
	ptp "github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/unnumbered-ptp"
)

// checkKernel asks for what every pod needs, also where the plugins are not installed yet.
// What one configuration needs besides, its plugins' STATUS knows.
func (p *patient) checkKernel(context.Context) ([]ailment, error) {
	var found []ailment
	if err := (nl.IPVlan{}).Supported(p.pool.Host); err != nil {
		found = append(found, ailment{Severity: severe, About: "ipvlan", Means: "this kernel has none: " + err.Error(),
			Do: "it needs CONFIG_IPVLAN or the module ipvlan: on some distributions the package linux-modules-extra"})
	}
	if _, err := p.pool.Host.Tables(); err != nil {
		found = append(found, ailment{Severity: severe, About: "nftables", Means: "this kernel has none: " + err.Error(),
			Do: "it needs CONFIG_NF_TABLES or the module nf_tables"})
	}
	return found, nil
}

// sysctlFile keeps the limits of the neighbour table over a boot (sysctl.d(5)).
const sysctlFile = "/etc/sysctl.d/80-cni-ipvlan-vpc-k8s.conf"

// Each pod has an entry for its gateway, two for its veth pair, and one for each address of
// its subnet that it talks to.
const neighborsPerPod = 32

// checkNeighbors compares the limits of the neighbour table with the pods. The table is one
// for all network namespaces, and so are its limits (arp(7), gc_thresh3), which only the
// first namespace shows.
func (p *patient) checkNeighbors(context.Context) ([]ailment, error) {
	pods := kubeletPods
	if p.config != nil && p.config.MaxPods > 0 {
		pods = p.config.MaxPods
	}
	want := 1024
	for want < max(pods, p.state.Leases.Len())*neighborsPerPod {
		want *= 2
	}
	var found []ailment
	for _, family := range []string{"ipv4", "ipv6"} {
		key := "net/" + family + "/neigh/default/gc_thresh3"
		text, err := p.pool.Host.Sysctl(key)
		if errors.Is(err, fs.ErrNotExist) {
			continue // not the first namespace, or no IPv6
		}
		limit, err2 := strconv.Atoi(text)
		if err := cmp.Or(err, err2); err != nil {
			return found, err
		}
		a := ailment{Severity: doubted, About: strings.ReplaceAll(key, "/", "."),
			Means: fmt.Sprintf("%d neighbours are the most of all pods together, and %d pods may want %d: then connections fail at random (dmesg: neighbour table overflow)", limit, pods, want),
			Do:    fmt.Sprintf("set it to %d, gc_thresh2 to half of that, gc_thresh1 to a quarter, in %s", want, sysctlFile), fix: p.widen(want)}
		if entries := neighbors(family); entries > limit*9/10 {
			a.Severity, a.Means = severe, fmt.Sprintf("the table has %d neighbours, of %d that it can have: connections fail at random", entries, limit)
		} else if limit >= want {
			continue
		}
		found = append(found, a)
	}
	return found, nil
}

// neighbors is how many entries the table has. It is 0 where the kernel does not say: it
// does in the first namespace alone.
func neighbors(family string) int {
	name := map[string]string{"ipv4": "arp_cache", "ipv6": "ndisc_cache"}[family]
	text, err := os.ReadFile("/proc/net/stat/" + name)
	if err != nil {
		return 0
	}
	return entries(string(text))
}

// entries reads the statistics of a table: headings, and a line a CPU, each of which begins
// with the number of entries of all, in hexadecimal.
func entries(stat string) int {
	_, lines, _ := strings.Cut(stat, "\n")
	first, _, _ := strings.Cut(lines, " ")
	n, _ := strconv.ParseInt(first, 16, 64)
	return int(n)
}

// widen is a fix that raises the limits of the table, now and after a boot.
func (p *patient) widen(limit int) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) {
		var w nl.Wiring
		var text strings.Builder
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
				fmt.Fprintf(&text, "%s = %s\n", strings.ReplaceAll(k.Key, "/", "."), k.Value)
			}
		}
		slices.Reverse(w) // the highest first
		if err := w.Add(); err != nil {
			return "", err
		}
		did, err := p.write(sysctlFile, text.String(), "")(ctx)
		return fmt.Sprintf("gc_thresh3=%d, and %s", limit, did), err
	}
}

// A parameter is a sysctl that pods rely on.
type parameter struct {
	nl.Sysctl
	severity, means string
}

// checkSysctls looks whether somebody has taken back what the first ADD has set, as
// systemd-sysctl and tuned do when their files say otherwise. Where there is no pod, the
// next ADD sets it.
func (p *patient) checkSysctls(context.Context) ([]ailment, error) {
	if p.state.Leases.Len() == 0 {
		return nil, nil
	}
	networks, _ := pairedNetworks(p.given) // checkConfig finds what is wrong with one
	var all []parameter
	for _, n := range networks {
		all = append(all, slices.DeleteFunc(p.parameters(n.pair), func(k parameter) bool { return slices.Contains(all, k) })...)
	}
	var found []ailment
	for _, k := range all {
		err := k.Check(p.pool.Host)
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			continue
		}
		found = append(found, ailment{Severity: k.severity, About: strings.TrimPrefix(k.String(), "sysctl -w "), Means: err.Error() + ": " + k.means,
			Do: "set it, and look for the file in /etc/sysctl.d that says otherwise", fix: p.apply(k.Sysctl)})
	}
	return found, nil
}

// parameters are those that a configuration relies on.
func (p *patient) parameters(c ptp.Config) []parameter {
	var all []parameter
	need := func(key, value, severity, means string) {
		all = append(all, parameter{nl.Sysctl{Key: key, Value: value}, severity, means})
	}
	host := func(key string) string { v, _ := p.pool.Host.Sysctl(key); return v }
	if c.IPMasq {
		need("net/ipv4/ip_forward", "1", severe, "pods reach neither services nor the internet")
		need("net/ipv4/conf/all/send_redirects", "0", doubted, "the node tells pods of ways to services that do not work")
		routed := "net/ipv6/conf/" + c.HostInterface + "/accept_ra"
		if host("net/ipv6/conf/all/forwarding") == "1" && host(routed) == "1" {
			need(routed, "2", severe, "a node that forwards IPv6 does not listen to routers with 1, and loses its default route")
		}
	}
	if ports := c.NodePorts; (ports == nil || *ports != "") && host("net/ipv4/conf/all/rp_filter") != "2" {
		need("net/ipv4/conf/"+c.HostInterface+"/rp_filter", "2", severe, "packets to NodePorts are dropped: the way back to their source is another one")
	}
	return all
}

// apply is a fix that adds an object to the node.
func (p *patient) apply(o nl.Object) func(context.Context) (string, error) {
	return func(context.Context) (string, error) {
		return o.String(), nl.Wiring{{NS: p.pool.Host, Object: o}}.Add()
	}
}
