// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package bundle

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/conf"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/doctor"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/view"
)

// The names of the sources that the reader asks for.
const (
	sourceConflists = "conflists"
	sourceRegistry  = "registry"
	sourceKernel    = "kernel"
)

// A finish makes of what was read what may leave the node. It runs when no reading does: it may change the gathering.
type finish func() (any, error)

// A reading reads one source. It may be left behind, so it changes nothing of the gathering. Its finish returns the
// value of the file, which is JSON, or nil if another reading stores it.
type reading struct {
	name, file string
	deadline   time.Duration
	share      int // bytes of the compressed file; 0: another reading stores it
	read       func(*gathering, context.Context) (finish, error)
}

// readings are in the order in which they are made. The text of later ones has names that earlier ones know. All
// shares together, and the manifest, have room in a bundle.
var readings = []reading{
	{sourceConflists, "conflists.json", 5 * time.Second, 60_000, (*gathering).conflists},
	{sourceRegistry, "registry.json", 5 * time.Second, 350_000, (*gathering).registry},
	{"lease log", "leaselog.json", 5 * time.Second, 250_000, (*gathering).leaseLog},
	{sourceKernel, "kernel.json", 10 * time.Second, 0, (*gathering).kernel},
	{"findings of doctor", "doctor.json", examineAll + examineOne, 150_000, (*gathering).findings},
	{sourceKernel, "kernel.json", time.Second, 250_000, (*gathering).snapshot}, // with the answers to the checks
	{"answers of EC2", "cloud.json", time.Second, 80_000, (*gathering).answers},
	{"four sources side by side", "observed.json", 20 * time.Second, 220_000, (*gathering).observed},
	{"status --diff", "diff.json", 5 * time.Second, 80_000, (*gathering).difference},
	{"pods", "pods.json", 10 * time.Second, 100_000, (*gathering).pods},
	{"nftables", "nftables.json", 5 * time.Second, 100_000, (*gathering).tables},
	{"BPF", "bpf.json", 5 * time.Second, 50_000, (*gathering).programs},
	{"journal", "journal.json", 10 * time.Second, 200_000, (*gathering).journal},
	{"versions", "versions.json", 10 * time.Second, 10_000, (*gathering).versions},
}

// How long one check of doctor may take, and all.
const (
	examineOne = 10 * time.Second
	examineAll = 35 * time.Second
)

// A gathering is a bundle in the making.
type gathering struct {
	allow    *allowance
	binDir   string
	node     *doctor.Node // nil: it could not be opened, because of unopened
	unopened error
	host     *nl.NS
	lists    *conf.Conflists
	state    *registry.State // as it was read; nil: it was not
	shot     *doctor.Snapshot
	asked    *doctor.Answers
	compared *view.Observation
}

// opened is why the node could not be opened, or nil.
func (g *gathering) opened() error {
	if g.node == nil {
		return fmt.Errorf("the registry or the network namespace of the node cannot be opened: %w", g.unopened)
	}
	return nil
}

// A network is what may leave of a conflist's network.
type network struct {
	File string          `json:"file"`
	List json.RawMessage `json:"list"`
}

// conflists are the documented keys of our plugins. Their names and tags may be in the text of others.
func (g *gathering) conflists(context.Context) (finish, error) {
	return func() (any, error) {
		all := []network{}
		failed := g.lists.Unlisted
		for _, f := range g.lists.Files {
			failed = errors.Join(failed, f.Failed)
			g.allow.know(f.Path)
			for _, l := range f.Lists {
				text, err := l.Documented()
				failed = errors.Join(failed, err)
				all = append(all, network{f.Path, text})
				g.allow.know(l.Name)
				g.allow.knowTags(l)
			}
		}
		if len(all) == 0 && failed != nil {
			return nil, failed
		}
		return all, nil
	}, nil
}

// knowTags allows the values of the tags that a conflist asks for.
func (w *allowance) knowTags(l conf.List) {
	if l.IPAM == nil {
		return
	}
	for _, p := range l.IPAM.Policies() {
		for key, value := range p.SubnetTags {
			w.tags[key] = value
		}
	}
}

func (g *gathering) registry(context.Context) (finish, error) {
	if err := g.opened(); err != nil {
		return nil, err
	}
	s, err := g.node.Pool().Registry.View()
	return func() (any, error) {
		g.state = s
		g.allow.knowState(s)
		return &registryFile{g.allow.state(s)}, nil
	}, err
}

