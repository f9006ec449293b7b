// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package ipvlan is the middle plugin of the chain: it puts an ipvlan slave of an
// ENI into the pod, with the address and the routes that the ipam plugin chose.
//
// It differs from the reference plugin of that name where a chain needs it to. It
// takes its master from prevResult and deletes its link without one; it checks
// its own interface although later plugins add theirs; it passes DNS on; and what
// an ADD that fails has done is taken back. It calls no other plugin.
//
// The invariant: the pod has the whole interface, or it has none of it.
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

func add(_ context.Context, r *plugin.Request[Config]) (*types100.Result, error) {
	master, err := masterOf(r)
	if err != nil {
		return nil, err
	}
	host, err := nl.Host()
	if err != nil {
		return nil, err
	}
	defer host.Close()
	pod, err := host.OpenOther("pod", r.NetNS)
	if err != nil {
		return nil, err
	}
	defer pod.Close()
	m, err := host.LinkByName(master)
	if err != nil {
		return nil, fmt.Errorf("master: %w", err)
	}
	slave := r.Config.slave(r.IfName, m, pod)
	slave.Group = r.LinkGroup()
	if err := wiring(slave, r.Prev, host, pod).Add(); err != nil {
		links, _ := pod.Links()
		if first := nl.InGroup(links, r.Anothers); first != "" { // whose routes are in the way
			return nil, r.SecondNetwork(first)
		}
		if errors.Is(err, syscall.EADDRINUSE) {
			hint := "another slave of " + master + " has the address: see 'cni-tool status --diff'"
			return nil, plugin.Errorf(plugin.CodeTryAgain, hint, "%w", err)
		}
		return nil, err
	}
	// A slave has its master's MAC address and MTU: the kernel need not be asked, and may not answer.
	return result(r, nl.Link{Name: slave.Name, MAC: m.MAC, MTU: cmp.Or(slave.MTU, m.MTU)}), nil
}

// masterOf returns the name of the master: the configured one, or the interface
// of prevResult.
func masterOf(r *plugin.Request[Config]) (string, error) {
	const hint = "this plugin is the second of a chain: cni-ipvlan-vpc-k8s-ipam before it says which link is the master and which addresses the slave has"
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

// del deletes the slave, if the ptp plugin, whose DEL comes before, has not done so with
// its own links (see [plugin.Request.LinkGroup]). What prevResult says does not matter, and
// what del does not find somebody else has deleted.
//
// A slave that cannot be deleted does not fail DEL: it ends with the namespace, and the pod,
// which may have seen to that, would have its DEL fail for ever.
func del(_ context.Context, r *plugin.Request[Config]) error {
	host, err := nl.Host()
	if err != nil {
		return err
	}
	defer host.Close()
	pod, err := host.OpenOther("pod", r.NetNS)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer pod.Close()
	l, err := pod.LinkByName(r.IfName)
	if err == nil && !r.Anothers(l.Group) {
		err = nl.Wiring{{NS: pod, Object: nl.IPVlan{Name: r.IfName, NS: pod}}}.Del()
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		slog.Warn("what DEL has to leave ends with the namespace", "error", err)
	}
	return nil
}

// check compares the interface and its addresses with prevResult. It leaves the
// routes alone, which a later plugin may have changed (CNI specification, CHECK).
func check(_ context.Context, r *plugin.Request[Config]) error {
	own, err := ownInterface(r)
	if err != nil {
		return err
	}
	host, err := nl.Host()
	if err != nil {
		return err
	}
	defer host.Close()
	pod, err := host.OpenOther("pod", r.NetNS)
	if err != nil {
		return err
	}
	defer pod.Close()
	w := nl.Wiring{{NS: host, Object: nl.IPVlan{Name: r.IfName, Master: r.Config.Master, NS: pod, Mode: r.Config.Mode, MTU: r.Config.MTU}}}
	for i, c := range r.Prev.IPs {
		if p, ok := plugin.Prefix(c.Address); ok && (c.Interface == nil || *c.Interface == own) {
			w = append(w, nl.Step{NS: pod, Object: nl.Addr{Prefix: p, Dev: r.IfName}})
		} else if !ok {
			return fmt.Errorf("prevResult: address %d is no address", i)
		}
	}
	if err := w.Check(); err != nil {
		return err
	}
	l, err := pod.LinkByName(r.IfName)
	if want := r.Prev.Interfaces[own].Mac; err == nil && want != "" && l.MAC != want {
		return fmt.Errorf("%s has the MAC address %s, not %s", r.IfName, l.MAC, want)
	}
	return err
}

// ownInterface is the index in prevResult of the interface that ADD made.
func ownInterface(r *plugin.Request[Config]) (int, error) {
	if r.Prev == nil {
		return 0, errors.New("there is no prevResult to check")
	}
	i := slices.IndexFunc(r.Prev.Interfaces, func(i *types100.Interface) bool { return i.Name == r.IfName && i.Sandbox != "" })
	if i < 0 {
		return 0, fmt.Errorf("prevResult has no interface %s in the container", r.IfName)
	}
	return i, nil
}

// status asks whether the kernel has ipvlan.
func status(context.Context, *plugin.Request[Config]) error {
	host, err := nl.Host()
	if err != nil {
		return err
	}
	defer host.Close()
	if err := (nl.IPVlan{}).Supported(host); err != nil {
		return plugin.Errorf(plugin.CodeNotAvailable, "it needs CONFIG_IPVLAN or the module ipvlan: on some distributions the package linux-modules-extra",
			"this kernel has no ipvlan: %w", err)
	}
	return nil
}
