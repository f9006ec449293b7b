// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package cri_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin/nic"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/vpcsim"
)

func TestMain(m *testing.M) { os.Exit(nltest.Guard{M: m}.Run()) }

// TestContainerd tests the life of pods under containerd and runc, with the shipped conflist and the calls of kubelet.
func TestContainerd(t *testing.T) { tellAll(t, containerd) }

// TestCRIO tests the same with CRI-O, which also calls CHECK for each pod, and GC when CRI-O starts.
func TestCRIO(t *testing.T) { tellAll(t, crio) }

func tellAll(t *testing.T, k kind) {
	nltest.Need(t, "root", "ipvlan", "nftables", "police")
	all := slices.Concat(k.stories, stories)
	few := all
	if !k.handlers { // the runtime must start again for each network
		few = slices.Concat(k.stories, stories[:1])
	}
	for name, x := range map[string]struct {
		families int
		stories  []story
	}{
		"10-cni-ipvlan-vpc-k8s.conflist": {1, all},
		"three-plugins.conflist":         {1, few},
		"dual-stack.conflist":            {2, stories[:1]},
	} {
		t.Run(name, func(t *testing.T) {
			list := must(os.ReadFile(filepath.Join("../../conflist-examples", name)))
			s := newServer(t, k, newVPC(t, x.families), map[string][]byte{
				shipped:   list,
				"limited": changed(list, object{"capabilities": object{"bandwidth": true}}),
				"asks":    changed(list, object{"reuseIPWait": 3600}),
				"broken":  changed(list, nil, object{"type": "broken"}),
				"last":    changed(list, nil, object{"type": "kills"}),
				"nics": changed(list, object{"capabilities": object{"io.kubernetes.cri.pod-annotations": true},
					"requests": []object{{"namespaces": []string{"shop"}, "ips": true, "max": 2}}}),
			})
			s.play(t, x.stories)
		})
	}
}

// A story is a test that uses pods of one network. It leaves nothing on the node.
type story struct {
	name, network string
	tell          func(*server, *testing.T)
}

var stories = []story{
	{"pods at once", shipped, (*server).podsAtOnce},
	{"a killed runtime", shipped, (*server).killed},
	{"a limited pod", "limited", (*server).limitedPod},
	{"a pod that asks for its interfaces", "nics", (*server).askingPod},
	{"an ADD that fails on the way", "broken", (*server).failingADD},
	{"a full subnet", "asks", (*server).fullSubnet},
	{"a runtime killed in an ADD", "asks", (*server).killedInADD},
}

// play runs the stories, and checks after each story that the node is as before. Before the stories, play creates and
// removes one pod, because the first pod of a node leaves objects that all pods share.
func (s *server) play(t *testing.T, stories []story) {
	t.Helper()
	s.endPods(t, s.pods(t, "first", 1, nil))
	before := s.traces(t)
	for _, x := range stories {
		t.Run(x.name, func(t *testing.T) {
			s.use(t, x.network)
			x.tell(s, t)
		})
		await(t, func() error {
			if d := cmp.Diff(before, s.traces(t)); d != "" {
				return fmt.Errorf("%s left something behind; -want +got\n%s", x.name, d)
			}
			return nil
		})
	}
}

// changed returns a conflist with more keys in each plugin, and with more plugins at the end.
func changed(list []byte, keys object, more ...any) []byte {
	var l object
	if err := json.Unmarshal(list, &l); err != nil {
		panic(err)
	}
	plugins := l["plugins"].([]any)
	for _, p := range plugins {
		maps.Copy(p.(object), keys)
	}
	l["plugins"] = append(plugins, more...)
	return must(json.Marshal(l))
}

