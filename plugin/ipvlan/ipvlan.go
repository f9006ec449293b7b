// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package ipvlan is the middle plugin of the chain. It puts an ipvlan slave of an ENI into the pod, with the address
// and the routes that the ipam plugin chose. A pod that asks for the whole ENI gets the ENI's own link instead: see
// card.go.
//
// A chain needs some properties that CNI's reference plugin ipvlan does not have:
//
//   - This plugin takes its masters from prevResult, even several. Its DEL needs neither prevResult nor a master.
//   - Its CHECK also works if later plugins have added interfaces to the result.
//   - Its result has the DNS settings of prevResult.
//   - An ADD that fails removes the objects that it has made.
//   - It calls no other plugin.
//
// A pod may have several interfaces: see further.go. For a routed pod, the plugin makes no slave, and returns
// prevResult.
//
// The invariant: after an ADD, the pod has all interfaces of the ADD, and each is complete. If the ADD fails, the pod
// has no part of these interfaces.
package ipvlan

//go:generate go run ../../internal/codec/gen

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"slices"
	"syscall"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin/nic"
)

// Commands returns the commands of the ipvlan plugin. GC has nothing to do: slaves end with their namespace. For a pod
// with a whole ENI, the DEL gets the name of the ENI's link from nameOnNode. nameOnNode is nil if the caller has no
// registry.
func Commands(nameOnNode Home) plugin.Commands[Config] {
	return plugin.Commands[Config]{Add: add, Check: check, Status: status,
		Del: func(ctx context.Context, r *plugin.Request[Config]) error { return del(ctx, r, nameOnNode) }}
}

func add(ctx context.Context, r *plugin.Request[Config]) (res *types100.Result, err error) {
	if _, routed := plugin.Routed(r.Prev, r.IfName); routed {
		return r.Prev, nil // unnumbered-ptp makes the pod's link
	}
	asked, err := r.Config.Requests(r.IfName)
	if err != nil {
		return nil, plugin.Errorf(plugin.CodeInvalid, "correct the request of the pod", "%w", err)
	}
	masters, err := mastersOf(r, asked)
	if err != nil {
		return nil, err
	}
	const least6 = 1280 // RFC 8200, section 5
	if mtu := r.Config.MTU; mtu > 0 && mtu < least6 && slices.ContainsFunc(r.Prev.IPs, ofIPv6) {
		return nil, plugin.Errorf(plugin.CodeInvalid, "set mtu to 1280 or more, or leave it out",
			"mtu: %d: the pod has an IPv6 address, and the kernel gives no IPv6 to a link with an MTU below 1280", mtu)
	}
	err = nl.InPod(ctx, r.NetNS, func(node, pod *nl.NS) error {
		res, err = connect(r, asked, masters, node, pod)
		return err
	})
	return res, err
}

func ofIPv6(c *types100.IPConfig) bool { return c.Address.IP.To4() == nil }

func connect(
	r *plugin.Request[Config], asked []nic.Request, masters []master, node, pod *nl.NS,
) (*types100.Result, error) {
	slaves, others, err := planSlaves(r, asked, masters, pod)
	if err != nil {
		return nil, err
	}
	links := make([]nl.Link, len(slaves))
	for i, s := range slaves {
		m, err := s.masterLink(node, pod)
		if err != nil {
			return nil, fmt.Errorf("find the master: %w", err)
		}
		if s.link.Fresh && s.mac == "" && s.link.MTU > m.MTU { // the kernel's error would only be "invalid argument"
			return nil, plugin.Errorf(plugin.CodeInvalid,
				"lower mtu. If the boot ENI now has a larger MTU than before, drain the node, because an ENI with "+
					"pods keeps its MTU",
				"mtu: %d: the MTU of %s is only %d", s.link.MTU, s.link.Master, m.MTU)
		}
		// A slave has the MAC address and the MTU of its master. So do not ask the kernel for these values, because its
		// answer could be lost (nl.ErrUnanswered).
		links[i] = nl.Link{Name: s.link.Name, MAC: m.MAC, MTU: cmp.Or(s.link.MTU, m.MTU)}
	}
	w := wiring(slaves, r.Prev, node, pod)
	for _, link := range others {
		w = append(w, nl.Step{NS: pod, Object: ownARPOnly(link)})
	}
	if err := w.Add(); err != nil {
		fresh := func(s slave) bool { return s.link.Fresh }
		if errors.Is(err, nl.ErrUnanswered) && allSlaves(slaves, fresh) {
			// the answer was lost, but the kernel may have added the last rule
			err = errors.Join(err, pod.DelFurther(slaves[0].link.Group))
		}
		if errors.Is(err, nl.ErrShared) {
			return nil, plugin.Errorf(plugin.CodeTryAgain,
				"the runtime tries again. An ended pod uses the ENI until the pod's namespace is gone",
				"the pod asks for the whole ENI: %w", err)
		}
		if errors.Is(err, syscall.EADDRINUSE) {
			return nil, plugin.Errorf(plugin.CodeTryAgain,
				"another slave of the same ENI has the address: see 'cni-tool status --diff'", "%w", err)
		}
		return nil, err
	}
	return result(r, slaves, links), nil
}

