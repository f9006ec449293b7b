// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// A witness is one of those who know addresses, as far as it was asked and has answered.
type witness struct {
	heard    bool
	enis     map[string]aws.ENI
	carriers map[netip.Addr]string // the ENI that carries an address, by itself or in a /28
}

// on is the ENI that carries the address, as the witness says; "" if none does.
func (w witness) on(a netip.Addr) string {
	if id, ok := w.carriers[a]; ok || a.Is4() {
		return id
	}
	for id, e := range w.enis {
		if slices.ContainsFunc(e.IPv6Prefixes, func(p netip.Prefix) bool { return p.Contains(a) }) {
			return id
		}
	}
	return ""
}

// A comparison is what the four say of this node, at about the same time.
type comparison struct {
	now      time.Time
	state    *registry.State
	used     lease.Used             // pods' addresses in the kernel
	own      map[netip.Addr]bool    // the node's, in the kernel
	links    map[string]string      // names of links by MAC
	metadata witness                // of this instance's ENIs
	ec2      witness                // of this instance's ENIs, and of ours that are not attached
	holdings map[netip.Addr]holding // of the registry
	moving   map[netip.Addr]bool    // those that an ADD, a DEL or a growth has changed meanwhile
	changing map[string]bool        // ENIs, likewise
}

// diff answers with how the four compare.
func diff(c *cli.Context) error {
	p, err := openPool(lease.Policy{})
	if err != nil {
		return err
	}
	defer p.Close()
	stop := working("ask the metadata service and EC2")
	k, err := compare(c.Context, p, reuseWaits(c))
	stop()
	if err != nil {
		return err
	}
	d := difference{Findings: list(k.findings()), Addrs: list(k.rows()), Metadata: k.metadata.heard, EC2: k.ec2.heard}
	for _, f := range d.Findings {
		if !f.Harmless {
			d.Disagreements++
		}
	}
	slices.SortStableFunc(d.Addrs, func(a, b diffRow) int { return cmp.Compare(d.rank(a), d.rank(b)) })
	if err := answer(c, d, d.print); err != nil || d.Disagreements == 0 {
		return err
	}
	return hinted{fmt.Errorf("registry, kernel, metadata and EC2 disagree: %d", d.Disagreements),
		"EC2 and metadata may be some minutes behind: run it again before you act"}
}

// compare asks all four. The registry is read first and last, because nobody is kept from
// working meanwhile: what has changed in between is not judged.
func compare(ctx context.Context, p *ipam.Pool, wait func(string) time.Duration) (*comparison, error) {
	before, err := p.Registry.View()
	if err != nil {
		return nil, err
	}
	k := &comparison{now: time.Now(), metadata: metadataSays(ctx, p.Cloud), ec2: ec2Says(ctx, p.Cloud, before.Instance.ID)}
	k.used, k.own = lease.UsedAddrs(), map[netip.Addr]bool{}
	own, err := p.Host.Addrs("")
	if err != nil {
		return nil, err
	}
	for _, a := range own {
		k.own[a.Prefix.Addr()] = true
	}
	if err := addRoutes(p.Host, k.used); err != nil {
		return nil, err
	}
	if k.links, err = linkNames(); err != nil {
		return nil, err
	}
	if k.state, err = p.Registry.View(); err != nil {
		return nil, err
	}
	k.settle(before, wait)
	return k, nil
}

// settle compares the registry with what it was before.
func (k *comparison) settle(before *registry.State, wait func(string) time.Duration) {
	k.holdings, k.moving, k.changing = map[netip.Addr]holding{}, map[netip.Addr]bool{}, map[string]bool{}
	was := map[netip.Addr]holding{}
	for _, h := range tally(before, wait, k.now) {
		was[h.Addr] = h
		k.moving[h.Addr] = true
	}
	for _, h := range tally(k.state, wait, k.now) {
		k.holdings[h.Addr] = h
		old, known := was[h.Addr]
		k.moving[h.Addr] = !known || old.State != h.State || old.Container != h.Container || old.ENI != h.ENI
	}
	for id := range before.ENIs {
		_, still := k.state.ENIs[id]
		k.changing[id] = !still
	}
	for id := range k.state.ENIs {
		_, known := before.ENIs[id]
		k.changing[id] = !known
	}
}

// addRoutes adds the addresses that the node has a route of their own to: a pod may have
// one in a namespace that cannot be seen from here.
func addRoutes(host *nl.NS, used lease.Used) error {
	routes, err := host.Routes(nl.RouteFilter{Table: nl.MainTable})
	for _, r := range routes {
		if a := r.Dst.Addr(); r.Dst.IsSingleIP() && used.By[a] == "" {
			used.By[a] = "route dev " + r.Dev
		}
	}
	return err
}

