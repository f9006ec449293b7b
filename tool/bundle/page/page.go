// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package page explains a support bundle. It prints findings, or writes one page of HTML. The page needs no script, no
// network and no other file. After the findings, the page shows the ENIs, the addresses, and the pods with their paths.
// Then it shows where the sources disagree, and when leases began and ended.
package page

import (
	"cmp"
	"context"
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/bundle"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/doctor"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/view"
)

//go:embed page.html
var pageHTML string

var pageTemplate = sync.OnceValue(func() *template.Template {
	return template.Must(template.New("page").Parse(pageHTML))
})

// A Review has the findings of doctor's checks on the data of a bundle. It also has findings that the doctor on the
// node made, because some checks need more than this data.
type Review struct {
	doctor.Report
	Node   []doctor.Finding `json:"node_findings"` // findings that the data of the bundle does not show
	Unmade []doctor.Unmade  `json:"unmade"`
}

// ReviewOf makes doctor's checks on the data of a bundle. It adds the findings that only the doctor on the node has
// made.
func ReviewOf(ctx context.Context, b *bundle.Bundle) Review {
	report, unmade := b.Review(ctx)
	r := Review{Report: report, Node: []doctor.Finding{}, Unmade: append(unmade, b.Unmade...)}
	if b.Findings != nil {
		r.Node = append(r.Node, report.Missing(*b.Findings)...)
	}
	for _, f := range r.Node {
		switch f.Severity {
		case "error":
			r.Errors++
		case "warning":
			r.Warnings++
		}
	}
	return r
}

// Print writes the findings for people.
func (r Review) Print(w io.Writer) {
	if len(r.Checked) == 0 {
		fmt.Fprintln(w, "no check could be made on the data of the bundle")
	} else {
		r.Report.Print(w)
	}
	if len(r.Node) > 0 {
		fmt.Fprintln(w, "\nthe node itself found this, but the data of the bundle does not show it:")
		doctor.Report{Findings: r.Node}.Print(w)
	}
	if len(r.Unmade) > 0 {
		fmt.Fprintln(w, "\nnot checked here:")
	}
	for _, u := range r.Unmade {
		part := ""
		if u.Part {
			part = ", in part"
		}
		fmt.Fprintf(w, "    %s%s: %s\n", u.Check, part, u.Why)
	}
}

// Write writes the page.
func Write(w io.Writer, b *bundle.Bundle, r Review) error {
	return pageTemplate().Execute(w, pageOf(b, r))
}

// A page is the data that the template in page.html shows.
type page struct {
	Node, Made, Tool string
	Errors, Warnings int
	Findings         []group
	Checked          int
	Unmade           []doctor.Unmade
	Facts            []fact
	ENIs             []eni
	Compact          bool // there are so many addresses that no cell has a name
	Legend           []kind
	Pods             []pod
	Differences      difference
	Timeline         timeline
	Sources          []bundle.Source
	Missing          int // number of sources that are not whole
	Versions         []fact
	Journal          []bundle.Entry
	Kernel           []fold
}

// A group has the findings of one check and one severity.
type group struct {
	Severity, Letter, Check, About string
	First, More                    []finding
	Do                             string // what to do about all findings; "": each finding has its own text
}

// A finding is a finding of doctor, as the page shows it.
type finding struct {
	doctor.Finding
	OnNode bool // doctor found this on the node, but the check of the bundle's data does not find it
}

type fact struct{ Name, Value, Note string }

// A fold is a text that a reader unfolds.
type fold struct {
	Name  string
	Lines []string
}

func pageOf(b *bundle.Bundle, r Review) page {
	p := page{Node: "a node", Made: b.Made.UTC().Format("2006-01-02 15:04:05 UTC"), Tool: b.Tool, Errors: r.Errors,
		Warnings: r.Warnings, Findings: groups(r), Checked: len(r.Checked), Unmade: r.Unmade, Legend: kinds,
		Sources: b.Sources, Versions: versions(b.Versions), Journal: b.Journal, Kernel: kernelFolds(b.Kernel),
		Timeline: timelineOf(b)}
	for _, s := range b.Sources {
		if s.State != bundle.Whole {
			p.Missing++
		}
	}
	if b.State == nil {
		return p
	}
	p.Node = cmp.Or(b.State.Instance.ID, p.Node)
	held := view.Tally(b.State, b.Conflists.ReuseWait, b.Made)
	d := differences(b)
	p.Differences = d
	p.ENIs, p.Compact = eniMaps(b, held, d), len(held) > mostNamed
	p.Pods = pods(b, held)
	p.Facts = facts(b, held)
	return p
}

