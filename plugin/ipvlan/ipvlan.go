// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package ipvlan is the middle plugin of the chain. It puts an ipvlan slave of an ENI into
// the pod, with the address and the routes that the ipam plugin chose.
//
// It differs from the reference plugin of that name where a chain needs it:
//
//   - It takes its master from prevResult, and deletes its link without prevResult.
//   - It checks its own interface although later plugins add theirs.
//   - It passes DNS on.
//   - An ADD that fails removes what it has made.
//   - It calls no other plugin.
//
// The invariant: the pod has the whole interface, or nothing of it.
package ipvlan

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
)

// Commands are the commands of the ipvlan plugin. GC has nothing to do: a slave
// ends with its namespace.
func Commands() plugin.Commands[Config] {
	return plugin.Commands[Config]{Add: add, Del: del, Check: check, Status: status}
}

// inPod calls f with the node's namespace and the pod's.
func inPod(ctx context.Context, r *plugin.Request[Config], f func(node, pod *nl.NS) error) error {
	node, err := nl.NodeOf(ctx)
	if err != nil {
		return err
	}
	defer node.Close()
	pod, err := node.OpenOther("pod", r.NetNS)
	if err != nil {
		return err
	}
	defer pod.Close()
	return f(node, pod)
}

func add(ctx context.Context, r *plugin.Request[Config]) (res *types100.Result, err error) {
	master, err := masterOf(r)
	if err != nil {
		return nil, err
	}
	err = inPod(ctx, r, func(node, pod *nl.NS) error {
		res, err = connect(r, master, node, pod)
		return err
	})
	return res, err
}

// connect makes the slave of a master, with its addresses and routes.
func connect(r *plugin.Request[Config], master string, node, pod *nl.NS) (*types100.Result, error) {
	m, err := node.LinkByName(master)
	if err != nil {
		return nil, fmt.Errorf("master: %w", err)
	}
	slave := r.Config.slave(r.IfName, m, pod)
	slave.Group = nl.PodGroup(r.Digest())
	if err := wiring(slave, r.Prev, node, pod).Add(); err != nil {
		links, _ := pod.Links()
		if first := nl.ForeignLink(links, slave.Group); first != "" { // its routes are in the way
			return nil, plugin.SecondNetwork(first)
		}
		if errors.Is(err, syscall.EADDRINUSE) {
			hint := "another slave of " + master + " has the address: see 'cni-tool status --diff'"
			return nil, plugin.Errorf(plugin.CodeTryAgain, hint, "%w", err)
		}
		return nil, err
	}
	// A slave has the MAC address and the MTU of its master. The kernel need not be asked, and may not answer.
	return result(r, nl.Link{Name: slave.Name, MAC: m.MAC, MTU: cmp.Or(slave.MTU, m.MTU)}), nil
}

// masterOf returns the name of the master: the configured one, or the interface
// of prevResult.
func masterOf(r *plugin.Request[Config]) (string, error) {
	const hint = "this plugin is the second of a chain: put cni-ipvlan-vpc-k8s-ipam before it, whose result names the master and the slave's addresses"
	if r.Prev == nil {
		return "", plugin.Errorf(plugin.CodeInvalid, hint, "must be called as chained plugin: there is no prevResult")
	}
	if len(r.Prev.IPs) == 0 {
		return "", plugin.Errorf(plugin.CodeInvalid, hint, "prevResult has no addresses")
	}
	if r.Config.Master != "" {
		return r.Config.Master, nil
	}
	if len(r.Prev.Interfaces) != 1 || r.Prev.Interfaces[0].Name == "" {
		return "", plugin.Errorf(plugin.CodeInvalid, hint, "chained master failure. PrevResult lacks a single named interface")
	}
	return r.Prev.Interfaces[0].Name, nil
}

// del deletes the slave, unless the DEL of unnumbered-ptp has deleted it with its own links
// (see [nl.PodGroup]). It needs nothing of prevResult. What it does not find is deleted.
//
// A slave that cannot be deleted does not fail DEL, because it ends with the namespace. The
// pod may have caused the failure, and its DEL would then fail for ever.
func del(ctx context.Context, r *plugin.Request[Config]) error {
	err := inPod(ctx, r, func(_, pod *nl.NS) error {
		l, err := pod.LinkByName(r.IfName)
		if err == nil && !nl.Foreign(l.Group, nl.PodGroup(r.Digest())) {
			err = nl.Wiring{{NS: pod, Object: nl.IPVlan{Name: r.IfName, NS: pod}}}.Del()
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			slog.Warn("DEL could not remove everything in the pod: the rest ends with its namespace", "error", err)
		}
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) { // the namespace is gone
		return nil
	}
	return err
}

// check compares the interface and its addresses with prevResult. It does not compare the
// routes, which a later plugin may have changed (CNI specification, CHECK).
func check(ctx context.Context, r *plugin.Request[Config]) error {
	own, err := ownInterface(r)
	if err != nil {
		return err
	}
	return inPod(ctx, r, func(node, pod *nl.NS) error {
		slave := nl.IPVlan{Name: r.IfName, Master: r.Config.Master, NS: pod, Mode: r.Config.Mode, MTU: r.Config.MTU}
		w := nl.Wiring{{NS: node, Object: slave}}
		for i, c := range r.Prev.IPs {
			p, ok := plugin.Prefix(c.Address)
			if !ok {
				return fmt.Errorf("prevResult: address %d is no address", i)
			}
			if c.Interface == nil || *c.Interface == own {
				w = append(w, nl.Step{NS: pod, Object: nl.Addr{Prefix: p, Dev: r.IfName}})
			}
		}
		if err := w.Check(); err != nil {
			return err
		}
		return checkMAC(pod, r.IfName, r.Prev.Interfaces[own].Mac)
	})
}

// checkMAC compares the MAC address of a link with that of prevResult, if that has one.
func checkMAC(pod *nl.NS, link, want string) error {
	l, err := pod.LinkByName(link)
	if err == nil && want != "" && l.MAC != want {
		return fmt.Errorf("%s has the MAC address %s, not %s", link, l.MAC, want)
	}
	return err
}

// ownInterface is the index in prevResult of the interface that ADD made.
func ownInterface(r *plugin.Request[Config]) (int, error) {
	if r.Prev == nil {
		return 0, errors.New("CHECK was called without prevResult")
	}
	i := slices.IndexFunc(r.Prev.Interfaces, func(i *types100.Interface) bool { return i.Name == r.IfName && i.Sandbox != "" })
	if i < 0 {
		return 0, fmt.Errorf("prevResult has no interface %s in the container", r.IfName)
	}
	return i, nil
}

// status fails if the kernel has no ipvlan.
func status(ctx context.Context, _ *plugin.Request[Config]) error {
	node, err := nl.NodeOf(ctx)
	if err != nil {
		return err
	}
	defer node.Close()
	if err := (nl.IPVlan{}).Supported(node); err != nil {
		return plugin.Errorf(plugin.CodeNotAvailable, "the kernel needs CONFIG_IPVLAN or the module ipvlan, on some distributions in the package linux-modules-extra",
			"this kernel has no ipvlan: %w", err)
	}
	return nil
}
