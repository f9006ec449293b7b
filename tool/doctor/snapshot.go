// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"sync"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/ask"
)

// A Kernel answers the questions of the checks about the node's network namespace. It is the kernel itself, or a
// [Snapshot] of the namespace.
type Kernel interface {
	Links() ([]nl.Link, error)
	LinkByName(name string) (nl.Link, error)
	Addrs(dev string) ([]nl.Addr, error)
	AllAddrs() ([]netip.Addr, error)
	Rules() ([]nl.Rule, error)
	Routes(nl.RouteFilter) ([]nl.Route, error)
	Leaves(from, to netip.Addr) (dev string, err error)
	Forwards(iif string, from, to netip.Addr) (dev string, err error)
	Sysctl(key string) (string, error)
	DroppingChains(nl.Family) ([]nl.DroppingChain, error)
	ClusterIPs(nl.Family) ([]netip.Addr, error)
	ServiceEndpoints(nl.Family) ([]netip.Addr, error)
}

// A liveKernel is the [Kernel] that asks the kernel itself.
type liveKernel struct{ *nl.NS }

func (l liveKernel) Leaves(from, to netip.Addr) (dev string, err error) {
	return ask.Leaves(l.NS, from, to)
}

// Forwards returns "" also if the kernel drops the packet because of its source.
func (l liveKernel) Forwards(iif string, from, to netip.Addr) (dev string, err error) {
	if dev, err = ask.Forwards(l.NS, iif, from, to); errors.Is(err, ask.ErrSource) {
		err = nil
	}
	return dev, err
}

// The names of the lists in a snapshot.
const (
	listLinks  = "links"
	listAddrs  = "addresses"
	listRules  = "rules"
	listRoutes = "routes"
)

// A Snapshot has data of a kernel: four lists, and the answers to the questions of the checks.
type Snapshot struct {
	Link  []nl.Link  `json:"links"`
	Addr  []nl.Addr  `json:"addresses"`
	Rule  []nl.Rule  `json:"rules"`
	Route []nl.Route `json:"routes"` // of all tables except the table local
	// Lacks says why a list is missing or not complete. The key is the name of the list.
	Lacks map[string]string `json:"lacks"`

	Answers    map[string]string             `json:"answers"` // sysctls, results of Leaves and Forwards; "": no value
	Names      map[string]string             `json:"names"`   // key: a name that a check used; value: see ownName
	Chains     map[string][]nl.DroppingChain `json:"chains"`  // chains that may drop packets, by family
	Services   map[string][]netip.Addr       `json:"services"`
	Endpoints  map[string][]netip.Addr       `json:"endpoints"`
	Neighbours map[string]int                `json:"neighbours"` // how many entries the table of a family has

	mu sync.Mutex // needed because a check that missed its deadline goes on, and may still store answers
}

// TakeSnapshot reads the four lists. If it cannot read a list, Lacks says why.
func TakeSnapshot(n *nl.NS) *Snapshot {
	s := &Snapshot{Lacks: map[string]string{}, Answers: map[string]string{}, Names: map[string]string{},
		Chains: map[string][]nl.DroppingChain{}, Services: map[string][]netip.Addr{},
		Endpoints: map[string][]netip.Addr{}, Neighbours: map[string]int{}}
	var err [4]error
	s.Link, err[0] = n.Links()
	s.Addr, err[1] = n.Addrs("")
	s.Rule, err[2] = n.Rules()
	s.Route, err[3] = n.Routes(nl.RouteFilter{})
	for i, list := range []string{listLinks, listAddrs, listRules, listRoutes} {
		if err[i] != nil {
			s.Lacks[list] = err[i].Error()
		}
	}
	for _, family := range []string{"ipv4", "ipv6"} {
		s.Neighbours[family] = neighborCount(family)
	}
	return s
}

