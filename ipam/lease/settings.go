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

// A pod that has a whole ENI can change all settings of the ENI's link. The changes stay when the link is back on the
// node (see [nl.Settings]). So an ADD records the settings before the pod gets the link, and the pod's DEL restores
// them. If the link comes back only after the DEL, the next ADD that gets the ENI restores the settings. Until then,
// the command doctor finds the changed link.

// ErrKept means that an ENI's link still has settings of an earlier pod, or that links of an earlier pod still use the
// ENI's link.
var ErrKept = errors.New("the ENI's link still has settings of an earlier pod, or links of an earlier pod still use it")

// hintKept tells an operator what to do about [ErrKept].
const hintKept = "detach the ENI, which resets its link, or reboot the node. If other links use the ENI's link, end " +
	"the namespaces of these links: see 'ip -d link' there"

// restoreSettings restores the settings that the link of a chosen ENI had before an earlier pod got the ENI. The
// earlier pod may have made namespaces with links whose parent is the ENI's link. If the new pod gets the whole ENI,
// and such a link still exists, restoreSettings returns an error.
func (p *Pool) restoreSettings(ctx context.Context, e registry.ENI, id string, link nl.Link) error {
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
			err = fmt.Errorf("%w: a link in the network namespace %s uses the ENI's link", ErrKept, ns.Name)
		}
		return err
	})
}

// recordSettings records the settings of a link that a pod is about to get with a whole ENI.
func (p *Pool) recordSettings(ctx context.Context, id string, link nl.Link) error {
	if !p.Policy.Choice.Exclusive {
		return nil
	}
	now, err := p.Host.Settings(link)
	if err != nil {
		return err
	}
	return p.noteSettings(ctx, id, now)
}

// noteSettings records the settings of an ENI's link, in place of the recorded ones. The new pod already has a lease on
// the ENI, so no other ADD records settings.
func (p *Pool) noteSettings(ctx context.Context, id string, settings nl.Settings) error {
	return p.Registry.Change(ctx, func(s *registry.State) {
		if e, ok := s.ENIs[id]; ok {
			e.Settings = settings
			s.ENIs[id] = e
		}
	})
}

// wholeENIs returns the whole ENIs of an attachment, by ID. The links of these ENIs are in the pod.
func wholeENIs(s *registry.State, k registry.Key) map[string]registry.ENI {
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

// putBackSettings is the part of a DEL that restores the link settings of the pod's whole ENIs. If putBackSettings
// fails, the DEL still succeeds, and the next ADD that gets the ENI tries again.
func (p *Pool) putBackSettings(ctx context.Context, whole map[string]registry.ENI) {
	if len(whole) == 0 {
		return
	}
	err := p.withHost(func(host *nl.NS) (failed error) {
		for id, e := range whole {
			link, err := host.FindMAC(e.MAC)
			if errors.Is(err, fs.ErrNotExist) {
				continue // the link is not back on the node yet
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
			"the change is undone; "+hintKept,
			"error", err)
	}
}

// forgetSettings removes the settings from an ENI's entry, because the link has these settings again. If a pod has a
// lease on the ENI, the entry stays as it is. The entry also stays if its settings differ from the settings in the
// argument "recorded".
func (p *Pool) forgetSettings(ctx context.Context, id string, recorded nl.Settings) error {
	return p.Registry.Change(ctx, func(s *registry.State) {
		if e, ok := s.ENIs[id]; ok && maps.Equal(e.Settings, recorded) && !HasLeases(s, id) {
			e.Settings = nil
			s.ENIs[id] = e
		}
	})
}

// withHost calls f with the node's namespace. A DEL does not open this namespace in advance, so withHost opens it if
// necessary.
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
