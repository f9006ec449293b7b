// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package lease

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// A pod that has a whole ENI can change all settings of its link, and they stay when the link comes back (see
// [nl.Settings]). So an ADD records them before the pod gets the link, and the pod's DEL puts them back. If the kernel
// brings the link back later, because the pod's namespace ends, the next ADD that gets the ENI puts them back. Until
// then, the registry has them. So has doctor.

// ErrKept means that the link of an ENI keeps what an earlier pod has set or made there.
var ErrKept = errors.New("its link still has settings or links of an earlier pod")

// hintKept says what an operator can do about [ErrKept].
const hintKept = "detach the ENI, which resets its link, or reboot the node; if other links use it, end their " +
	"namespaces: see 'ip -d link' in these"

// settle makes the link of an ENI that pods ask for as it was before a pod had it. A pod that gets the whole ENI gets
// no link that others use. A pod can leave links of all kinds on it, in namespaces of its own.
func (p *Pool) settle(ctx context.Context, e registry.ENI, id string, link nl.Link) error {
	if !p.Policy.Choice.Chooses() {
		return nil
	}
	if len(e.Settings) > 0 {
		if err := p.Host.PutBack(link, e.Settings); err != nil {
			return fmt.Errorf("%w: %w", ErrKept, err)
		}
	}
	if !p.Policy.Choice.Exclusive {
		if len(e.Settings) > 0 {
			return p.noteSettings(ctx, id, nil)
		}
		return nil
	}
	return eachNetNS(p.shelves(), func(ns *nl.NS) error {
		uses, err := ns.HasOn(p.Host, link)
		if uses {
			err = fmt.Errorf("%w: a link in the network namespace %s uses it", ErrKept, ns.Name)
		}
		return err
	})
}

// record records the settings of the link that a pod is about to get.
func (p *Pool) record(ctx context.Context, id string, link nl.Link) error {
	if !p.Policy.Choice.Exclusive {
		return nil
	}
	now, err := p.Host.Settings(link)
	if err != nil {
		return err
	}
	return p.noteSettings(ctx, id, now)
}

// noteSettings replaces the recorded settings of an ENI of which the pod has a lease: no other process does so
// meanwhile.
func (p *Pool) noteSettings(ctx context.Context, id string, now nl.Settings) error {
	return p.Registry.Change(ctx, func(s *registry.State) {
		if e, ok := s.ENIs[id]; ok {
			e.Settings = now
			s.ENIs[id] = e
		}
	})
}

// wholeOf returns the ENIs whose links an attachment has.
func wholeOf(s *registry.State, k registry.Key) map[string]registry.ENI {
	var all map[string]registry.ENI
	for _, a := range s.Held(k) {
		if l, _ := s.Leases.At(a); l.Exclusive {
			if all == nil {
				all = map[string]registry.ENI{}
			}
			all[l.ENI] = s.ENIs[l.ENI]
		}
	}
	return all
}

// putBackSettings puts back what the pod of a DEL has set at the links of ENIs. A failure fails no DEL: the next ADD
// tries again, and fails.
func (p *Pool) putBackSettings(ctx context.Context, whole map[string]registry.ENI) {
	if len(whole) == 0 {
		return
	}
	err := p.withHost(func(host *nl.NS) (failed error) {
		for id, e := range whole {
			link, err := host.FindMAC(e.MAC)
			if errors.Is(err, fs.ErrNotExist) {
				continue // it is not back yet
			}
			if err == nil {
				err = host.PutBack(link, e.Settings)
			}
			if err == nil {
				err = p.forgetSettings(ctx, id, e.Settings)
			}
			failed = errors.Join(failed, err)
		}
		return failed
	})
	if err != nil {
		slog.Warn("a pod has changed the link of an ENI, and the change cannot be undone: no pod gets the ENI until "+
			"it is; "+hintKept,
			"error", err)
	}
}

// forgetSettings forgets settings that the link of an ENI has again, unless another pod gets the ENI meanwhile.
func (p *Pool) forgetSettings(ctx context.Context, id string, was nl.Settings) error {
	return p.Registry.Change(ctx, func(s *registry.State) {
		if e, ok := s.ENIs[id]; ok && maps.Equal(e.Settings, was) && !anyOn(s, id) {
			e.Settings = nil
			s.ENIs[id] = e
		}
	})
}

// withHost calls f with the node's namespace. A DEL has not opened it.
func (p *Pool) withHost(f func(*nl.NS) error) error {
	if p.Host != nil {
		return f(p.Host)
	}
	host, err := nl.Node()
	if err != nil {
		return err
	}
	defer host.Close()
	return f(host)
}