// Cut halves the longest list, and reports whether this list still has entries.
func (s *Snapshot) Cut() bool {
	lengths := map[string]int{listLinks: len(s.Link), listAddrs: len(s.Addr), listRules: len(s.Rule),
		listRoutes: len(s.Route)}
	longest := listLinks
	for list, n := range lengths {
		if n > lengths[longest] {
			longest = list
		}
	}
	left := lengths[longest] / 2
	switch longest {
	case listLinks:
		s.Link = s.Link[:left]
	case listAddrs:
		s.Addr = s.Addr[:left]
	case listRules:
		s.Rule = s.Rule[:left]
	case listRoutes:
		s.Route = s.Route[:left]
	}
	s.Lacks[longest] = fmt.Sprintf("it has room only for the first %d", left)
	return lengths[longest] > 1
}

// listError returns an error if a list is missing or not complete.
func (s *Snapshot) listError(list string) error {
	if why := s.Lacks[list]; why != "" {
		return fmt.Errorf("the bundle does not have all %s of the node: %s", list, why)
	}
	return nil
}

// errNotAsked means that the bundle lacks an answer of the kernel, because no check asked for this answer on the node.
var errNotAsked = errors.New("the bundle does not have this answer of the node's kernel")

// Links lists the links.
func (s *Snapshot) Links() ([]nl.Link, error) { return s.Link, s.listError(listLinks) }

// LinkByName finds a link by its own name, or by another name that a check on the node has used.
func (s *Snapshot) LinkByName(name string) (nl.Link, error) {
	if err := s.listError(listLinks); err != nil {
		return nl.Link{}, err
	}
	own := s.ownName(name)
	for _, l := range s.Link {
		if l.Name == own {
			return l, nil
		}
	}
	return nl.Link{}, fmt.Errorf("link %s: %w", name, fs.ErrNotExist)
}

// ownName returns a link's own name. A check on the node may have asked for the link by an alternative name.
func (s *Snapshot) ownName(name string) string {
	if own := s.Names[name]; own != "" {
		return own
	}
	return name
}

// Addrs lists the addresses of a link, or of all links if dev is "".
func (s *Snapshot) Addrs(dev string) (all []nl.Addr, err error) {
	for _, a := range s.Addr {
		if dev == "" || a.Dev == s.ownName(dev) {
			all = append(all, a)
		}
	}
	return all, s.listError(listAddrs)
}

// AllAddrs lists the addresses of all links.
func (s *Snapshot) AllAddrs() (all []netip.Addr, err error) {
	for _, a := range s.Addr {
		all = append(all, a.Prefix.Addr())
	}
	return all, s.listError(listAddrs)
}

// Rules lists the routing rules.
func (s *Snapshot) Rules() ([]nl.Rule, error) { return s.Rule, s.listError(listRules) }

// Routes lists the routes that match the filter.
func (s *Snapshot) Routes(f nl.RouteFilter) (all []nl.Route, err error) {
	for _, r := range s.Route {
		if f.Matches(r) {
			all = append(all, r)
		}
	}
	return all, s.listError(listRoutes)
}

// Leaves returns by which link a packet leaves the node.
func (s *Snapshot) Leaves(from, to netip.Addr) (dev string, err error) {
	dev, asked := s.Answers[routeQuestion(from, to)]
	if !asked {
		err = errNotAsked
	}
	return dev, err
}

// Forwards returns by which link the node forwards a packet that has arrived by the link iif.
func (s *Snapshot) Forwards(iif string, from, to netip.Addr) (dev string, err error) {
	dev, asked := s.Answers[routeQuestion(from, to)+" iif "+iif]
	if !asked {
		err = errNotAsked
	}
	return dev, err
}

// Sysctl returns the value of a sysctl.
func (s *Snapshot) Sysctl(key string) (string, error) {
	value, asked := s.Answers[key]
	switch {
	case !asked:
		return "", fmt.Errorf("%s: %w", key, errNotAsked)
	case value == "":
		return "", fmt.Errorf("%s: %w", key, fs.ErrNotExist)
	}
	return value, nil
}

