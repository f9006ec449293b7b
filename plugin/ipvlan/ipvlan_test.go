// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipvlan

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
)

const eniMAC = "0a:00:00:00:00:02"

// A bench is a node with its own link eth0, and with an ENI ens6 that leads to a VPC router.
type bench struct {
	*testing.T
	node, vpc *nl.NS
}

func newBench(t *testing.T) bench {
	nltest.Need(t, "ipvlan")
	b := bench{T: t}
	b.node, _ = nltest.NS(t, "node")
	b.vpc, _ = nltest.NS(t, "vpc")
	b.must(nl.Wiring{
		{NS: b.node, Object: nl.Veth{Name: "eth0", Peer: "eni0", PeerNS: b.vpc}},
		{NS: b.node, Object: nl.Veth{Name: "ens6", MAC: eniMAC, Peer: "eni1", PeerNS: b.vpc, MTU: 9001}},
	}.Add())
	return b
}

func (b bench) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

func (b bench) pod(config string, addrs ...[2]string) (*plugin.Request[Config], *nl.NS) {
	n, path := nltest.NS(b, "pod")
	r := request(b.T, config, addrs, [][2]string{{"10.0.0.0/16", "10.0.1.1"}})
	r.NetNS = path
	return r, n
}

func (b bench) ADD(r *plugin.Request[Config]) (res *types100.Result, err error) {
	err = b.node.Do(func() (err error) { res, err = Commands(nil).Add(b.Context(), r); return err })
	return res, err
}

func (b bench) run(command func(plugin.Commands[Config]) error) error {
	return b.node.Do(func() error { return command(Commands(nil)) })
}

func (b bench) DEL(r *plugin.Request[Config]) error {
	return b.run(func(c plugin.Commands[Config]) error { return c.Del(b.Context(), r) })
}

func (b bench) CHECK(r *plugin.Request[Config], final *types100.Result) error {
	r2 := *r
	r2.Prev = final
	return b.run(func(c plugin.Commands[Config]) error { return c.Check(b.Context(), &r2) })
}

func (b bench) same(what, want, got string) {
	b.Helper()
	if d := cmp.Diff(strings.Split(want, "\n"), strings.Split(got, "\n")); d != "" {
		b.Errorf("%s: -want +got\n%s", what, d)
	}
}

// TestLifecycle adds, checks and deletes a pod, each twice.
func TestLifecycle(t *testing.T) {
	for name, addrs := range map[string][][2]string{
		"ipv4":       {{"10.0.1.20/24", "10.0.1.1"}},
		"dual-stack": {{"10.0.1.20/24", "10.0.1.1"}, {"fd00:0:0:1::20/64", "fd00:0:0:1::1"}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			r, pod := b.pod(`{}`, addrs...)
			dump := func() string { return nltest.Dump(t, b.node, pod) }
			before := dump()
			res, err := b.ADD(r)
			b.must(err)
			if i := res.Interfaces[0]; i.Mac != eniMAC || i.Mtu != 9001 || i.Sandbox != r.NetNS {
				t.Errorf("interface %+v", i)
			}
			nltest.Golden(t, "pod-"+name, nltest.Dump(t, pod), *update)
			during := dump()
			// Later plugins add interfaces, and change routes.
			res.Interfaces = append(res.Interfaces, &types100.Interface{Name: "veth1"},
				&types100.Interface{Name: "eth1", Sandbox: r.NetNS})
			b.must(b.CHECK(r, res))
			_, err = b.ADD(r)
			b.must(err)
			b.same("the second ADD changed something", during, dump())
			vpc := netip.MustParsePrefix("10.0.0.0/16")
			b.must(nl.Wiring{{NS: b.vpc, Object: nl.Veth{Name: "net9", Peer: "net1", PeerNS: pod}}}.Add())
			b.must(nl.Wiring{{NS: pod, Object: nl.Route{Dst: vpc, Via: netip.MustParseAddr("10.0.1.1"),
				Dev: "eth0"}}}.Del())
			b.must(nl.Wiring{{NS: pod, Object: nl.Route{Dst: vpc, Dev: "net1"}}}.Add())
			b.must(b.CHECK(r, res))
			b.must(nl.Wiring{{NS: b.vpc, Object: nl.Veth{Name: "net9"}}}.Del())
			r.Prev = res // a runtime calls DEL with this result
			b.must(b.DEL(r))
			b.same("DEL left something", before, dump())
			if b.CHECK(r, res) == nil {
				t.Error("CHECK after DEL: no error")
			}
			b.must(b.DEL(r))
			b.same("the second DEL changed something", before, dump())
		})
	}
}