// pods creates several pods at once. In each pod, servers answer at port.
func (s *server) pods(t *testing.T, name string, count int, annotations map[string]string) []*sandbox {
	t.Helper()
	pods, errs := make([]*sandbox, count), make([]error, count)
	var wg sync.WaitGroup
	for i := range count {
		wg.Go(func() { pods[i], errs[i] = s.newSandbox(fmt.Sprint(name, i), annotations) })
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

func (s *server) podsAtOnce(t *testing.T) {
	pods := s.pods(t, "pod", s.crowd, nil)
	s.connected(t, pods)
	s.endPods(t, pods)
}

// connected checks that each pod has one address of each family from the pods' ENI. Each pod and the other host must
// reach each other.
func (s *server) connected(t *testing.T, pods []*sandbox) {
	t.Helper()
	eni := s.node.ENIs()[1]
	for _, p := range pods {
		if len(p.addrs) != s.families {
			t.Errorf("addresses %v, want %d", p.addrs, s.families)
			continue
		}
		for family, a := range p.addrs {
			if a.Is6() != (family == 1) || !carries(eni, a) {
				t.Errorf("addresses %v, of an ENI with %v %v %v", p.addrs, eni.Addrs, eni.IPv6Addrs, eni.IPv6Prefixes)
			}
			host := s.hostAddrs()[family]
			s.calls(t, p.Namespace, a, host)
			s.calls(t, s.host.Namespace, host, a)
			for _, other := range pods {
				s.calls(t, p.Namespace, a, other.addrs[family])
			}
		}
	}
}

func carries(e ec2sim.ENI, a netip.Addr) bool {
	return slices.Contains(slices.Concat(e.Addrs, e.IPv6Addrs), a) ||
		slices.ContainsFunc(e.IPv6Prefixes, func(p netip.Prefix) bool { return p.Contains(a) })
}

// calls makes a call between two addresses, and checks that the called end sees the source address in the argument
// "as".
func (s *server) calls(t *testing.T, from *vpcsim.Namespace, as, to netip.Addr) {
	t.Helper()
	if seen, err := from.Call("tcp", netip.AddrPortFrom(to, port)); err != nil || seen.Addr() != as {
		t.Errorf("%v calls %v and is seen as %v, %v", as, to, seen, err)
	}
}

func (s *server) endPods(t *testing.T, pods []*sandbox) {
	t.Helper()
	for _, p := range pods {
		if err := errors.Join(p.Close(), s.remove(p.id)); err != nil {
			t.Error(err)
		}
	}
}

// limitedPod creates a pod with Kubernetes' annotations for bandwidth, which the runtime passes as a capability. Our
// plugin derives the burst from the rate. With the burst that the runtime passes, the pod would have no limit.
func (s *server) limitedPod(t *testing.T) {
	pods := s.pods(t, "limited", 1, map[string]string{"kubernetes.io/ingress-bandwidth": "8M",
		"kubernetes.io/egress-bandwidth": "16M"})
	for hook, want := range map[string]string{"ingress": "rate 8Mbit burst 128Kb",
		"egress": "rate 16Mbit burst 200000b"} {
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
	s.endPods(t, pods)
}

// askingPod creates a pod that asks for an address and for a second interface. The pod asks by an annotation, which the
// runtime passes as a capability. A pod that asks for a subnet, which is not allowed, must get an error.
func (s *server) askingPod(t *testing.T) {
	chosen := netip.MustParseAddr("100.64.0.77")
	pods := s.pods(t, "asking", 1,
		map[string]string{nic.Annotation: fmt.Sprintf(`[{"ip": %q}, {"name": "data"}]`, chosen)})
	further, err := pods[0].Addrs("data")
	further = slices.DeleteFunc(further, func(a nl.Addr) bool { return a.Prefix.Addr().IsLinkLocalUnicast() })
	if err != nil || len(further) != 1 || pods[0].addrs[0] != chosen {
		t.Fatalf("the pod has %v and %v, want %s and one more; %v", pods[0].addrs, further, chosen, err)
	}
	for _, a := range []netip.Addr{chosen, further[0].Prefix.Addr()} {
		s.calls(t, s.host.Namespace, s.host.Addr(), a)
	}
	if _, err := s.runPod("refused", map[string]string{nic.Annotation: `[{"subnet": "subnet-pods"}]`}); err == nil ||
		!strings.Contains(err.Error(), "subnet: subnet-pods: allowed are none") {
		t.Errorf("error %v, want that the subnet is not allowed", err)
	}
	s.endPods(t, pods)
}

// failingADD checks an ADD that fails at the last plugin, when the address is leased and the links exist.
func (s *server) failingADD(t *testing.T) {
	if _, err := s.runPod("broken", nil); err == nil || !strings.Contains(err.Error(), "broken by intent") {
		t.Errorf("error %v, want that of the last plugin", err)
	}
}

// fullSubnet checks the error of an ADD while the subnet in EC2 is full.
func (s *server) fullSubnet(t *testing.T) {
	const code = "InsufficientFreeAddressesInSubnet"
	actions := []string{"AssignPrivateIpAddresses", "AssignIpv6Addresses", "CreateNetworkInterface"}
	for _, action := range actions {
		s.fabric.EC2.Fail(action, code, -1)
	}
	const most = 20 // more than the number of free addresses that the node can have
	var err error
	for n := 0; n < most && err == nil; n++ {
		var id string
		if id, err = s.runPod(fmt.Sprint("asks-", n), nil); err == nil {
			defer func() {
				if err := s.remove(id); err != nil {
					t.Error(err)
				}
			}()
		}
	}
	if err == nil || !strings.Contains(err.Error(), code) {
		t.Errorf("error %v, want %s", err, code)
	}
	for _, action := range actions {
		s.fabric.EC2.Fail(action, code, 0)
	}
}

func (s *server) killed(t *testing.T) {
	pods := s.pods(t, "survivor", 1, nil)
	s.kill(t)
	s.connected(t, pods)
	s.start(t)
	again, err := s.inspect(pods[0].id)
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Close(); err != nil || !slices.Equal(again.addrs, pods[0].addrs) {
		t.Errorf("the addresses are %v now, and were %v; %v", again.addrs, pods[0].addrs, err)
	}
	s.endPods(t, pods)
}

// killedInADD kills the runtime while a plugin waits for an address from EC2. After its restart, containerd knows the
// pod, and the test removes the pod. After its restart, CRI-O does not know the pod, and calls GC. Only after that, the
// test lets the plugin continue.
func (s *server) killedInADD(t *testing.T) {
	stopped := s.stopAtChange(t)
	answered := make(chan error, 1)
	go func() {
		for {
			_, err := s.runPod("asks", nil)
			if err == nil || !strings.Contains(err.Error(), "this node asks EC2 again after") { // after fullSubnet
				answered <- err
				return
			}
		}
	}()
	var plugins []int
	select {
	case plugins = <-stopped:
	case err := <-answered:
		t.Fatalf("the pod was there before the plugin asked EC2; %v", err)
	}
	s.kill(t)
	if err := <-answered; err == nil || len(plugins) == 0 {
		t.Errorf("the pod was there before; %v, %v", plugins, err)
	}
	s.start(t)
	s.ready(t)
	left := s.sandboxes(t)
	for _, id := range left {
		if err := s.remove(id); err != nil {
			t.Error(err)
		}
	}
	if kept := len(left) == 1; kept != s.keeps {
		t.Errorf("the sandboxes are %v, with that of the ADD: %t", left, s.keeps)
	}
	signal(t, plugins, syscall.SIGCONT)
}

// stopAtChange waits for the next change in EC2. Before EC2 answers, stopAtChange stops all plugins that run, and sends
// their PIDs to the channel.
func (s *server) stopAtChange(t *testing.T) <-chan []int {
	stopped := make(chan []int, 1)
	var once sync.Once
	s.fabric.EC2.OnChange(func(ec2sim.Change) {
		once.Do(func() {
			plugins := s.running(filepath.Join(s.plugins, "*"))
			signal(t, plugins, syscall.SIGSTOP)
			awaitStop(t, plugins)
			stopped <- plugins
		})
	})
	return stopped
}

// awaitStop waits until all processes have stopped. A process stops a moment after SIGSTOP.
func awaitStop(t *testing.T, pids []int) {
	t.Helper()
	err := repeated(func() error {
		running := slices.DeleteFunc(slices.Clone(pids), func(pid int) bool {
			status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
			return err != nil || bytes.Contains(status, []byte("State:\tT")) ||
				bytes.Contains(status, []byte("State:\tZ"))
		})
		if len(running) > 0 {
			return fmt.Errorf("the processes %v have not stopped", running)
		}
		return nil
	})
	if err != nil {
		t.Error(err) // the caller may be in another goroutine than the test
	}
}

// signal sends a signal to processes. At least one of the processes must still exist.
func signal(t *testing.T, pids []int, s syscall.Signal) {
	t.Helper()
	there := 0
	for _, pid := range pids {
		switch err := syscall.Kill(pid, s); {
		case err == nil:
			there++
		case !errors.Is(err, syscall.ESRCH):
			t.Errorf("%v: %v", s, err)
		}
	}
	if there == 0 && len(pids) > 0 {
		t.Errorf("%v: no process of %v is there", s, pids)
	}
}
