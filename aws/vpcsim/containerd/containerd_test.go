// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package containerd_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws/ec2sim"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws/vpcsim"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

func TestMain(m *testing.M) { os.Exit(nltest.Guard{M: m}.Run()) }

// TestContainerd is the life of pods under containerd and runc, with what is shipped, and asked as kubelet asks.
func TestContainerd(t *testing.T) {
	nltest.Need(t, "root", "ipvlan", "nftables", "police")
	for name, x := range map[string]struct {
		families int
		stories  []story
	}{
		"10-cni-ipvlan-vpc-k8s.conflist": {1, stories},
		"three-plugins.conflist":         {1, stories},
		"dual-stack.conflist":            {2, stories[:1]},
	} {
		t.Run(name, func(t *testing.T) {
			list := must(os.ReadFile(filepath.Join("../../../conflist-examples", name)))
			c := newContainerd(t, newVPC(t, x.families), map[string][]byte{
				"runc":    list,
				"limited": changed(list, object{"capabilities": object{"bandwidth": true}}),
				"asks":    changed(list, object{"reuseIPWait": 3600}),
				"broken":  changed(list, object{"hostInterface": "eth9"}),
			})
			c.play(t, x.stories)
		})
	}
}

// A story ends with nothing more on the node than there was when it began.
type story struct {
	name string
	tell func(*containerd, *testing.T)
}

var stories = []story{
	{"two pods", (*containerd).twoPods},
	{"STATUS", (*containerd).status},
	{"a limited pod", (*containerd).limitedPod},
	{"an ADD that fails on the way", (*containerd).failingADD},
	{"a full subnet", (*containerd).fullSubnet},
	{"a killed containerd", (*containerd).killed},
	{"a containerd killed in an ADD", (*containerd).killedInADD},
}

// play has a pod come and go first: what is there once for all of them stays.
func (c *containerd) play(t *testing.T, stories []story) {
	t.Helper()
	c.endPods(t, c.pods(t, "", 1, nil))
	before := c.traces(t)
	for _, s := range stories {
		t.Run(s.name, func(t *testing.T) { s.tell(c, t) })
		await(t, func() error {
			if d := cmp.Diff(before, c.traces(t)); d != "" {
				return fmt.Errorf("%s left something behind; -want +got\n%s", s.name, d)
			}
			return nil
		})
	}
}

// changed is a conflist with more keys, in each plugin.
func changed(list []byte, keys object) []byte {
	var l object
	if err := json.Unmarshal(list, &l); err != nil {
		panic(err)
	}
	for _, p := range l["plugins"].([]any) {
		for key, value := range keys {
			p.(object)[key] = value
		}
	}
	return must(json.Marshal(l))
}

// traces are what pods leave behind, one to a line: on the node, in the registry, and what is containerd's.
func (c *containerd) traces(t *testing.T) []string {
	t.Helper()
	all := strings.Split(nltest.Dump(t, c.node.NS), "\n")
	state, err := must(registry.Open(c.node.StateDir)).View()
	if err != nil {
		t.Fatal(err)
	}
	for a, l := range state.Leases.All() {
		all = append(all, fmt.Sprintf("lease %s %+v", a, l))
	}
	for _, pattern := range []string{"/run/netns/*", "/var/lib/cni/results/*", cgroup + "/*/", c.dir + "/state/*/*/*", c.dir + "/shims/*"} {
		all = append(all, must(filepath.Glob(pattern))...)
	}
	for line := range bytes.Lines(must(os.ReadFile("/proc/self/mountinfo"))) {
		all = append(all, "mount "+string(bytes.Fields(line)[4]))
	}
	for _, link := range must(filepath.Glob("/proc/[0-9]*/exe")) {
		if exe, _ := os.Readlink(link); filepath.Base(exe) == "containerd-shim-runc-v2" {
			all = append(all, "process "+exe)
		}
	}
	for range c.running() {
		all = append(all, "plugin")
	}
	return all
}

