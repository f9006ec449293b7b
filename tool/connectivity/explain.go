// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package connectivity

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
)

// lookFor is how long packets are sent again while the links are looked at: less than the second after which TCP
// repeats its first packet.
const lookFor = 900 * time.Millisecond

// A finding is what was seen while a path failed again.
type finding struct {
	path
	failed   error
	seen     []sighting
	drops    []nl.Dropper
	counted  []string // the kernel's counters of drops that have changed
	unchecks error    // what CHECK says of the pod
}

// A sighting is one in a namespace.
type sighting struct {
	nl.Sighting
	ns *nl.NS
}

// explain sends packets again, and says where they stop. If they arrive now, the path works.
func (s *scene) explain(ctx context.Context, p path, row Row) Row {
	if ctx.Err() != nil {
		row.Stopped = "there was no time to look where the packet stopped"
		return row
	}
	f, err := s.look(ctx, p)
	if err != nil {
		row.Stopped = "the links could not be looked at: " + err.Error()
		return row
	}
	if f.failed == nil {
		row.State, row.Cause = Works, "only at the third try"
		return row
	}
	row.Stopped = s.where(f)
	row.Cause, row.Do = s.why(f)
	return row
}

// look tries the path with taps at the links.
func (s *scene) look(ctx context.Context, p path) (f finding, err error) {
	f.path = p
	addrs := p.addrs()
	taps, err := s.taps(p, addrs)
	defer func() {
		for _, t := range taps {
			err = errors.Join(err, t.Close())
		}
	}()
	if err != nil {
		return f, err
	}
	verdicts, unowned := s.node.Verdicts(addrs) // an older kernel does not have them
	before, _ := s.node.DropCounts()
	try, cancel := context.WithTimeout(ctx, lookFor)
	f.failed = p.probe(try)
	cancel()
	after, _ := s.node.DropCounts()
	for name, n := range after {
		if n > before[name] {
			f.counted = append(f.counted, fmt.Sprintf("%s +%d", name, n-before[name]))
		}
	}
	slices.Sort(f.counted)
	if unowned == nil {
		f.drops = verdicts.Drops()
		verdicts.Close()
	}
	for n, t := range taps {
		for _, seen := range t.Seen() {
			f.seen = append(f.seen, sighting{seen, n})
		}
	}
	slices.SortStableFunc(f.seen, func(a, b sighting) int { return a.At.Compare(b.At) })
	if f.failed != nil {
		f.unchecks = errors.Join(s.check(ctx, p.pod), s.check(ctx, p.target))
	}
	return f, nil
}

// check asks the plugins once whether a pod is whole. That a CHECK was cut off says nothing of the pod.
func (s *scene) check(ctx context.Context, p *pod) error {
	if p == nil {
		return nil
	}
	if err, known := s.checked[p]; known {
		return err
	}
	err := s.cni.check(ctx, p)
	if ctx.Err() != nil {
		return nil
	}
	s.checked[p] = err
	return err
}

// addrs are the addresses by which a tap knows the packets of a path.
func (p path) addrs() (all []netip.Addr) {
	if p.pod != nil {
		all = append(all, p.pod.addr(p.family))
	}
	if p.to.IsValid() || p.to.Addr().IsValid() {
		all = append(all, p.to.Addr().WithZone(""))
	}
	return all
}

// taps looks at the links of the pods and of the node where packets of a path can pass.
func (s *scene) taps(p path, addrs []netip.Addr) (all map[*nl.NS]*nl.Tap, err error) {
	all = map[*nl.NS]*nl.Tap{}
	node := []string{s.Network.Pair.HostInterface}
	add := func(n *nl.NS, links []string) {
		t, failed := n.Tap(addrs, links...)
		if err = errors.Join(err, failed); failed == nil {
			all[n] = t
		}
	}
	for _, of := range s.pods {
		for _, link := range []string{of.veth, of.eni} {
			if link != "" && !slices.Contains(node, link) {
				node = append(node, link)
			}
		}
		if of == p.pod || of == p.target {
			add(of.ns, of.links)
		}
	}
	add(s.node, s.present(node))
	return all, err
}

// present leaves out links that are gone.
func (s *scene) present(links []string) []string {
	return slices.DeleteFunc(links, func(l string) bool { _, err := s.node.LinkByName(l); return err != nil })
}

// furthest is where a packet has come furthest on its way there and back. It need not be the last that was seen: the
// sender may have repeated a packet just when the taps were closed.
func (s *scene) furthest(f finding) (l sighting, any bool) {
	for _, seen := range f.seen {
		if !any || s.progress(f, seen) >= s.progress(f, l) {
			l, any = seen, true
		}
	}
	return l, any
}