// TestCheckFinds changes one thing in the pod. CHECK must name this change.
func TestCheckFinds(t *testing.T) {
	for name, x := range map[string]struct{ change, want string }{
		"route": {"ip route del 10.0.0.0/16",
			"pod: ip route add 10.0.0.0/16 via 10.0.1.1 dev eth0: there is no such route"},
		"another way": {"ip route replace 10.0.0.0/16 via 10.0.1.7 dev eth0",
			"pod: ip route add 10.0.0.0/16 via 10.0.1.1 dev eth0: there is another route, ip route add " +
				"10.0.0.0/16 via 10.0.1.7 dev eth0"},
		"another link": {"ip link add eth1 type dummy; ip link set eth1 up; ip -6 route replace default dev eth1",
			"pod: ip -6 route add default via fe80:ec2::1 dev eth0: there is another route, ip -6 route add default " +
				"dev eth1"},
		"address":   {"ip addr del 10.0.1.20/24 dev eth0", "pod: ip addr add 10.0.1.20/24 dev eth0"},
		"another's": {"ip addr add 10.0.1.77/32 dev eth0", "eth0 also has the address 10.0.1.77"},
		"advertisements": {"sysctl -qw net.ipv6.conf.eth0.accept_ra=1",
			"pod: sysctl -w net.ipv6.conf.eth0.accept_ra=0: the value is 1"},
		"down": {"ip link set eth0 down", "the link is down"},
		"gone": {"ip link del eth0", "pod: ip link set eth0 up: link eth0"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			r, pod := b.pod(`{}`, [2]string{"10.0.1.20/24", "10.0.1.1"}, [2]string{"fd00:0:0:1::20/64", "fe80:ec2::1"})
			r.Prev.Routes = append(r.Prev.Routes, &types.Route{Dst: cidr("::/0"), GW: net.ParseIP("fe80:ec2::1")})
			res, err := b.ADD(r)
			b.must(err)
			b.must(b.CHECK(r, res))
			b.must(pod.Do(func() error { return exec.Command("sh", "-c", x.change).Run() }))
			if err := b.CHECK(r, res); err == nil || !strings.Contains(err.Error(), x.want) {
				t.Errorf("CHECK: %v", err)
			}
		})
	}
}

// TestAddRefusesWhatDiffers: the pod already has an eth0 that differs from the eth0 that ADD would make. ADD fails, and
// does not change this link.
func TestAddRefusesWhatDiffers(t *testing.T) {
	b := newBench(t)
	r, pod := b.pod(`{"mtu": 9001}`, [2]string{"10.0.1.20/24", "10.0.1.1"})
	for want, there := range map[string]nl.Step{
		"eth0 is veth, not ipvlan": {NS: b.vpc, Object: nl.Veth{Name: "other", Peer: "eth0", PeerNS: pod}},
		"mode is l3, not l2": {NS: b.node, Object: nl.IPVlan{Name: "eth0", Master: "ens6", NS: pod,
			Mode: "l3"}},
		"the master of eth0 is not ens6": {NS: b.node, Object: nl.IPVlan{Name: "eth0", Master: "eth0", NS: pod}},
		"mtu is 1500, not 9001": {NS: b.node, Object: nl.IPVlan{Name: "eth0", Master: "ens6", NS: pod,
			MTU: 1500}},
	} {
		w := nl.Wiring{there}
		b.must(w.Add())
		before := nltest.Dump(t, b.node, pod)
		if _, err := b.ADD(r); err == nil || !strings.HasSuffix(err.Error(), "file already exists: "+want) {
			t.Errorf("got %v, want %s", err, want)
		}
		b.same(want, before, nltest.Dump(t, b.node, pod))
		b.must(w.Del())
	}
}

