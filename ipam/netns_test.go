// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
)

// runPod starts a process in a namespace of its own, which has these addresses. The namespace has no name, as with some
// runtimes.
func (w *world) runPod(addrs ...netip.Addr) {
	w.Helper()
	w.usePod(addrs...)
}

// usePod does what runPod does, and returns a function that ends the pod. The addresses are on slaves of the ENIs'
// links.
func (w *world) usePod(addrs ...netip.Addr) (stop func()) {
	w.Helper()
	path, stop := startPod(w)
	ns, err := nl.Open("pod", path)
	must(w, err)
	defer ns.Close() // the process keeps the namespace
	made := map[string]bool{}
	for _, a := range addrs {
		enis := w.EC2.ENIs()
		i := slices.IndexFunc(enis, func(e ec2sim.ENI) bool { return carriesAddr(e, a) })
		if i < 0 {
			w.Fatalf("no ENI has %s", a)
		}
		l, err := w.Host.FindMAC(enis[i].MAC)
		must(w, err)
		if !made[l.Name] {
			addSlave(w, w.Host, l.Name, path, l.Name)
			made[l.Name] = true
		}
		must(w, nl.Addr{Prefix: netip.PrefixFrom(a, a.BitLen()), Dev: l.Name, NoDAD: a.Is6()}.Add(ns))
	}
	return stop
}

// startPod starts a process in a namespace of its own, and returns the namespace's path.
func startPod(t testing.TB) (path string, stop func()) {
	t.Helper()
	pid, stop := nltest.Idle(t, &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET})
	return fmt.Sprintf("/proc/%d/ns/net", pid), stop
}

// addSlave makes a slave in the namespace at path. The argument master is the name of the node's link that becomes the
// slave's master. The slave is a macvlan, because not every kernel has ipvlan, and these tests only look at the master.
func addSlave(t testing.TB, host *nl.NS, master, path, name string) {
	t.Helper()
	addSlaveWith(t, host, master, path, name, "")
}

// addSlaveWith does what addSlave does, and gives the slave a MAC address.
func addSlaveWith(t testing.TB, host *nl.NS, master, path, name, mac string) {
	t.Helper()
	l, err := host.LinkByName(master)
	must(t, err)
	f, err := os.Open(path)
	must(t, err)
	defer f.Close()
	var links *netlink.Handle
	must(t, host.Do(func() (err error) { links, err = netlink.NewHandle(unix.NETLINK_ROUTE); return err }))
	defer links.Close()
	attrs := netlink.LinkAttrs{Name: name, ParentIndex: l.Index, Namespace: netlink.NsFd(f.Fd()), Flags: net.FlagUp}
	// Without this index, some kernels would also look for the name on the node: see nl.IPVlan.
	attrs.Index = 1<<24 + l.Index
	if mac != "" {
		attrs.Index++
		attrs.HardwareAddr, err = net.ParseMAC(mac)
		must(t, err)
	}
	err = links.LinkAdd(&netlink.Macvlan{LinkAttrs: attrs, Mode: netlink.MACVLAN_MODE_PRIVATE})
	if errors.Is(err, unix.EOPNOTSUPP) {
		err = links.LinkAdd(&netlink.IPVlan{LinkAttrs: attrs, Mode: netlink.IPVLAN_MODE_L2})
	}
	must(t, err)
}

// TestUsedProcess: if the runtime gives a pod's namespace no name, the pod's process shows the namespace.
func TestUsedProcess(t *testing.T) {
	nltest.Need(t, "root", "netns")
	host, _ := nltest.NS(t, "node")
	world, _ := nltest.NS(t, "world")
	const mac = "02:00:00:00:00:aa"
	a := netip.MustParseAddr("192.0.2.77")
	must(t, nl.Veth{Name: "ens5", MAC: mac, Peer: "far", PeerNS: world}.Add(host))
	path, _ := startPod(t)
	addSlave(t, host, "ens5", path, "eth0")
	ns, err := nl.Open("pod", path)
	must(t, err)
	defer ns.Close()
	must(t, nl.Addr{Prefix: netip.PrefixFrom(a, 32), Dev: "eth0"}.Add(ns))
	if used := lease.UsedAddrs(host, mac); used.Of(mac, a) != path {
		t.Errorf("%v is not used: %v", a, used)
	}
}