// masterLink returns the link of the slave's ENI. In a repeated ADD, the link of an exclusive ENI is already in the
// pod.
func (s slave) masterLink(node, pod *nl.NS) (nl.Link, error) {
	if s.mac != "" {
		if l, err := pod.LinkByName(s.link.Name); err == nil && l.MAC == s.mac {
			return l, nil
		}
	}
	return node.SeenLink(s.link.Master)
}

func allSlaves(slaves []slave, predicate func(slave) bool) bool {
	return !slices.ContainsFunc(slaves, func(s slave) bool { return !predicate(s) })
}

// del deletes the slaves, and the rules and routes of further NICs in the pod. unnumbered-ptp's DEL may have deleted
// the slaves already (see [nl.PodGroup]). del moves the links of whole ENIs back to the node. It does not need
// prevResult, and a missing object counts as deleted.
//
// If something fails in the pod, del only logs the error, because the objects end with the namespace. A program in the
// pod can make a deletion fail. If del returned this error, the DEL of the pod would fail for ever.
func del(ctx context.Context, r *plugin.Request[Config], nameOnNode Home) error {
	err := nl.InPod(ctx, r.NetNS, func(node, pod *nl.NS) error {
		if err := errors.Join(moveCardsBack(r, nameOnNode, node, pod), delObjects(r, pod)); err != nil {
			slog.Warn("DEL could not remove everything in the pod. The kernel removes the rest with the pod's "+
				"namespace", "error", err)
		}
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) { // the namespace is gone
		return cleanUpCards(ctx, r, nameOnNode)
	}
	return err
}

// delObjects deletes the attachment's objects in a pod. It also deletes the objects of further NICs in three cases: the
// result has several NICs, there is no result, or the link has the group of a further attachment. delObjects deletes
// the rules before the link, because only the link shows that there may be rules.
func delObjects(r *plugin.Request[Config], pod *nl.NS) (failed error) {
	own := nl.PodGroup(r.Digest())
	l, err := pod.LinkByName(r.IfName)
	if r.Prev == nil || plugin.Several(r.Prev) || err == nil && nl.Attachment(l.Group) == nl.FurtherGroup(own) {
		for _, err := range []error{pod.DelFurther(own), pod.DelGroup(own), pod.DelGroup(nl.FurtherGroup(own))} {
			if !errors.Is(err, fs.ErrNotExist) {
				failed = errors.Join(failed, err)
			}
		}
	}
	if err == nil && !nl.Foreign(l.Group, own) && !nl.IsCard(l.Group) {
		err = nl.Wiring{{NS: pod, Object: nl.IPVlan{Name: r.IfName, NS: pod}}}.Del()
	}
	if !errors.Is(err, fs.ErrNotExist) {
		failed = errors.Join(failed, err)
	}
	return failed
}

func status(ctx context.Context, _ *plugin.Request[Config]) error {
	node, err := nl.NodeOf(ctx)
	if err != nil {
		return err
	}
	defer node.Close()
	if err := (nl.IPVlan{}).Supported(node); err != nil {
		return plugin.Errorf(plugin.CodeNotAvailable,
			"the kernel needs CONFIG_IPVLAN or the module ipvlan. On some distributions, the module is in the package "+
				"linux-modules-extra or kernel-modules-extra",
			"this kernel has no ipvlan: %w", err)
	}
	return nil
}