// TestLoopback6: the runtime has disabled IPv6 in the namespace, as dockerd does. A pod with an IPv6 address reaches
// that address and ::1. In a pod without one, IPv6 stays disabled.
func TestLoopback6(t *testing.T) {
	const v6 = "fd00:0:0:1::20"
	for _, addrs := range [][][2]string{{{"10.0.1.20/24", "10.0.1.1"}},
		{{"10.0.1.20/24", "10.0.1.1"}, {v6 + "/64", "fd00:0:0:1::1"}}} {
		b := newBench(t)
		r, pod := b.pod(`{}`, addrs...)
		disabled := nl.Sysctl{Key: "net/ipv6/conf/all/disable_ipv6", Value: "1"}
		b.must(nl.Wiring{{NS: pod, Object: disabled}, {NS: pod, Object: nl.Up{Dev: "lo"}}}.Add())
		_, err := b.ADD(r)
		b.must(err)
		if len(addrs) == 1 {
			if v, err := pod.Sysctl("net/ipv6/conf/lo/disable_ipv6"); v != "1" || err != nil {
				t.Errorf("without IPv6: lo has disable_ipv6=%s, %v", v, err)
			}
			continue
		}
		for _, own := range []string{v6, "::1"} {
			b.must(pod.Do(func() error { return callSelf(own) }))
		}
	}
}

// callSelf connects to an address of the thread's namespace. The kernel adds the local route of a new IPv6 address
// later, in a work queue. Until then, the kernel looks for a neighbor with the address, and finds none. So callSelf may
// connect a second time.
func callSelf(addr string) error {
	l, err := net.Listen("tcp", net.JoinHostPort(addr, "0"))
	if err != nil {
		return err
	}
	defer l.Close()
	c, err := net.DialTimeout("tcp", l.Addr().String(), time.Minute)
	if errors.Is(err, syscall.EHOSTUNREACH) {
		c, err = net.DialTimeout("tcp", l.Addr().String(), time.Minute)
	}
	if err != nil {
		return err
	}
	return c.Close()
}

// TestMTU: a slave's MTU follows its master's. CHECK and another ADD accept the new MTU, except if the configuration
// has another MTU.
func TestMTU(t *testing.T) {
	for config, want := range map[string]string{`{}`: "", `{"master": "ens6"}`: "",
		`{"mtu": 9001}`: "mtu is 1500, not 9001"} {
		b := newBench(t)
		r, pod := b.pod(config, [2]string{"10.0.1.20/24", "10.0.1.1"})
		res, err := b.ADD(r)
		b.must(err)
		b.must(nl.Wiring{{NS: b.node, Object: nl.Up{Dev: "ens6", MTU: 1500}}}.Add())
		l, err := pod.LinkByName("eth0")
		b.must(err)
		_, again := b.ADD(r)
		for command, err := range map[string]error{"CHECK": b.CHECK(r, res), "ADD": again} {
			if want == "" && err != nil || want != "" && (err == nil || !strings.HasSuffix(err.Error(), want)) {
				t.Errorf("%s with %s of a slave with MTU %d: %v", command, config, l.MTU, err)
			}
		}
	}
}

// TestAddOrNothing makes an ADD fail at its last address, because another slave has it. Nothing of the ADD must remain.
func TestAddOrNothing(t *testing.T) {
	b := newBench(t)
	first, _ := b.pod(`{}`, [2]string{"10.0.1.20/24", "10.0.1.1"})
	_, err := b.ADD(first)
	b.must(err)
	r, pod := b.pod(`{}`, [2]string{"10.0.1.21/24", "10.0.1.1"}, [2]string{"10.0.1.20/24", "10.0.1.1"})
	before := nltest.Dump(t, b.node, pod)
	_, err = b.ADD(r)
	e, ok := errors.AsType[*plugin.Error](err)
	if !ok || e.Code != plugin.CodeTryAgain ||
		e.Error() != "pod: ip addr add 10.0.1.20/24 dev eth0: address already in use" {
		t.Errorf("got %v", err)
	}
	b.same("a failed ADD left something", before, nltest.Dump(t, b.node, pod))
	b.must(b.DEL(r))
	b.must(b.CHECK(first, result(first, []slave{{ips: first.Prev.IPs}}, []nl.Link{{Name: "eth0"}})))
}

// TestDelOfNothing: DEL succeeds without a namespace, and in one with another program's eth0.
func TestDelOfNothing(t *testing.T) {
	b := newBench(t)
	r, pod := b.pod(`{"master": "absent"}`, [2]string{"10.0.1.20/24", "10.0.1.1"})
	b.must(nl.Wiring{{NS: b.vpc, Object: nl.Veth{Name: "other", Peer: "eth0", PeerNS: pod}}}.Add())
	before := nltest.Dump(t, b.node, pod)
	for _, netns := range []string{r.NetNS, "", "/run/netns/absent"} {
		r.NetNS, r.Prev = netns, nil
		b.must(b.DEL(r))
	}
	b.same("DEL", before, nltest.Dump(t, b.node, pod))
}

