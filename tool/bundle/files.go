// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package bundle

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/conf"
)

// A network is the part of a conflist that may leave the node.
type network struct {
	File string          `json:"file"`
	List json.RawMessage `json:"list"`
}

// readConflists reads the conflists, and keeps only their documented keys (see [conf.List.Documented]). The returned
// [finish] also adds the names and tags of the conflists to the allowance. So later readings keep these names and tags.
func (g *gathering) readConflists(context.Context) (finish, error) {
	return func() (any, error) {
		all := []network{}
		failed := g.lists.Unlisted
		for _, f := range g.lists.Files {
			failed = errors.Join(failed, f.Failed)
			g.allow.allowWords(f.Path)
			for _, l := range f.Lists {
				text, err := l.Documented()
				failed = errors.Join(failed, err)
				all = append(all, network{f.Path, text})
				g.allow.allowWords(l.Name)
				g.allow.allowTags(l)
			}
		}
		if len(all) == 0 && failed != nil {
			return nil, failed
		}
		return all, nil
	}, nil
}

// allowTags adds the subnetTags of a conflist to the tags that may leave the node.
func (w *allowance) allowTags(l conf.List) {
	if l.IPAM == nil {
		return
	}
	for _, p := range l.IPAM.Policies() {
		for key, value := range p.SubnetTags {
			w.tags[key] = value
		}
	}
}

func (g *gathering) readRegistry(context.Context) (finish, error) {
	if err := g.openError(); err != nil {
		return nil, err
	}
	s, err := g.node.Pool().Registry.View()
	return func() (any, error) {
		g.state = s
		g.allow.allowNames(s)
		return &registryFile{g.allow.keptState(s)}, nil
	}, err
}

// allowNames adds the names in a registry to the words that may leave the node.
func (w *allowance) allowNames(s *registry.State) {
	for _, l := range s.Leases.All() {
		w.allowWords(l.PodNamespace, l.PodName, l.PodOf(), l.ContainerID, l.NetNS, l.IfName, l.Network)
	}
	for id, e := range s.ENIs {
		w.allowWords(id, e.Link, e.Pool, e.MAC, e.Subnet, e.VPC)
	}
	w.allowWords(s.Instance.ID, s.Instance.Type, s.Instance.Zone)
}

// A registryFile is the text of a registry. If the bundle lacks room, the text loses free addresses, and then leases.
type registryFile struct{ state *registry.State }

// MarshalJSON writes the state in the format of the registry's file.
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

// readLeaseLog reads the end of the lease log, whose file the registry or a conflist names.
func (g *gathering) readLeaseLog(context.Context) (finish, error) {
	file := ""
	if g.state != nil {
		file = g.state.Log.File
	}
	networks, _ := g.lists.All()
	for _, l := range networks {
		file = cmp.Or(file, l.IPAM.Policies()[0].Log.File)
	}
	if file == "" {
		return nil, errors.New("this node writes no lease log, because no conflist has the key leaseLog")
	}
	lines, err := endOfLog(file)
	return func() (any, error) {
		g.allow.allowWords(file)
		for _, l := range lines {
			g.allow.allowWords(l.Namespace, l.Pod, l.Namespace+"/"+l.Pod, l.Container)
		}
		return &list[registry.Line]{items: lines, keepsEnd: true}, nil
	}, err
}