// progress orders the places on the way: out of a pod, into the node, out of the node, into a pod, and then the same
// for the answer. The node sends what is for a Service back into the sender, which is no progress beyond that of the
// node.
func (s *scene) progress(f finding, l sighting) (steps int) {
	switch node := l.ns == s.node; {
	case node && !l.Out, !node && !l.Out && f.leaving(l) && l.ns == f.from:
		steps = 2
	case node:
		steps = 3
	case l.Out:
		steps = 1
	default:
		steps = 4
	}
	if !f.leaving(l) {
		steps += 4
	}
	return steps
}

// leaving reports whether a packet is one to the receiver, and not an answer.
func (f finding) leaving(s sighting) bool {
	return s.To == f.to.Addr().WithZone("") || f.pod != nil && s.From == f.pod.addr(f.family)
}

// where says where a packet has come furthest.
func (s *scene) where(f finding) string {
	l, any := s.furthest(f)
	if errors.Is(f.failed, errLarge) {
		return "small packets arrive, and large ones are lost" + f.largest()
	}
	if !any {
		if f.pod == nil {
			return "no packet left the node"
		}
		return "no packet left the pod"
	}
	what := "the packet"
	if !f.leaving(l) {
		what = "the answer"
	}
	switch {
	case l.ns == s.node && l.Out && slices.Contains(s.veths(), l.Link):
		return fmt.Sprintf("%s left the node by %s to the pod, which did not take it", what, l.Link)
	case l.ns == s.node && l.Out:
		return fmt.Sprintf("%s left the node by %s, and no answer came", what, l.Link)
	case l.ns == s.node:
		return fmt.Sprintf("%s reached the node by %s, and the node did not send it on", what, l.Link)
	case l.Out:
		return fmt.Sprintf("%s left the pod by %s, and reached no link of the node", what, l.Link)
	}
	return fmt.Sprintf("%s reached the pod by %s", what, l.Link)
}

func (s *scene) veths() (all []string) {
	for _, p := range s.pods {
		all = append(all, p.veth)
	}
	return all
}

// largest names the largest packet that has passed a link.
func (f finding) largest() string {
	most := 0
	for _, s := range f.seen {
		most = max(most, s.Size)
	}
	if most == 0 {
		return ""
	}
	return fmt.Sprintf(": the largest that was sent has %d bytes", most)
}

// why says what has stopped the packet, and what to do. What is certain comes first.
func (s *scene) why(f finding) (cause, do string) {
	down := s.down(f)
	switch {
	case errors.Is(f.failed, errLarge):
		return s.whyLarge(f)
	case down != "":
		return "the link " + down + " of the ENI is down", "ip link set " + down + " up, and run " + cli.Name + " " +
			"repair"
	case len(f.drops) > 0:
		return s.whyDropped(f)
	case f.unchecks != nil:
		return "the network of this pod is not whole: " + firstLine(f.unchecks), "run " + cli.Name + " repair, " +
			"and then " + cli.Name +
			" doctor, which names what removes it"
	case errors.Is(f.failed, errRefused):
		return fmt.Sprintf("the packet arrived, and %s refuses the connection", f.to), "a program must listen " +
			"there; a Service needs " +
			"ready endpoints"
	}
	l, any := s.furthest(f)
	if any && l.ns == s.node && !l.Out {
		if cause, do := s.whyKept(f, l); cause != "" {
			return cause, do
		}
	}
	if any && l.ns == s.node && l.Out && !slices.Contains(s.veths(), l.Link) || any && l.ns != s.node && l.Out {
		return s.whyOutside(f)
	}
	return f.counts(f.failed.Error()), "run " + cli.Name + " doctor; " + f.outside
}

// counts adds the kernel's counters to a cause.
func (f finding) counts(cause string) string {
	if len(f.counted) == 0 {
		return cause
	}
	return cause + ". The node's kernel counted meanwhile, of all packets: " + strings.Join(f.counted, ", ")
}

// whyDropped is about rules of netfilter.
func (s *scene) whyDropped(f finding) (cause, do string) {
	d := f.drops[0]
	family, table, _ := strings.Cut(d.Table, " ")
	if table == "kube-proxy" || strings.HasPrefix(d.Chain, "KUBE-") {
		return fmt.Sprintf("kube-proxy refuses it: %s has no ready endpoints, or is no Service", f.to),
			"kubectl get endpointslices --all-namespaces shows the endpoints of Services"
	}
	if strings.HasPrefix(table, nl.OwnTable) {
		return d.String() + " drops it, which is ours: it drops what pods send with another address than theirs, " +
			"or by " +
			"another link", "run " + cli.Name + " repair: a rule or a route of the pod is missing"
	}
	return d.String() + " drops it. The table is another program's",
		fmt.Sprintf("look at it: nft --handle list chain %s %s %s. Let pass what comes from and goes to pods: see "+
			"\"The "+
			"firewall drops what the node forwards\" in docs/operations.md", family, table, d.Chain)
}

