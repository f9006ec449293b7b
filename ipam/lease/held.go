// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package lease

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// This file is about a chosen address that follows its pod to another node. After the pod's DEL, a unit of systemd
// releases the address to EC2: see less.ReleaseChosen. The release proves that no pod of the old node has the address,
// so the ADD on the other node waits for the release. EC2's answer that the old node's instance has ended is also a
// proof.

// Release is the name of the mark that a DEL leaves if a process must release a chosen address to EC2.
const Release = "release"

// ToRelease reports whether a process must release an address to EC2 at once. Such an address is free, and a pod had
// chosen it. This pod may start again on another node. EC2 unassigns neither a primary address nor an address of a
// prefix, so ToRelease returns false for such addresses.
func ToRelease(s *registry.State, a netip.Addr) bool {
	if _, owned := s.Owners[a]; !owned || !s.Free.Has(a) {
		return false
	}
	_, e := s.ENIOf(a)
	return slices.Contains(e.Addrs, a) && a != e.Primary() && e.Serving && !e.Foreign && !e.Keep && e.TagsUnknown == ""
}

// AnyToRelease reports whether a process must release an address to EC2, or finish such a release.
func AnyToRelease(s *registry.State) bool {
	for a := range s.Owners {
		if ToRelease(s, a) {
			return true
		}
	}
	for _, i := range s.Intents {
		if ReleasesChosen(i) {
			return true
		}
	}
	return false
}

// ReleasesChosen reports whether an intent is for the release of one address to EC2. A pod had chosen this address, or
// an operator's command has named it.
func ReleasesChosen(i registry.Intent) bool {
	return slices.Contains(releaseActions, i.Action) && i.Addr.IsValid()
}

// AwaitedAddr reports whether an ADD of this node waits for the address, because the ADD's pod has chosen it.
func AwaitedAddr(s *registry.State, a netip.Addr, now time.Time) bool {
	for _, w := range s.Waiters {
		_, addrs, _ := strings.Cut(w.Pool, addrSep)
		if now.Before(w.Until) && slices.Contains(strings.Split(addrs, addrSep), a.String()) {
			return true
		}
	}
	return false
}

// If another node has the chosen address, an ADD waits before it asks EC2 again. The first waits are short, because the
// earlier pod has usually ended already.
const (
	firstHeld = 500 * time.Millisecond
	mostHeld  = 4 * time.Second
)

// askWhileHeld waits for the owner's turn, and then asks the source for addresses. While another node has the chosen
// address, askWhileHeld waits without a lock, and asks again, until ctx is done.
func (p *Pool) askWhileHeld(ctx context.Context, o Owner, from Source) (Allocation, error) {
	var held *plugin.Error
	for wait := firstHeld; ; wait = min(2*wait, mostHeld) {
		got, err := p.askInTurn(ctx, o, from)
		if IsHeld(err) && !from.Hands {
			held, _ = errors.AsType[*plugin.Error](err)
		} else if err == nil || held == nil || ctx.Err() == nil {
			return got, err
		}
		if end, limited := ctx.Deadline(); ctx.Err() != nil || limited && time.Until(end) < wait {
			return got, plugin.Errorf(plugin.CodeTryAgain, held.Hint, "%w", held)
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
	}
}

// IsHeld reports whether err means that another node has the chosen address, but might release it.
func IsHeld(err error) bool {
	e, ok := errors.AsType[*plugin.Error](err)
	return ok && e.Code == plugin.CodeHeld
}