// metadataSays asks the metadata service.
func metadataSays(ctx context.Context, cloud *aws.Client) witness {
	enis, err := cloud.ENIs(ctx)
	if err != nil {
		slog.Warn("metadata is not compared", "error", err)
		return witness{}
	}
	return testimony(enis)
}

// ec2Says asks EC2 for the ENIs of this instance, and for those that are meant for it.
func ec2Says(ctx context.Context, cloud *aws.Client, instance string) witness {
	if instance == "" {
		i, err := cloud.Instance(ctx)
		if err != nil {
			slog.Warn("EC2 is not compared: this instance is not known", "error", err)
			return witness{}
		}
		instance = i.ID
	}
	enis, err := cloud.DescribeENIs(ctx, aws.ByInstance(instance))
	if err == nil {
		var strays []aws.ENI
		strays, err = cloud.DescribeENIs(ctx, aws.ByTag(ipam.TagInstance, instance), aws.ByStatus("available"))
		enis = append(enis, strays...)
	}
	if err != nil {
		slog.Warn("EC2 is not compared", "error", err)
		return witness{}
	}
	return testimony(enis)
}

func testimony(enis []aws.ENI) witness {
	w := witness{true, map[string]aws.ENI{}, map[netip.Addr]string{}}
	for _, e := range enis {
		w.enis[e.ID] = e
		for _, a := range slices.Concat(e.Addrs, e.IPv6Addrs) {
			w.carriers[a] = e.ID
		}
		for _, p := range e.Prefixes {
			for a := range within(p) {
				w.carriers[a] = e.ID
			}
		}
	}
	return w
}

// A difference is what status --diff answers.
type difference struct {
	Disagreements int       `json:"disagreements"` // findings that are not harmless
	Metadata      bool      `json:"metadata"`      // it was compared
	EC2           bool      `json:"ec2"`           // it was compared
	Findings      []finding `json:"findings"`
	Addrs         []diffRow `json:"addresses"`
}

// A diffRow is what each of the four says of an address.
type diffRow struct {
	Addr     netip.Addr `json:"ip"`
	Registry string     `json:"registry"` // its state, and its pod
	Kernel   string     `json:"kernel"`   // the namespace that has it, or "node"
	Metadata string     `json:"metadata"` // the ENI that carries it
	EC2      string     `json:"ec2"`      // the same
}

// rank puts addresses with findings first.
func (d difference) rank(r diffRow) int {
	i := slices.IndexFunc(d.Findings, func(f finding) bool { return f.About == r.Addr.String() })
	if i < 0 {
		return len(d.Findings)
	}
	return i
}

func (d difference) print(w io.Writer) {
	if d.Disagreements == 0 {
		fmt.Fprintln(w, "they agree")
	}
	for _, f := range d.Findings {
		fmt.Fprintf(w, "%s: %s\n    %s\n", f.About, f.Means, f.Do)
	}
	fmt.Fprintln(w)
	tabulate(w, d.Addrs)
}

// rows sets side by side what the four say of each address that any of them knows.
func (k *comparison) rows() []diffRow {
	var rows []diffRow
	for _, a := range k.addrs() {
		r := diffRow{Addr: a, Kernel: k.kernel(a), Metadata: k.metadata.says(a), EC2: k.ec2.says(a)}
		if h, ok := k.holdings[a]; ok {
			r.Registry = h.State
			if h.leased() {
				r.Registry += " " + h.owner()
			}
		}
		rows = append(rows, r)
	}
	return rows
}

// says is the column of a witness: a question mark if it was not heard.
func (w witness) says(a netip.Addr) string {
	if !w.heard {
		return "?"
	}
	return w.on(a)
}

// kernel is the column of the kernel.
func (k *comparison) kernel(a netip.Addr) string {
	if k.own[a] {
		return stateNode
	}
	return k.used.By[a]
}

// addrs are those that the registry, metadata or EC2 know, and those in the kernel that
// are of a subnet of this node's ENIs. A namespace has others, which are none of ours.
func (k *comparison) addrs() []netip.Addr {
	all := map[netip.Addr]bool{}
	for a := range k.holdings {
		all[a] = true
	}
	for _, w := range []witness{k.metadata, k.ec2} {
		for _, e := range w.enis {
			for _, a := range slices.Concat(e.Addrs, e.IPv6Addrs) {
				all[a] = true
			}
		}
	}
	for a := range k.used.By {
		if k.local(a) {
			all[a] = true
		}
	}
	return slices.SortedFunc(maps.Keys(all), netip.Addr.Compare)
}

// local tells whether an address is of the subnet of one of this node's ENIs.
func (k *comparison) local(a netip.Addr) bool {
	for _, e := range k.state.ENIs {
		if e.CIDR.Contains(a) || e.CIDR6.Contains(a) {
			return true
		}
	}
	return false
}