// mostNamed is a number of addresses. If the map has more addresses, its cells do not show the names of pods.
const mostNamed = 400

// mostOfGroup is how many findings of a group are visible at once. A reader can unfold the other findings.
const mostOfGroup = 3

// groups makes one group of all findings with the same check and severity. The groups with the worst severity come
// first.
func groups(r Review) (all []group) {
	about := map[string]string{}
	for _, c := range doctor.Checks(false) {
		about[c.Name] = c.About
	}
	add := func(f doctor.Finding, onNode bool) {
		i := slices.IndexFunc(all, func(g group) bool { return g.Severity == f.Severity && g.Check == f.Check })
		if i < 0 {
			all = append(all, group{Severity: f.Severity, Letter: severityLetter(f.Severity), Check: f.Check,
				About: about[f.Check], Do: f.Do})
			i = len(all) - 1
		}
		all[i].First = append(all[i].First, finding{f, onNode})
		if f.Do != all[i].Do {
			all[i].Do = ""
		}
	}
	for _, f := range r.Findings {
		add(f, false)
	}
	for _, f := range r.Node {
		add(f, true)
	}
	for i, g := range all {
		if len(g.First) > mostOfGroup+1 { // if only one finding would be hidden, show it, too
			all[i].First, all[i].More = g.First[:mostOfGroup], g.First[mostOfGroup:]
		}
	}
	slices.SortStableFunc(all, func(a, b group) int {
		return cmp.Compare(severityRank(a.Severity), severityRank(b.Severity))
	})
	return all
}

func severityRank(severity string) int {
	return slices.Index([]string{"error", "warning", "note"}, severity)
}

func severityLetter(severity string) string {
	return map[string]string{"error": "E", "warning": "W", "note": "i"}[severity]
}

func versions(all map[string]string) (facts []fact) {
	for _, name := range slices.Sorted(maps.Keys(all)) {
		facts = append(facts, fact{Name: name, Value: all[name]})
	}
	return facts
}

func facts(b *bundle.Bundle, held []view.Holding) []fact {
	s, pods, n := b.State, map[string]bool{}, map[string]int{}
	for _, h := range held {
		n[h.State]++
		if h.Leased() {
			pods[h.Container+h.NetNS] = true
		}
	}
	waiting := 0
	for _, w := range s.Waiters {
		if w.Until.After(b.Made) {
			waiting++
		}
	}
	most := "the limit of the type is unknown"
	if s.Instance.ENIs > 0 {
		most = fmt.Sprint("of ", b.Conflists.MostENIs(s))
	}
	leased := fact{"pods", fmt.Sprint(len(pods)), cli.Count(n[view.StateBound]+n[view.StateReserved], "lease")}
	all := []fact{
		leased,
		{"free", fmt.Sprint(n[view.StateFree]), "addresses for the next pods"},
		{"cooling", fmt.Sprint(n[view.StateCooling]), "free soon"},
		{"ENIs", fmt.Sprint(s.Attached()), most},
		{"waiting", fmt.Sprint(waiting), "ADDs without an address"},
	}
	if s.Instance.Type != "" {
		all = append(all, fact{"instance", s.Instance.Type, s.Instance.Zone})
	}
	return all
}

// kernelFolds returns a line for each link, address, route and rule of the node.
func kernelFolds(s *doctor.Snapshot) (all []fold) {
	if s == nil {
		return nil
	}
	return []fold{{"links", linkLines(s.Link)}, linesOf("addresses", s.Addr), linesOf("routes", s.Route),
		linesOf("rules", s.Rule)}
}

func linkLines(links []nl.Link) (lines []string) {
	for _, l := range links {
		state := "down"
		if l.Up {
			state = "up"
		}
		lines = append(lines, strings.TrimSpace(fmt.Sprintf("%d: %s %s %s mtu %d %s %s", l.Index, l.Name, l.Kind, l.MAC,
			l.MTU, state, l.Alias)))
	}
	return lines
}

func linesOf[T fmt.Stringer](name string, items []T) fold {
	f := fold{Name: name}
	for _, i := range items {
		f.Lines = append(f.Lines, i.String())
	}
	return f
}

// A pod is an entry of the page about one interface of a pod, with the paths of this interface's packets.
type pod struct {
	ID, Name, Addr, State, Age string
	Path, Pair                 []string
	Inside                     []string // a line for each object in the pod's namespace
}