// knowState allows the names that a registry has.
func (w *allowance) knowState(s *registry.State) {
	for _, l := range s.Leases.All() {
		w.know(l.PodNamespace, l.PodName, l.PodOf(), l.ContainerID, l.NetNS, l.IfName, l.Network)
	}
	for id, e := range s.ENIs {
		w.know(id, e.Link, e.Pool, e.MAC, e.Subnet, e.VPC)
	}
	w.know(s.Instance.ID, s.Instance.Type, s.Instance.Zone)
}

// A registryFile is the text of a registry. It loses free addresses first, and then leases.
type registryFile struct{ state *registry.State }

// MarshalJSON writes it as the registry does.
func (r *registryFile) MarshalJSON() ([]byte, error) { return r.state.Text() }

func (r *registryFile) Cut() bool {
	free, leased := slices.Collect(r.state.Free.Keys()), slices.Collect(r.state.Leases.Keys())
	for _, a := range free[len(free)/2:] {
		r.state.Free.Delete(a)
	}
	if len(free) == 0 {
		for _, a := range leased[len(leased)/2:] {
			r.state.Leases.Delete(a)
		}
	}
	return len(free)+len(leased) > 0
}

// leaseLog is the end of the log that the registry or a conflist names.
func (g *gathering) leaseLog(context.Context) (finish, error) {
	file := ""
	if g.state != nil {
		file = g.state.Log.File
	}
	networks, _ := g.lists.All()
	for _, l := range networks {
		file = cmp.Or(file, l.IPAM.Policies()[0].Log.File)
	}
	if file == "" {
		return nil, errors.New("this node writes no lease log: no conflist has the key leaseLog")
	}
	lines, err := endOfLog(file)
	return func() (any, error) {
		g.allow.know(file)
		for _, l := range lines {
			g.allow.know(l.Namespace, l.Pod, l.Namespace+"/"+l.Pod, l.Container)
		}
		return &tail[registry.Line]{lines}, nil
	}, err
}

// kernel reads the links, addresses, rules and routes.
func (g *gathering) kernel(context.Context) (finish, error) {
	if g.host == nil {
		return nil, g.opened()
	}
	s := doctor.TakeSnapshot(g.host)
	return func() (any, error) {
		g.shot = s
		for _, l := range s.Link {
			g.allow.know(l.Name)
		}
		return nil, nil
	}, nil
}

// findings are those of doctor.
func (g *gathering) findings(ctx context.Context) (finish, error) {
	if err := g.opened(); err != nil {
		return nil, err
	}
	if g.shot != nil {
		g.node.Record(g.shot, g.asked)
	}
	ctx, cancel := context.WithTimeout(ctx, examineAll)
	defer cancel()
	found, unmade := g.node.ExamineEach(ctx, examineOne)
	return func() (any, error) {
		for i, f := range found.Findings {
			f.About, f.Means, f.Do = g.allow.text(f.About), g.allow.text(f.Means), g.allow.text(f.Do)
			found.Findings[i] = f
		}
		return &examined{found, unmade}, nil
	}, nil
}

// An examined node is what doctor has found there.
type examined struct {
	doctor.Report
	Unmade []doctor.Unmade `json:"unmade"`
}

func (e *examined) Cut() bool {
	e.Findings = e.Findings[:len(e.Findings)/2] // the worst are first
	return len(e.Findings) > 0
}

func (g *gathering) snapshot(context.Context) (finish, error) {
	if g.shot == nil {
		return nil, errors.New("the kernel was not read")
	}
	return func() (any, error) {
		s := g.shot.Copy()
		s.Link = g.allow.links(s.Link)
		for list, why := range s.Lacks {
			s.Lacks[list] = g.allow.text(why)
		}
		return s, nil
	}, nil
}

func (g *gathering) answers(context.Context) (finish, error) {
	return func() (any, error) {
		a := g.asked.Copy()
		if len(a.Asked) == 0 {
			return nil, errors.New("no check has asked EC2 or the metadata service in time")
		}
		a.Instance.Account = ""
		a.Attached, a.Subnets = g.allow.enis(a.Attached), g.allow.subnets(a.Subnets)
		for question, why := range a.Failed {
			a.Failed[question] = g.allow.text(why)
		}
		return a, nil
	}, nil
}

