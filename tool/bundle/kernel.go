// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package bundle

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/doctor"
)

// readKernel reads the links, addresses, rules and routes of the node into g.shot, for later readings.
func (g *gathering) readKernel(context.Context) (finish, error) {
	if g.host == nil {
		return nil, g.openError()
	}
	s := doctor.TakeSnapshot(g.host)
	return func() (any, error) {
		g.shot = s
		for _, l := range s.Link {
			g.allow.allowWords(l.Name)
		}
		return nil, nil
	}, nil
}

func (g *gathering) readSnapshot(context.Context) (finish, error) {
	if g.shot == nil {
		return nil, errors.New("the kernel was not read")
	}
	return func() (any, error) {
		s := g.shot.Copy()
		s.Link = g.allow.keptLinks(s.Link)
		for list, why := range s.Lacks {
			s.Lacks[list] = g.allow.keptText(why)
		}
		return s, nil
	}, nil
}

func (g *gathering) readTables(context.Context) (finish, error) {
	if g.host == nil {
		return nil, g.openError()
	}
	all, err := g.host.DumpTables()
	return func() (any, error) { return &list[nl.TableDump]{items: all}, nil }, err
}

func (g *gathering) readPrograms(context.Context) (finish, error) {
	all, err := nl.DumpPins()
	if g.host != nil && g.shot != nil {
		at, err2 := g.host.DumpFilters(g.shot.Link)
		all, err = append(all, at...), errors.Join(err, err2)
	}
	if len(all) > 0 {
		err = nil // if some programs could be read, the reading has not failed
	}
	return func() (any, error) { return &list[nl.ProgramDump]{items: all}, nil }, err
}

// PodObjects are the kernel's objects in the namespace of a pod.
type PodObjects struct {
	NetNS    string           `json:"netns"`
	Links    []nl.Link        `json:"links"`
	Addrs    []nl.Addr        `json:"addresses"`
	Routes   []nl.Route       `json:"routes"` // the routes of all tables except the table local
	Rules    []nl.Rule        `json:"rules"`
	Programs []nl.ProgramDump `json:"programs"`
	Why      string           `json:"why"` // why a part could not be read; else ""
}

// readPods reads the kernel's objects in the namespaces of pods with leases.
func (g *gathering) readPods(ctx context.Context) (finish, error) {
	if g.state == nil {
		return nil, errors.New("the pods are not known, because the registry was not read")
	}
	paths := map[string]bool{}
	for _, l := range g.state.Leases.All() {
		if l.NetNS != "" {
			paths[l.NetNS] = true
		}
	}
	var all []PodObjects
	for _, path := range slices.Sorted(maps.Keys(paths)) {
		if ctx.Err() != nil {
			break
		}
		all = append(all, podObjects(path))
	}
	return func() (any, error) {
		for i := range all {
			all[i].Why = g.allow.keptText(all[i].Why)
		}
		return &list[PodObjects]{items: all}, nil
	}, nil
}

// podObjects returns the objects in the namespace at a path. A pod can give its links any alias, so no alias leaves the
// node.
func podObjects(path string) PodObjects {
	p := PodObjects{NetNS: path}
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
