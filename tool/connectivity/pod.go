// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package connectivity

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/conf"
)

// A pod is a network namespace that the plugins have connected. A server of this process answers calls in this
// namespace.
type pod struct {
	name     string
	ns       *nl.NS
	addrs    []netip.Addr
	gws      []netip.Addr // addresses of VPC routers, from the result of the ADD
	links    []string     // the links in the pod
	veth     string       // the node's end of the veth pair
	eni      string       // the name of the link of the pod's ENI on the node
	hasSlave bool         // the pod has a slave of the link "eni"
	server   *server
}

// addr returns the pod's address of a family, or the zero address if the pod has none.
func (p *pod) addr(f nl.Family) netip.Addr {
	i := slices.IndexFunc(p.addrs, func(a netip.Addr) bool { return nl.FamilyOf(a) == f })
	if i < 0 {
		return netip.Addr{}
	}
	return p.addrs[i]
}

// A runtime calls the plugins as a container runtime does.
type runtime struct {
	Test
	cni   *libcni.CNIConfig
	list  *libcni.NetworkConfigList
	cache int    // file descriptor of a file system that no other process sees
	port  uint16 // port at which pods answer; 0: any
}

func newRuntime(t Test) (r runtime, err error) {
	r.Test = t
	text, err := r.hastyConflist()
	if err != nil {
		return r, err
	}
	if r.list, err = libcni.NetworkConfFromBytes(text); err != nil {
		return r, fmt.Errorf("%s: %w", t.Network.File, err)
	}
	if r.cache, err = newMemoryFS(); err != nil {
		return r, fmt.Errorf("make a tmpfs for the results of the plugins: %w", err)
	}
	r.cni = libcni.NewCNIConfigWithCacheDir([]string{t.BinDir}, fmt.Sprintf("/proc/self/fd/%d", r.cache), nil)
	return r, nil
}

// addTimeout is how long an ADD of the test may wait for an address. The whole ADD may take three seconds more.
func (t Test) addTimeout() time.Duration {
	return min(t.addWithin()-3*time.Second, conf.MostAddTimeout)
}

// hastyConflist returns the conflist of the test with a short addTimeout. So a waiting ADD returns an error before this
// program kills the ADD.
func (t Test) hastyConflist() ([]byte, error) {
	l := t.Network.List
	plugins := make([]json.RawMessage, len(l.Plugins))
	for i, m := range l.Plugins {
		plugins[i] = m.Raw
		if m.Type != conf.TypeAll && m.Type != conf.TypeIPAM {
			continue
		}
		var keys map[string]json.RawMessage
		if err := json.Unmarshal(m.Raw, &keys); err != nil {
			return nil, err
		}
		keys["addTimeout"] = json.RawMessage(fmt.Sprint(int(t.addTimeout().Seconds())))
		var err error
		if plugins[i], err = json.Marshal(keys); err != nil {
			return nil, err
		}
	}
	return json.Marshal(map[string]any{"name": l.Name, "cniVersion": l.CNIVersion, "cniVersions": l.CNIVersions,
		"plugins": plugins, "loadOnlyInlinedPlugins": true})
}

// newMemoryFS makes a file system in memory, which is mounted nowhere and ends with the process. libcni stores the
// results of the ADDs there. In /var/lib/cni, results would stay if this process was killed, and the command repair
// would treat them as those of a real pod.
func newMemoryFS() (int, error) {
	fs, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, err
	}
	defer unix.Close(fs)
	if err := unix.FsconfigCreate(fs); err != nil {
		return -1, err
	}
	return unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0)
}

func (r runtime) close() error { return unix.Close(r.cache) }

func (r runtime) runtimeConf(name, netns string) *libcni.RuntimeConf {
	return &libcni.RuntimeConf{ContainerID: name, NetNS: netns, IfName: "eth0",
		CapabilityArgs: map[string]any{"io.kubernetes.cri.pod-annotations": map[string]string{}},
		Args: [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", r.Namespace}, {"K8S_POD_NAME", name},
			{"K8S_POD_INFRA_CONTAINER_ID", name}}}
}