// whyLarge is about packets that are too large for a link on the way.
func (s *scene) whyLarge(f finding) (cause, do string) {
	var mtus []string
	for _, name := range s.present(slices.Compact(slices.Concat([]string{s.Network.Pair.HostInterface}, s.veths(),
		[]string{s.pods[0].eni}))) {
		if l, err := s.node.LinkByName(name); err == nil {
			mtus = append(mtus, fmt.Sprintf("%s %d", name, l.MTU))
		}
	}
	return "a link on the way takes only smaller packets, and its \"packet too big\" does not arrive. The MTUs here: " +
			strings.Join(mtus, ", "), "all links on the way need one MTU, or must let ICMP \"fragmentation " +
			"needed\" pass. EC2 has " +
			"9001 in a VPC, 8500 by a transit gateway, 1500 to the internet; the keys mtu of the conflist set " +
			"those of new pods"
}

// whyKept is about a packet that has reached the node and was not sent on.
func (s *scene) whyKept(f finding, l sighting) (cause, do string) {
	dev, err := s.node.Forwards(l.Link, l.From, l.To)
	forward, key := s.forwarding(f.family)
	switch {
	case errors.Is(err, nl.ErrSource) && f.family == nl.IPv4:
		return f.counts(fmt.Sprintf("the kernel's check of sources (rp_filter) drops it at %s: the way back to %s "+
				"is by another "+
				"link", l.Link, l.From)), fmt.Sprintf("sysctl -w net.ipv4.conf.all.rp_filter=0 "+
				"net.ipv4.conf.%s.rp_filter=2, and correct the file in "+
				"/etc/sysctl.d that sets it", l.Link)
	case forward == "0":
		return "the node does not forward: " + key + " is 0", "sysctl -w " + key + "=1, and correct the file in " +
			"/etc/sysctl.d that sets it"
	case err != nil:
		return err.Error(), "run " + cli.Name + " doctor"
	case dev == "":
		return f.counts(fmt.Sprintf("the node has no route for it: ip route get %s from %s iif %s", l.To, l.From,
				l.Link)),
			"run " + cli.Name + " repair, and " + cli.Name + " doctor --check rules"
	}
	return "", ""
}

func (s *scene) forwarding(f nl.Family) (value, key string) {
	key = "net.ipv4.ip_forward"
	if f == nl.IPv6 {
		key = "net.ipv6.conf.all.forwarding"
	}
	value, _ = s.node.Sysctl(strings.ReplaceAll(key, ".", "/"))
	return value, key
}

// whyOutside is about a packet that has left the node: what EC2 does with it is not to be seen here.
func (s *scene) whyOutside(f finding) (cause, do string) {
	if cause := s.unassigned(f); cause != "" {
		return cause, "run " + cli.Name + " status --diff. Another program has taken the address away: delete the " +
			"pods that have " +
			"lost theirs"
	}
	return "what stops it is outside of this node's kernel", cmp.Or(f.outside, groups)
}

// down is the link of an ENI that a path needs and that is down.
func (s *scene) down(f finding) string {
	links := []string{s.Network.Pair.HostInterface}
	for _, p := range []*pod{f.pod, f.target} {
		if p != nil {
			links = append(links, p.eni)
		}
	}
	for _, name := range links {
		if l, err := s.node.LinkByName(name); err == nil && !l.Up {
			return name
		}
	}
	return ""
}

// unassigned compares the pods' addresses with those of the ENIs in the metadata service. EC2 drops what an ENI sends
// with an address that it does not have: its source/destination check.
func (s *scene) unassigned(f finding) string {
	enis, err := s.enis()
	if err != nil {
		return ""
	}
	for _, p := range []*pod{f.pod, f.target} {
		if p == nil || !p.addr(f.family).IsValid() {
			continue
		}
		a := p.addr(f.family)
		if !slices.ContainsFunc(enis, func(e aws.ENI) bool { return hasAddr(e, a) }) {
			return fmt.Sprintf("no ENI of this instance has the address %s any more, as metadata says: EC2's "+
				"source/destination "+
				"check drops what is from it", a)
		}
	}
	return ""
}

// metadataENIs asks the metadata service.
func metadataENIs() ([]aws.ENI, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*tryFor)
	defer cancel()
	return aws.New(aws.Options{}).ENIs(ctx)
}

// hasAddr reports whether an ENI has an address, or a prefix of it.
func hasAddr(e aws.ENI, a netip.Addr) bool {
	return slices.Contains(slices.Concat(e.Addrs, e.IPv6Addrs), a) ||
		slices.ContainsFunc(slices.Concat(e.Prefixes, e.IPv6Prefixes),
			func(p netip.Prefix) bool { return p.Contains(a) })
}

func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}