// running are the processes of plugins.
func (c *containerd) running() (pids []int) {
	for _, link := range must(filepath.Glob("/proc/[0-9]*/exe")) {
		if exe, _ := os.Readlink(link); filepath.Dir(exe) == c.plugins {
			pids = append(pids, must(strconv.Atoi(filepath.Base(filepath.Dir(link)))))
		}
	}
	return pids
}

// status is what kubelet asks every five seconds, and what decides whether the node is Ready.
func (c *containerd) status(t *testing.T) {
	if ok, message := c.networkReady(t); !ok {
		t.Errorf("the network is not ready: %s", message)
	}
	const ipam = "cni-ipvlan-vpc-k8s-ipam"
	here, away := filepath.Join(c.dir, "bin", ipam), filepath.Join(c.dir, ipam)
	if err := os.Rename(here, away); err != nil {
		t.Fatal(err)
	}
	if ok, message := c.networkReady(t); ok || !strings.Contains(message, ipam) {
		t.Errorf("without ipam the network is ready %t: %q", ok, message)
	}
	if err := os.Rename(away, here); err != nil {
		t.Fatal(err)
	}
}

func (c *containerd) networkReady(t *testing.T) (ok bool, message string) {
	t.Helper()
	var answer struct {
		Status struct {
			Conditions []struct {
				Type, Message string
				Status        bool
			}
		}
	}
	if err := c.call("Status", object{}, &answer); err != nil {
		t.Fatal(err)
	}
	for _, c := range answer.Status.Conditions {
		if c.Type == "NetworkReady" {
			return c.Status, c.Message
		}
	}
	return false, "nobody knows"
}