// add makes a pod. If an error occurs, add removes the parts of the pod that it has made.
func (r runtime) add(ctx context.Context, node *nl.NS, name string) (*pod, error) {
	ctx, cancel := context.WithTimeout(ctx, r.addWithin())
	defer cancel()
	ns, err := nl.Make(name)
	if err != nil {
		return nil, err
	}
	p := &pod{name: name, ns: ns}
	result, err := r.cni.AddNetworkList(ctx, r.list, r.runtimeConf(name, ns.Path()))
	if err == nil {
		err = p.readResult(result, node)
	}
	if err == nil {
		p.server, err = startServer(ns, r.port, p)
	}
	if err != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.delWithin())
		defer cancel()
		return nil, errors.Join(err, r.del(ctx, p)) // first the error of the ADD, because only the first line is shown
	}
	return p, nil
}

func (r runtime) check(ctx context.Context, p *pod) error {
	return r.cni.CheckNetworkList(ctx, r.list, r.runtimeConf(p.name, p.ns.Path()))
}

// del calls the plugins with DEL for a pod, and then closes the pod's namespace.
func (r runtime) del(ctx context.Context, p *pod) error {
	err := r.cni.DelNetworkList(ctx, r.list, r.runtimeConf(p.name, p.ns.Path()))
	if p.server != nil {
		p.server.close()
	}
	return errors.Join(err, p.ns.Close())
}

// readResult reads which addresses the pod has got, and which links the ADD has made.
func (p *pod) readResult(result types.Result, node *nl.NS) error {
	r, err := types100.GetResult(result)
	if err != nil {
		return err
	}
	for _, ip := range r.IPs {
		a, _ := netip.AddrFromSlice(ip.Address.IP)
		if i := ip.Interface; i != nil && *i < len(r.Interfaces) && r.Interfaces[*i].Sandbox == "" {
			// This is an address of the node. It is the sender of the node's ARP requests for the VPC router.
			continue
		}
		p.addrs = append(p.addrs, a.Unmap())
		if gw, ok := netip.AddrFromSlice(ip.Gateway); ok {
			p.gws = append(p.gws, gw.Unmap())
		}
	}
	return p.readLinks(node)
}

func (p *pod) readLinks(node *nl.NS) error {
	own, err := p.ns.Links()
	if err != nil {
		return err
	}
	all, err := node.Links()
	if err != nil {
		return err
	}
	for _, l := range own {
		if l.Name == "lo" {
			continue
		}
		p.links = append(p.links, l.Name)
		if l.Name == "eth0" && l.Kind == "ipvlan" {
			p.hasSlave, p.eni = true, nameOf(all, l.Peer)
		}
	}
	for _, l := range all {
		if !nl.IsPair(l.Group) || !slices.Contains(strings.Fields(l.Alias), p.name) {
			continue
		}
		p.veth = l.Name
		if nl.IsRouted(l.Group) {
			p.eni = nameOf(all, int(l.Group&0xffffff))
		}
	}
	return nil
}

func nameOf(links []nl.Link, index int) string {
	i := slices.IndexFunc(links, func(l nl.Link) bool { return l.Index == index })
	if i < 0 {
		return ""
	}
	return links[i].Name
}

// addAdvice returns what an operator can do about an ADD that has failed. The argument "took" is the duration of this
// ADD.
func (t Test) addAdvice(err error, took time.Duration) string {
	most := t.addTimeout()
	if took < most || most == conf.MostAddTimeout { // the ADD failed early, or had the longest addTimeout
		return addHint(err)
	}
	return fmt.Sprintf("in this test, an ADD waits at most %v for an address. Repeat the test with a longer --within. "+
		"If the ADD still fails, %s", most.Truncate(time.Second), addHint(err))
}

func addHint(err error) string {
	text := err.Error()
	switch {
	case strings.Contains(text, "failed to find plugin"):
		return "install the plugins. " + cli.Name + " doctor --check plugins says what is missing"
	case strings.Contains(text, "no IP") || strings.Contains(text, "address"):
		return "new pods of this node fail in the same way. " + cli.Name + " status shows the node's addresses, and " +
			cli.Name + " maxpods prints for how many pods the node can have addresses"
	}
	return "new pods of this node fail in the same way. Run " + cli.Name + " doctor"
}