func (g *gathering) observed(ctx context.Context) (finish, error) {
	if err := g.opened(); err != nil {
		return nil, err
	}
	const asking = 15 * time.Second // of the deadline: the kernel's part comes last
	ctx, cancel := context.WithTimeout(ctx, asking)
	defer cancel()
	o, err := view.Observe(ctx, g.node.Pool(), g.lists)
	return func() (any, error) {
		g.compared = o
		left := *o
		left.Metadata.ENIs, left.EC2.ENIs = g.allow.enis(o.Metadata.ENIs), g.allow.enis(o.EC2.ENIs)
		return &left, nil
	}, err
}

func (g *gathering) difference(context.Context) (finish, error) {
	if g.compared == nil {
		return nil, errors.New("the four sources were not compared")
	}
	d := &difference{g.compared.Compare(g.lists.ReuseWait).Difference()}
	return func() (any, error) { return d, nil }, nil
}

// A difference is what status --diff answers, the disagreements first.
type difference struct{ view.Difference }

func (d *difference) Cut() bool {
	d.Addrs = d.Addrs[:len(d.Addrs)/2]
	return len(d.Addrs) > 0
}

func (g *gathering) tables(context.Context) (finish, error) {
	if g.host == nil {
		return nil, g.opened()
	}
	all, err := g.host.DumpTables()
	return func() (any, error) { return &list[nl.TableDump]{all}, nil }, err
}

func (g *gathering) programs(context.Context) (finish, error) {
	all, err := nl.DumpPins()
	if g.host != nil && g.shot != nil {
		at, err2 := g.host.DumpFilters(g.shot.Link)
		all, err = append(all, at...), errors.Join(err, err2)
	}
	if len(all) > 0 {
		err = nil // what could be read counts
	}
	return func() (any, error) { return &list[nl.ProgramDump]{all}, nil }, err
}

// An Inside is what the kernel has in the namespace of a pod.
type Inside struct {
	NetNS    string           `json:"netns"`
	Links    []nl.Link        `json:"links"`
	Addrs    []nl.Addr        `json:"addresses"`
	Routes   []nl.Route       `json:"routes"` // of all tables, without the local one
	Rules    []nl.Rule        `json:"rules"`
	Programs []nl.ProgramDump `json:"programs"`
	Why      string           `json:"why"` // a part could not be read; else ""
}

// pods looks into the namespaces of leases.
func (g *gathering) pods(ctx context.Context) (finish, error) {
	if g.state == nil {
		return nil, errors.New("the pods are not known, because the registry was not read")
	}
	paths := map[string]bool{}
	for _, l := range g.state.Leases.All() {
		if l.NetNS != "" {
			paths[l.NetNS] = true
		}
	}
	var all []Inside
	for _, path := range slices.Sorted(maps.Keys(paths)) {
		if ctx.Err() != nil {
			break
		}
		all = append(all, insideOf(path))
	}
	return func() (any, error) {
		for i := range all {
			all[i].Why = g.allow.text(all[i].Why)
		}
		return &list[Inside]{all}, nil
	}, nil
}

// insideOf reads a namespace. A pod can give its links any alias, so none leaves the node.
func insideOf(path string) Inside {
	p := Inside{NetNS: path}
	ns, err := nl.Open(path, path)
	if err != nil {
		p.Why = err.Error()
		return p
	}
	defer ns.Close()
	var failed [5]error
	p.Links, failed[0] = ns.Links()
	p.Addrs, failed[1] = ns.Addrs("")
	p.Routes, failed[2] = ns.Routes(nl.RouteFilter{})
	p.Rules, failed[3] = ns.Rules()
	p.Programs, failed[4] = ns.DumpFilters(p.Links)
	if err := errors.Join(failed[:]...); err != nil {
		p.Why = err.Error()
	}
	for i := range p.Links {
		p.Links[i].Alias = ""
	}
	return p
}

// A list loses its end if it has no room.
type list[T any] struct{ items []T }

// MarshalJSON writes the items.
func (l *list[T]) MarshalJSON() ([]byte, error) { return json.Marshal(append([]T{}, l.items...)) }

func (l *list[T]) Cut() bool {
	l.items = l.items[:len(l.items)/2]
	return len(l.items) > 0
}

// A tail is a list that loses its beginning.
type tail[T any] struct{ items []T }

// MarshalJSON writes the items.
func (l *tail[T]) MarshalJSON() ([]byte, error) { return json.Marshal(append([]T{}, l.items...)) }

func (l *tail[T]) Cut() bool {
	l.items = l.items[(len(l.items)+1)/2:]
	return len(l.items) > 0
}
