// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package less

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/book"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// Deallocate unassigns addresses of this node's ENIs, in one call for each ENI and family. It unassigns nothing if one
// of the addresses is not free, or is the primary address of an ENI. If EC2 throttles or does not answer, Deallocate
// makes no further call. Even after an error, it returns the addresses that have left their ENIs.
//
// Each address has an intent until the outcome of its call is known. If the process is killed or gets no answer, an
// operator can repeat the command "deallocate", which then releases the address. The next collection also releases the
// address, unless a network of the node has the provision "none".
func (p *Node) Deallocate(ctx context.Context, addrs ...netip.Addr) (gone []netip.Addr, err error) {
	for _, a := range addrs {
		if err := p.AwaitTurn(ctx, book.UnassignActionOf(a)); err != nil {
			return nil, err
		}
	}
	if err := errors.Join(p.ForgetRefusals(ctx), p.Learn(ctx)); err != nil {
		return nil, err
	}
	p.Look(ctx)
	unlock, err := p.Registry.Lock(ctx, "grow") // see releaseFrom
	if err != nil {
		return nil, err
	}
	defer unlock()
	victims, begun, err := p.withdrawNamed(ctx, addrs)
	if err != nil {
		return nil, err
	}
	for _, i := range begun {
		if err := p.repeatRelease(ctx, i); err != nil {
			return gone, errors.Join(withFinisher(err), p.restoreAll(ctx, victims))
		}
		gone = append(gone, i.Addr)
	}
	gone, err = p.unassignNamed(ctx, victims, gone)
	return gone, withFinisher(err)
}

// withFinisher adds a text to an error that comes from a lost answer of EC2. The text says which commands finish the
// release.
func withFinisher(err error) error {
	if aws.MaybeDone(err) {
		err = fmt.Errorf("%w. To finish the release, repeat the command. The next registry-gc also finishes the "+
			"release, unless \"provision\" of a network of the node is \"none\"", err)
	}
	return err
}

// withdrawNamed removes the named addresses from the registry, and writes an intent for each. The result victims has
// the addresses by ENI. The result begun has the intents of unfinished earlier releases.
func (p *Node) withdrawNamed(
	ctx context.Context, addrs []netip.Addr,
) (victims map[string]book.Releasable, begun []registry.Intent, err error) {
	err = p.Registry.Update(ctx, func(s *registry.State) (refused error) {
		victims, begun = map[string]book.Releasable{}, nil
		for _, a := range addrs {
			if i, left := book.LeftRelease(s, a); left && s.ENIs[i.ENI].Missed.IsZero() {
				begun = append(begun, i)
				continue
			}
			id, err := releasableENI(s, a)
			refused = errors.Join(refused, err)
			if victims[id].Addrs == nil {
				victims[id] = book.Releasable{Addrs: map[netip.Addr]time.Time{}}
			}
			victims[id].Addrs[a], _ = s.Free.At(a)
		}
		if refused != nil {
			return refused
		}
		for id, x := range victims {
			book.NoteNamed(s, id, x)
			book.Withdraw(s, id, x)
		}
		return nil
	})
	return victims, begun, err
}

// unassignNamed unassigns the addresses in victims, ENI by ENI, and adds the unassigned addresses to gone.
func (p *Node) unassignNamed(
	ctx context.Context, victims map[string]book.Releasable, gone []netip.Addr,
) (_ []netip.Addr, failed error) {
	for _, id := range slices.Sorted(maps.Keys(victims)) {
		for _, family := range []func(netip.Addr) bool{netip.Addr.Is4, netip.Addr.Is6} {
			x := victims[id].Only(family, func(netip.Prefix) bool { return false })
			if x.Empty() {
				continue
			}
			left, err := p.unassignAll(ctx, id, x)
			gone, failed = append(gone, left.List()...), errors.Join(failed, err)
			victims[id] = victims[id].Without(x)
			if stops(err) {
				return gone, errors.Join(failed, p.restoreAll(ctx, victims))
			}
		}
	}
	return gone, failed
}

// restoreAll puts addresses back into the registry, because Deallocate has made no call for them.
func (p *Node) restoreAll(ctx context.Context, victims map[string]book.Releasable) error {
	return p.Registry.Change(context.WithoutCancel(ctx), func(s *registry.State) {
		for id, x := range victims {
			restoreAddrs(s, id, x)
		}
	})
}

// releasableENI returns the ENI that has the address. If the ENI cannot lose the address, releasableENI returns an
// error.
func releasableENI(s *registry.State, a netip.Addr) (string, error) {
	id, e := s.ENIOf(a)
	lease, leased := s.Leases.At(a)
	switch {
	case id == "":
		return "", fmt.Errorf("IP not found - can't release %s: it is on none of this instance's ENIs", a)
	case leased:
		return "", fmt.Errorf("%s is in use: %s", a, book.Holder(lease))
	case e.Foreign:
		return "", fmt.Errorf("%s is on %s, and the owner of this ENI forbids changes (tag %s)", a, id,
			book.TagNoManage)
	case e.TagsUnknown == registry.NotAsked:
		return "", fmt.Errorf("%s is on %s, and EC2 has not answered whether its owner forbids changes: run the "+
			"command again", a, id)
	case !e.Missed.IsZero():
		return "", fmt.Errorf("%s is on %s, whose link is not on the node: another instance may have this ENI", a, id)
	case !slices.Contains(e.Addrs, a) && a.Is6():
		return "", fmt.Errorf("%s is in a prefix, which stays on %s as long as the ENI exists", a, id)
	case !slices.Contains(e.Addrs, a):
		return "", fmt.Errorf("%s is in a prefix of %s, and EC2 releases only whole prefixes: registry-gc releases "+
			"the prefix when no pod uses it",
			a, id)
	case a == e.Primary():
		return "", fmt.Errorf("%s is the primary address of %s, and EC2 unassigns no primary address", a, id)
	case !s.Free.Has(a):
		return "", fmt.Errorf("%s may be in use: the registry does not list it as free", a)
	}
	return id, nil
}
