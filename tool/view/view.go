// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package view shows what the registry, the kernel, the metadata service and EC2 know about this node. The status and
// the metrics show mostly the registry. The comparison shows all four sources side by side, and explains their
// differences.
package view

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

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/book"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/conf"
)

// A Source is the answer of the metadata service or of EC2 about this node.
type Source struct {
	Answered  bool // false: the source did not answer
	enis      map[string]aws.ENI
	eniByAddr map[netip.Addr]string // the ENI that has an address, as a single address or in a /28
}

// eniOf returns the ENI that has the address according to the source, or "".
func (s Source) eniOf(a netip.Addr) string {
	if id, ok := s.eniByAddr[a]; ok || a.Is4() {
		return id
	}
	for id, e := range s.enis {
		if slices.ContainsFunc(e.IPv6Prefixes, func(p netip.Prefix) bool { return p.Contains(a) }) {
			return id
		}
	}
	return ""
}

// A Comparison has the answers of the four sources about this node, from about the same time.
type Comparison struct {
	now      time.Time
	state    *registry.State
	used     lease.Used                // pods' addresses in the kernel
	inPods   map[string]bool           // ENIs whose link is, or may be, in a pod
	routed   map[netip.Addr]string     // addresses to which the node has a host route
	own      map[netip.Addr]bool       // addresses of the node's links
	links    map[string]string         // names of links by MAC
	Metadata Source                    // what metadata says about the ENIs of this instance
	EC2      Source                    // what EC2 says about these ENIs, and about unattached ENIs of this node
	holdings map[netip.Addr]Holding    // what the registry knows about each address
	moving   map[netip.Addr]bool       // addresses that other processes changed during Observe
	changing map[string]bool           // ENIs that came or went during Observe
	lacking  map[string][]netip.Prefix // by VPC: CIDRs that EC2 shows and metadata does not

	keepsENIs bool // the configuration forbids the deletion of ENIs
}

// Compare asks all four sources, and compares their answers.
func Compare(ctx context.Context, p *ipam.Pool, conflists *conf.Conflists) (*Comparison, error) {
	o, err := Observe(ctx, p, conflists)
	if err != nil {
		return nil, err
	}
	return o.Compare(conflists.ReuseWait), nil
}

// lackingOf returns, for each VPC, the CIDRs that EC2 shows and metadata does not. It leaves out CIDRs to which pods
// have routes by the key routeToCidrs. If the role does not permit the EC2 call, the CIDRs are not compared.
func lackingOf(
	ctx context.Context, cloud *aws.Client, metadata Said, routed []netip.Prefix,
) map[string][]netip.Prefix {
	lacking, err := Lacking(ctx, cloud, metadata.ENIs)
	if err != nil && !aws.NotAllowed(err) {
		slog.Warn("EC2 did not list the CIDRs of the VPC, so the CIDRs are not compared", "error", err)
	}
	for vpc, cidrs := range lacking {
		lacking[vpc] = slices.DeleteFunc(cidrs, func(c netip.Prefix) bool {
			return slices.ContainsFunc(routed, func(r netip.Prefix) bool {
				return r.Bits() <= c.Bits() && r.Contains(c.Addr())
			})
		})
	}
	return lacking
}

// usePlace returns the place at which the kernel shows an address in use, or "". If another source names the ENI of the
// address, the place is the namespace with the address on this ENI. If no other source names an ENI, the place is any
// namespace with the address. If there is no such namespace, the place is the host route to the address.
func (k *Comparison) usePlace(a netip.Addr) string {
	l, _ := k.state.Leases.At(a)
	own, _ := k.state.ENIOf(a)
	known := false
	for _, id := range []string{own, l.ENI, k.EC2.eniOf(a), k.Metadata.eniOf(a)} {
		known = known || id != ""
		mac := cmp.Or(k.state.ENIs[id].MAC, k.EC2.enis[id].MAC, k.Metadata.enis[id].MAC)
		if at := k.used.Of(mac, a); at != "" {
			return at
		}
	}
	if !known {
		for at, where := range k.used.By {
			if at.Addr == a {
				return where
			}
		}
	}
	return k.routed[a]
}

func metadataSays(ctx context.Context, cloud *aws.Client) Said {
	enis, err := cloud.ENIs(ctx)
	if err != nil {
		slog.Warn("the metadata service did not list the ENIs, so metadata is not compared", "error", err)
	}
	return Said{err == nil, enis}
}

// ec2Says asks EC2 for the ENIs of this instance. It also asks for unattached ENIs whose tag names this instance, and
// for unattached ENIs that are draining in the registry. A draining ENI may lack the tag, if an operator has created
// the ENI.
func ec2Says(ctx context.Context, cloud *aws.Client, s *registry.State) Said {
	instance := s.Instance.ID
	if instance == "" {
		i, err := cloud.Instance(ctx)
		if err != nil {
			slog.Warn("the metadata service did not report the instance ID, so EC2 is not compared", "error", err)
			return Said{}
		}
		instance = i.ID
	}
	enis, err := cloud.DescribeENIs(ctx, aws.ByInstance(instance))
	if err == nil {
		var strays []aws.ENI
		strays, err = cloud.DescribeENIs(ctx, aws.ByTag(book.TagInstance, instance), aws.ByStatus("available"))
		enis = append(enis, strays...)
	}
	if missing := missingDraining(s, enis); err == nil && len(missing) > 0 {
		var detached []aws.ENI
		detached, err = cloud.DescribeENIs(ctx, aws.ByID(missing...), aws.ByStatus("available"))
		enis = append(enis, detached...)
	}
	if err != nil {
		slog.Warn("EC2 did not list the ENIs, so EC2 is not compared", "error", err)
		return Said{}
	}
	return Said{true, enis}
}