// pods makes some at once, each of which answers.
func (c *containerd) pods(t *testing.T, handler string, count int, annotations map[string]string) []*sandbox {
	t.Helper()
	pods, errs := make([]*sandbox, count), make([]error, count)
	var wg sync.WaitGroup
	for i := range count {
		wg.Go(func() { pods[i], errs[i] = c.newSandbox(handler, fmt.Sprint("pod", i), annotations) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	for _, p := range pods {
		t.Cleanup(func() { p.Close() })
		if err := p.Answer(port); err != nil {
			t.Fatal(err)
		}
	}
	return pods
}

// twoPods come at once.
func (c *containerd) twoPods(t *testing.T) {
	pods := c.pods(t, "", 2, nil)
	c.connected(t, pods)
	c.endPods(t, pods)
}

// connected wants pods to have one address of each family of the pods' ENI, and to call each other, the other host, and
// to be called by it.
func (c *containerd) connected(t *testing.T, pods []*sandbox) {
	t.Helper()
	eni := c.node.ENIs()[1]
	for _, p := range pods {
		if len(p.addrs) != c.families {
			t.Errorf("addresses %v, want %d", p.addrs, c.families)
			continue
		}
		for family, a := range p.addrs {
			if a.Is6() != (family == 1) || !carries(eni, a) {
				t.Errorf("addresses %v, of an ENI with %v %v %v", p.addrs, eni.Addrs, eni.IPv6Addrs, eni.IPv6Prefixes)
			}
			host := c.hostAddrs()[family]
			c.calls(t, p.Namespace, a, host)
			c.calls(t, c.host.Namespace, host, a)
			for _, other := range pods {
				c.calls(t, p.Namespace, a, other.addrs[family])
			}
		}
	}
}

func carries(e ec2sim.ENI, a netip.Addr) bool {
	return slices.Contains(slices.Concat(e.Addrs, e.IPv6Addrs), a) ||
		slices.ContainsFunc(e.IPv6Prefixes, func(p netip.Prefix) bool { return p.Contains(a) })
}

// calls wants who is called to see the address of who calls.
func (c *containerd) calls(t *testing.T, from *vpcsim.Namespace, as, to netip.Addr) {
	t.Helper()
	if seen, err := from.Call("tcp", netip.AddrPortFrom(to, port)); err != nil || seen.Addr() != as {
		t.Errorf("%v calls %v and is seen as %v, %v", as, to, seen, err)
	}
}

func (c *containerd) endPods(t *testing.T, pods []*sandbox) {
	t.Helper()
	for _, p := range pods {
		if err := errors.Join(p.Close(), c.remove(p.id)); err != nil {
			t.Error(err)
		}
	}
}

// limitedPod has the annotation of Kubernetes, of which containerd makes a capability.
func (c *containerd) limitedPod(t *testing.T) {
	pods := c.pods(t, "limited", 1, map[string]string{"kubernetes.io/ingress-bandwidth": "8M", "kubernetes.io/egress-bandwidth": "16M"})
	for hook, want := range map[string]string{"ingress": "rate 8Mbit", "egress": "rate 16Mbit"} {
		for _, dev := range []string{"eth0", "eth1"} {
			var out []byte
			err := pods[0].Do(func() (err error) {
				out, err = exec.Command("tc", "filter", "show", "dev", dev, hook).CombinedOutput()
				return err
			})
			if err != nil || !bytes.Contains(out, []byte(want)) {
				t.Errorf("%s of %s: want %s, %v in\n%s", hook, dev, want, err, out)
			}
		}
	}
	c.endPods(t, pods)
}

// failingADD fails when the address is leased and its link is there.
func (c *containerd) failingADD(t *testing.T) {
	if _, err := c.runPod("broken", "pod", nil); err == nil || !strings.Contains(err.Error(), "eth9") {
		t.Errorf("error %v, want one that names the interface", err)
	}
}

// fullSubnet is nothing that the node can help.
func (c *containerd) fullSubnet(t *testing.T) {
	const code = "InsufficientFreeAddressesInSubnet"
	actions := []string{"AssignPrivateIpAddresses", "AssignIpv6Addresses", "CreateNetworkInterface"}
	for _, action := range actions {
		c.fabric.EC2.Fail(action, code, -1)
	}
	if _, err := c.runPod("asks", "pod", nil); err == nil || !strings.Contains(err.Error(), code) {
		t.Errorf("error %v, want %s", err, code)
	}
	for _, action := range actions {
		c.fabric.EC2.Fail(action, code, 0)
	}
}

// killed is a containerd whose pod outlives it.
func (c *containerd) killed(t *testing.T) {
	pods := c.pods(t, "", 1, nil)
	c.kill(t)
	c.connected(t, pods)
	c.start(t)
	again, err := c.inspect(pods[0].id)
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Close(); err != nil || !slices.Equal(again.addrs, pods[0].addrs) {
		t.Errorf("the addresses are %v now, and were %v; %v", again.addrs, pods[0].addrs, err)
	}
	c.endPods(t, pods)
}

// killedInADD is killed while a plugin of its asks EC2 for an address. The plugin goes on when the next containerd has
// removed the pod.
func (c *containerd) killedInADD(t *testing.T) {
	const action = "AssignPrivateIpAddresses"
	c.fabric.EC2.ResetCalls()
	c.fabric.EC2.Delay(action, 5*time.Second) // in which we stop the plugin
	defer c.fabric.EC2.Delay(action, 0)
	answered := make(chan error)
	go func() {
		_, err := c.runPod("asks", "pod", nil)
		answered <- err
	}()
	await(t, func() error { return c.asked(action) })
	plugins := c.running()
	signal(t, plugins, syscall.SIGSTOP)
	c.kill(t)
	if err := <-answered; err == nil || len(plugins) == 0 {
		t.Errorf("the pod was there before; %v, %v", plugins, err)
	}
	c.start(t)
	left := c.sandboxes(t)
	for _, id := range left {
		if err := c.remove(id); err != nil {
			t.Error(err)
		}
	}
	if len(left) != 1 {
		t.Errorf("containerd knows the sandboxes %v, want that of the ADD", left)
	}
	signal(t, plugins, syscall.SIGCONT)
}

// asked is an error until EC2 has been.
func (c *containerd) asked(action string) error {
	calls := c.fabric.EC2.Calls()
	if !slices.ContainsFunc(calls, func(c ec2sim.Call) bool { return c.Action == action }) {
		return fmt.Errorf("no %s among %v", action, calls)
	}
	return nil
}

func signal(t *testing.T, pids []int, s syscall.Signal) {
	t.Helper()
	for _, pid := range pids {
		if err := syscall.Kill(pid, s); err != nil {
			t.Errorf("%v: %v", s, err)
		}
	}
}