// DroppingChains lists the chains of other programs that may drop packets of a family.
func (s *Snapshot) DroppingChains(f nl.Family) ([]nl.DroppingChain, error) {
	return familyAnswer(s.Chains, f)
}

// ClusterIPs lists the addresses of Services.
func (s *Snapshot) ClusterIPs(f nl.Family) ([]netip.Addr, error) { return familyAnswer(s.Services, f) }

// ServiceEndpoints lists the addresses of the endpoints of Services.
func (s *Snapshot) ServiceEndpoints(f nl.Family) ([]netip.Addr, error) {
	return familyAnswer(s.Endpoints, f)
}

func familyAnswer[T any](answers map[string][]T, f nl.Family) ([]T, error) {
	all, asked := answers[f.String()]
	if !asked {
		return nil, errNotAsked
	}
	return all, nil
}

func routeQuestion(from, to netip.Addr) string { return from.String() + " to " + to.String() }

// A recorder is a [Kernel] that asks the node's kernel. It also writes the answers into a snapshot.
type recorder struct {
	liveKernel
	snapshot *Snapshot
}

// recordAnswer records an answer. fs.ErrNotExist is an answer, too: the kernel has no value. Other errors are not
// recorded.
func (r recorder) recordAnswer(question, value string, err error) {
	r.snapshot.mu.Lock()
	defer r.snapshot.mu.Unlock()
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		r.snapshot.Answers[question] = value
	}
}

func (r recorder) Sysctl(key string) (string, error) {
	value, err := r.NS.Sysctl(key)
	r.recordAnswer(key, value, err)
	return value, err
}

func (r recorder) Leaves(from, to netip.Addr) (string, error) {
	dev, err := r.liveKernel.Leaves(from, to)
	r.recordAnswer(routeQuestion(from, to), dev, err)
	return dev, err
}

func (r recorder) Forwards(iif string, from, to netip.Addr) (string, error) {
	dev, err := r.liveKernel.Forwards(iif, from, to)
	r.recordAnswer(routeQuestion(from, to)+" iif "+iif, dev, err)
	return dev, err
}

func (r recorder) LinkByName(name string) (nl.Link, error) {
	l, err := r.NS.LinkByName(name)
	r.snapshot.mu.Lock()
	defer r.snapshot.mu.Unlock()
	if err == nil {
		r.snapshot.Names[name] = l.Name
	}
	return l, err
}

func (r recorder) DroppingChains(f nl.Family) ([]nl.DroppingChain, error) {
	return askAndRecord(r.snapshot, r.snapshot.Chains, f, r.NS.DroppingChains)
}

func (r recorder) ClusterIPs(f nl.Family) ([]netip.Addr, error) {
	return askAndRecord(r.snapshot, r.snapshot.Services, f, r.NS.ClusterIPs)
}

func (r recorder) ServiceEndpoints(f nl.Family) ([]netip.Addr, error) {
	return askAndRecord(r.snapshot, r.snapshot.Endpoints, f, r.NS.ServiceEndpoints)
}

// askAndRecord asks the kernel about the family f. It adds the kernel's answer to the map "answers".
func askAndRecord[T any](
	s *Snapshot, answers map[string][]T, f nl.Family, ask func(nl.Family) ([]T, error),
) ([]T, error) {
	all, err := ask(f)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		answers[f.String()] = all
	}
	return all, err
}

// Copy returns a copy of the data that the snapshot has so far.
func (s *Snapshot) Copy() *Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &Snapshot{Link: s.Link, Addr: s.Addr, Rule: s.Rule, Route: s.Route, Lacks: maps.Clone(s.Lacks),
		Answers: maps.Clone(s.Answers), Names: maps.Clone(s.Names), Chains: maps.Clone(s.Chains),
		Services: maps.Clone(s.Services), Endpoints: maps.Clone(s.Endpoints), Neighbours: maps.Clone(s.Neighbours)}
}