// pods returns an entry for each address with a lease. The entries are sorted by the names of the pods.
func pods(b *bundle.Bundle, held []view.Holding) (all []pod) {
	pairs := pairsOf(b.Kernel)
	for _, h := range held {
		if !h.Leased() {
			continue
		}
		l, _ := b.State.Leases.At(h.Addr)
		p := pod{ID: anchor(h.Addr.String()), Name: cmp.Or(h.Owner(), "unknown"), Addr: h.Addr.String(), State: h.State}
		if h.Since != nil {
			p.Age = view.Brief(b.Made.Sub(*h.Since))
		}
		p.Inside = podLines(b, l.NetNS)
		p.Path, p.Pair = packetPaths(b.State, l, pairs[l.ContainerID+" "+l.IfName])
		all = append(all, p)
	}
	slices.SortStableFunc(all, func(a, b pod) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// podLines returns a line for each object of the kernel in a namespace.
func podLines(b *bundle.Bundle, netns string) (lines []string) {
	i := slices.IndexFunc(b.Pods, func(p bundle.PodObjects) bool { return p.NetNS == netns })
	if i < 0 {
		return nil
	}
	p := b.Pods[i]
	lines = append(linkLines(p.Links), linesOf("", p.Addrs).Lines...)
	lines = append(append(lines, linesOf("", p.Routes).Lines...), linesOf("", p.Rules).Lines...)
	for _, f := range p.Programs {
		lines = append(lines, strings.Join([]string{"BPF", f.Link, f.Hook, f.Name}, " "))
	}
	if p.Why != "" {
		lines = append(lines, "a part could not be read: "+p.Why)
	}
	return lines
}

// pairsOf returns the node's ends of veth pairs. The keys have the container and the interface from the end's alias.
func pairsOf(s *doctor.Snapshot) map[string]nl.Link {
	pairs := map[string]nl.Link{}
	if s == nil {
		return pairs
	}
	for _, l := range s.Link {
		if words := strings.Fields(l.Alias); nl.IsPair(l.Group) && len(words) >= 4 {
			pairs[words[2]+" "+words[3]] = l
		}
	}
	return pairs
}

// packetPaths returns two paths of a pod's packets. The first path is to the VPC. The second path is to the node,
// Services and the internet. If the pod has only one path, nodePath is nil.
func packetPaths(s *registry.State, l registry.Lease, pair nl.Link) (vpcPath, nodePath []string) {
	e := s.ENIs[l.ENI]
	link := cmp.Or(e.Link, "its link")
	out := []string{link, cmp.Or(l.ENI, "no ENI"), "VPC"}
	switch {
	case nl.IsRouted(pair.Group) && pair.Name != "":
		return append([]string{cmp.Or(l.IfName, "pod"), pair.Name, "node"}, out...), nil
	case l.Exclusive:
		return append([]string{cmp.Or(l.IfName, "pod") + " is"}, out...), nil
	}
	vpcPath = append([]string{cmp.Or(l.IfName, "pod"), "ipvlan"}, out...)
	if pair.Name != "" {
		nodePath = []string{"veth", pair.Name, "node", "Services, internet"}
	}
	return vpcPath, nodePath
}

// anchor returns the ID of the HTML element about an address of a pod.
func anchor(addr string) string { return "a-" + strings.NewReplacer(".", "-", ":", "-").Replace(addr) }

// A difference has the addresses and ENIs about which the four sources (registry, kernel, metadata and EC2) do not
// agree.
type difference struct {
	Compared bool
	Findings []view.Finding
	Rows     []row
	Agree    int             // number of addresses about which the sources agree
	about    map[string]bool // by address or ENI: whether the sources have a disagreement that does not end by itself
	silent   []string
}

// A row is an address. If a source does not have the address, the source's cell is empty.
type row struct {
	view.Row
	Harmless bool
}

// Silent names the sources that did not answer.
func (d difference) Silent() string { return strings.Join(d.silent, " and ") }

func differences(b *bundle.Bundle) (d difference) {
	d.about = map[string]bool{}
	if b.Observed == nil {
		return d
	}
	all := b.Observed.Compare(b.Conflists.ReuseWait).Difference()
	d.Compared, d.Findings = true, all.Findings
	if !all.Metadata {
		d.silent = append(d.silent, "the metadata service")
	}
	if !all.EC2 {
		d.silent = append(d.silent, "EC2")
	}
	harmless := map[string]bool{}
	for _, f := range all.Findings {
		d.about[f.About] = d.about[f.About] || !f.Harmless
		harmless[f.About] = f.Harmless
	}
	for _, r := range all.Addrs {
		if _, found := d.about[r.Addr.String()]; found {
			d.Rows = append(d.Rows, row{r, harmless[r.Addr.String()]})
		} else {
			d.Agree++
		}
	}
	return d
}

func timeText(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05") }