// missingDraining returns the IDs of the registry's draining ENIs that are missing in a list of EC2.
func missingDraining(s *registry.State, list []aws.ENI) (ids []string) {
	for id, e := range s.ENIs {
		if e.Draining && !slices.ContainsFunc(list, func(e aws.ENI) bool { return e.ID == id }) {
			ids = append(ids, id)
		}
	}
	return ids
}

// sourceOf puts a source's answer into two maps: the ENIs by ID, and the ENI of each address.
func sourceOf(said Said) Source {
	w := Source{said.Answered, map[string]aws.ENI{}, map[netip.Addr]string{}}
	for _, e := range said.ENIs {
		w.enis[e.ID] = e
		for _, a := range slices.Concat(e.Addrs, e.IPv6Addrs) {
			w.eniByAddr[a] = e.ID
		}
		for _, p := range e.Prefixes {
			for a := range addrsIn(p) {
				w.eniByAddr[a] = e.ID
			}
		}
	}
	return w
}

// A Difference is the answer of status --diff.
type Difference struct {
	Disagreements int       `json:"disagreements"` // findings that are not harmless
	Metadata      bool      `json:"metadata"`      // metadata was compared
	EC2           bool      `json:"ec2"`           // EC2 was compared
	Findings      []Finding `json:"findings"`
	Addrs         []Row     `json:"addresses"`
}

// A Row is an address with the answers of the four sources.
type Row struct {
	Addr     netip.Addr `json:"ip"`
	Registry string     `json:"registry"` // state and pod of the address
	Kernel   string     `json:"kernel"`   // the namespace that has the address, or "node"
	Metadata string     `json:"metadata"` // the ENI that has the address
	EC2      string     `json:"ec2"`      // the ENI that has the address
}

// Difference returns the answer of status --diff. Addresses with findings come first.
func (k *Comparison) Difference() Difference {
	d := Difference{Findings: cli.List(k.Findings()), Addrs: cli.List(k.allRows()), Metadata: k.Metadata.Answered,
		EC2: k.EC2.Answered}
	for _, f := range d.Findings {
		if !f.Harmless {
			d.Disagreements++
		}
	}
	slices.SortStableFunc(d.Addrs, func(a, b Row) int { return cmp.Compare(d.rank(a), d.rank(b)) })
	return d
}

// rank returns a number for the order of the rows. Addresses with findings come first, in the order of the findings.
func (d Difference) rank(r Row) int {
	i := slices.IndexFunc(d.Findings, func(f Finding) bool { return f.About == r.Addr.String() })
	if i < 0 {
		return len(d.Findings)
	}
	return i
}

// Print writes the findings, then the addresses.
func (d Difference) Print(w io.Writer) {
	switch {
	case d.Disagreements > 0:
	case d.Metadata && d.EC2:
		fmt.Fprintln(w, "the sources agree")
	default:
		fmt.Fprintln(w, "all sources that gave an answer agree")
	}
	for _, f := range d.Findings {
		fmt.Fprintf(w, "%s: %s\n    %s\n", f.About, f.Means, f.Do)
	}
	fmt.Fprintln(w)
	cli.Tabulate(w, d.Addrs)
}

// allRows returns each address that one of the four sources knows, with the answers of all four.
func (k *Comparison) allRows() []Row {
	var rows []Row
	for _, a := range k.allAddrs() {
		r := Row{Addr: a, Kernel: k.kernelColumn(a), Metadata: k.Metadata.columnOf(a), EC2: k.EC2.columnOf(a)}
		if h, ok := k.holdings[a]; ok {
			r.Registry = h.State
			if h.Leased() {
				r.Registry += " " + h.Owner()
			}
		}
		rows = append(rows, r)
	}
	return rows
}

// columnOf returns the text for the source's column of the table. The text is the ENI that has the address, or "?" if
// the source did not answer.
func (s Source) columnOf(a netip.Addr) string {
	if !s.Answered {
		return "?"
	}
	return s.eniOf(a)
}

// kernelColumn returns the text for the kernel's column of the table, in the row of the address a.
func (k *Comparison) kernelColumn(a netip.Addr) string {
	if k.own[a] {
		return StateNode
	}
	return k.usePlace(a)
}

// allAddrs returns the addresses that the registry, metadata or EC2 know. It also returns addresses that a namespace
// uses, if they are in the subnet of one of this node's ENIs. A route alone does not count. For example,
// systemd-networkd makes routes to the gateway and the DNS server of the subnet.
func (k *Comparison) allAddrs() []netip.Addr {
	all := map[netip.Addr]bool{}
	for a := range k.holdings {
		all[a] = true
	}
	for _, w := range []Source{k.Metadata, k.EC2} {
		for _, e := range w.enis {
			for _, a := range slices.Concat(e.Addrs, e.IPv6Addrs) {
				all[a] = true
			}
		}
	}
	for at := range k.used.By {
		if k.isLocal(at.Addr) {
			all[at.Addr] = true
		}
	}
	return slices.SortedFunc(maps.Keys(all), netip.Addr.Compare)
}

func (k *Comparison) isLocal(a netip.Addr) bool {
	for _, e := range k.state.ENIs {
		if e.CIDR.Contains(a) || e.CIDR6.Contains(a) {
			return true
		}
	}
	return false
}