// TestDelForeign: the pod's path leads to the namespace of another pod, or of the node. DEL deletes no link there.
func TestDelForeign(t *testing.T) {
	b := newBench(t)
	r, pod := b.pod(`{}`, [2]string{"10.0.1.20/24", "10.0.1.1"})
	_, err := b.ADD(r)
	b.must(err)
	b.must(nl.Wiring{{NS: b.node, Object: nl.IPVlan{Name: "net1", Master: "ens6", NS: b.node}}}.Add())
	before := nltest.Dump(t, b.node, pod)
	gone := *r
	gone.ContainerID, gone.Prev = "gone", nil
	b.must(b.DEL(&gone))
	gone.IfName, gone.NetNS = "net1", "/proc/thread-self/ns/net"
	b.must(b.DEL(&gone))
	b.same("DEL", before, nltest.Dump(t, b.node, pod))
}

// TestPranks: a pod changes its own links. DEL always succeeds, and deletes what remains of the pod's interface.
func TestPranks(t *testing.T) {
	b := newBench(t)
	for i, prank := range []string{
		"ip link set lo group $group",
		"ip link set eth0 down; ip link set eth0 name there; ip link add eth0 group $group type bridge",
		"for i in $(seq 1000); do echo link property add dev eth0 altname $(printf %0127d $i); done | ip -force " +
			"-batch - 2>/dev/null || true",
		"ip link del eth0",
	} {
		r, pod := b.pod(`{}`, [2]string{fmt.Sprintf("10.0.1.%d/24", 20+i), "10.0.1.1"})
		_, err := b.ADD(r)
		b.must(err)
		b.must(pod.Do(func() error {
			return exec.Command("sh", "-ec", fmt.Sprintf("group=%d; %s", nl.PodGroup(r.Digest()), prank)).Run()
		}))
		for range 2 {
			if err := b.DEL(r); err != nil {
				t.Errorf("%s: %v", prank, err)
			}
		}
	}
}

// TestCheck: CHECK fails if the pod differs from the result.
func TestCheck(t *testing.T) {
	b := newBench(t)
	r, _ := b.pod(`{}`, [2]string{"10.0.1.20/24", "10.0.1.1"})
	res, err := b.ADD(r)
	b.must(err)
	for want, spoil := range map[string]func(r *plugin.Request[Config], res *types100.Result){
		"CHECK was called without prevResult": func(_ *plugin.Request[Config],
			res *types100.Result) {
			*res = types100.Result{}
		},
		"prevResult has no interface net1 in the container": func(r *plugin.Request[Config],
			_ *types100.Result) {
			r.IfName = "net1"
		},
		"pod: ip link set eth0 up: eth0 has the MAC address " + eniMAC +
			", not 0a:00:00:00:00:09": func(_ *plugin.Request[Config], res *types100.Result) {
			res.Interfaces[0].Mac = "0a:00:00:00:00:09"
		},
		"node: ip link add eth0 netns pod type ipvlan mode l2: eth0 also has the address 10.0.1.20, " +
			"which another ADD or the pod itself has added\n" +
			"pod: ip addr add 10.0.1.21/24 dev eth0: eth0 has no address 10.0.1.21/24: file does not " +
			"exist": func(_ *plugin.Request[Config], res *types100.Result) {
			res.IPs[0].Address = cidr("10.0.1.21/24")
		},
		"node: ip link add eth0 netns pod type ipvlan mode l3: mode is l2, not " +
			"l3": func(r *plugin.Request[Config], _ *types100.Result) { r.Config.Mode = "l3" },
		"node: ip link add eth0 link absent netns pod type ipvlan mode l2: link absent: no such " +
			"device": func(r *plugin.Request[Config], _ *types100.Result) { r.Config.Master = "absent" },
	} {
		r2, res2 := *r, *res
		res2.Interfaces = []*types100.Interface{new(*res.Interfaces[0])}
		res2.IPs = []*types100.IPConfig{new(*res.IPs[0])}
		spoil(&r2, &res2)
		final := &res2
		if len(res2.Interfaces) == 0 {
			final = nil
		}
		if err := b.CHECK(&r2, final); err == nil || err.Error() != want {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	}
}

func TestStatus(t *testing.T) {
	b := newBench(t)
	b.must(b.run(func(c plugin.Commands[Config]) error { return c.Status(t.Context(), &plugin.Request[Config]{}) }))
	if d := nltest.Dump(t, b.node); strings.Contains(d, "probe") {
		t.Errorf("the probe is still there:\n%s", d)
	}
}
