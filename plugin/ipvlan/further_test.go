// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipvlan

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
)

// A several is a node with several ENIs. Each ENI leads to its own VPC, and behind each VPC's router is a host with the
// same address. So the pod's answer to such a host arrives only if the answer leaves through the ENI at which the call
// has arrived.
type several struct {
	bench
	vpcs []*nl.NS
}

const host4, host6 = "198.51.100.1", "fd99::1"

// newSeveral makes an ENI for each argument. The argument is the third byte of the addresses in the ENI's subnet.
func newSeveral(t *testing.T, subnets ...int) several {
	nltest.Need(t, "ipvlan")
	s := several{bench: bench{T: t}}
	s.node, _ = nltest.NS(t, "node")
	for i, subnet := range subnets {
		vpc, _ := nltest.NS(t, fmt.Sprint("vpc", i))
		s.vpcs = append(s.vpcs, vpc)
		s.must(nl.Wiring{
			{NS: s.node, Object: nl.Veth{Name: eniLink(i), MAC: mac(i), Peer: "eni", PeerNS: vpc, MTU: 9001}},
			{NS: vpc, Object: nl.Up{Dev: "lo"}},
			{NS: vpc, Object: nl.Addr{Prefix: netip.MustParsePrefix(host4 + "/32"), Dev: "lo"}},
			{NS: vpc, Object: nl.Addr{Prefix: netip.MustParsePrefix(host6 + "/128"), Dev: "lo", NoDAD: true}},
			{NS: vpc, Object: nl.Addr{Prefix: netip.MustParsePrefix(fmt.Sprintf("10.0.%d.1/24", subnet)), Dev: "eni"}},
			{NS: vpc, Object: nl.Addr{Prefix: netip.MustParsePrefix("fe80:ec2::1/64"), Dev: "eni", NoDAD: true}},
			{NS: vpc, Object: nl.Addr{Prefix: netip.MustParsePrefix(fmt.Sprintf("fd00:0:0:%d::1/64", subnet)),
				Dev: "eni", NoDAD: true}},
		}.Add())
	}
	return s
}

func eniLink(i int) string { return fmt.Sprint("ens", 6+i) }
func mac(i int) string     { return fmt.Sprintf("0a:00:00:00:00:%02x", 6+i) }

// addr4 and addr6 return the pod's address at an ENI in a subnet.
func addr4(eni, subnet int) string { return fmt.Sprintf("10.0.%d.%d", subnet, 20+eni) }
func addr6(eni, subnet int) string { return fmt.Sprintf("fd00:0:0:%d::%d", subnet, 20+eni) }

// An eniAt is an ENI in a subnet.
type eniAt struct{ eni, subnet int }

// answer returns the ipam plugin's result for NICs on these ENIs. Only the first NIC has routes to the VPC.
func answer(nics ...eniAt) *types100.Result {
	res := &types100.Result{}
	for i, n := range nics {
		gw4, gw6 := net.IPv4(10, 0, byte(n.subnet), 1), net.ParseIP("fe80:ec2::1")
		res.Interfaces = append(res.Interfaces, &types100.Interface{Name: eniLink(n.eni)})
		res.IPs = append(res.IPs,
			&types100.IPConfig{Interface: new(i), Address: cidr(addr4(n.eni, n.subnet) + "/24"), Gateway: gw4},
			&types100.IPConfig{Interface: new(i), Address: cidr(addr6(n.eni, n.subnet) + "/64"), Gateway: gw6})
		if i == 0 {
			res.Routes = []*types.Route{{Dst: cidr("10.0.0.0/16"), GW: gw4}, {Dst: cidr("0.0.0.0/0"), GW: gw4},
				{Dst: cidr("::/0"), GW: gw6}}
		}
	}
	return res
}

// ask returns a request for an interface in the namespace at path.
func (s several) ask(path, ifName, config string, prev *types100.Result) *plugin.Request[Config] {
	r := request(s.T, config, nil, nil)
	r.NetNS, r.IfName, r.Prev = path, ifName, prev
	return r
}

// serve accepts connections to any address of a pod, and answers with the address that the client has called.
func (s several) serve(pod *nl.NS) (port string) {
	var l net.Listener
	s.must(pod.Do(func() (err error) { l, err = net.Listen("tcp", ":0"); return err }))
	s.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			io.WriteString(c, c.LocalAddr().String())
			c.Close()
		}
	}()
	_, port, _ = net.SplitHostPort(l.Addr().String())
	return port
}

// called makes the host behind an ENI connect to an address of the pod. The pod must answer.
func (s several) called(eni int, from, addr, port string) {
	s.Helper()
	to := net.JoinHostPort(addr, port)
	err := s.vpcs[eni].Do(func() error {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: time.Minute}
		c, err := d.Dial("tcp", to)
		if err != nil {
			return err
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(time.Minute))
		b, err := io.ReadAll(c)
		if err == nil && !strings.HasSuffix(string(b), port) {
			err = fmt.Errorf("answered %q", b)
		}
		return err
	})
	if err != nil {
		s.Errorf("call %s by %s from %s: %v", to, eniLink(eni), from, err)
	}
}

// answers checks that each NIC answers through its own ENI: to a host outside of the subnet, and to the router of the
// subnet.
func (s several) answers(pod *nl.NS, nics ...eniAt) {
	s.Helper()
	port := s.serve(pod)
	for _, n := range nics {
		s.called(n.eni, host4, addr4(n.eni, n.subnet), port)
		s.called(n.eni, host6, addr6(n.eni, n.subnet), port)
		s.called(n.eni, fmt.Sprintf("10.0.%d.1", n.subnet), addr4(n.eni, n.subnet), port)
		s.called(n.eni, fmt.Sprintf("fd00:0:0:%d::1", n.subnet), addr6(n.eni, n.subnet), port)
	}
}

// strict makes the pod check sources strictly (rp_filter).
func (s several) strict(pod *nl.NS) {
	s.must(nl.Wiring{{NS: pod, Object: nl.Sysctl{Key: "net/ipv4/conf/all/rp_filter", Value: "1"}}}.Add())
}

// TestSeveral makes several NICs by one ADD, in different subnets or in the same subnet, and connects to each NIC.
func TestSeveral(t *testing.T) {
	for name, subnets := range map[string][]int{"two": {1, 3}, "three": {1, 3, 4}, "in one subnet": {1, 1, 1}} {
		t.Run(name, func(t *testing.T) {
			s := newSeveral(t, subnets...)
			var nics []eniAt
			for i, subnet := range subnets {
				nics = append(nics, eniAt{i, subnet})
			}
			pod, path := nltest.NS(t, "pod")
			s.strict(pod)
			dump := func() string { return nltest.Dump(t, s.node, pod) }
			before := dump()
			r := s.ask(path, "eth0", `{}`, answer(nics...))
			res, err := s.ADD(r)
			s.must(err)
			if name == "two" {
				nltest.Golden(t, "pod-two", nltest.Dump(t, pod), *update)
			}
			for i, want := range []string{"eth0", "eth2", "eth3"}[:len(nics)] {
				if got := res.Interfaces[i]; got.Name != want || got.Mac != mac(i) || got.Sandbox != path ||
					got.Mtu != 9001 {
					t.Errorf("interface %d is %+v", i, got)
				}
			}
			s.answers(pod, nics...)
			during := dump()
			s.must(s.CHECK(r, res))
			_, err = s.ADD(r)
			s.must(err)
			s.same("the second ADD changed something", during, dump())
			for _, prev := range []*types100.Result{res, nil, nil} {
				last := *r
				last.Prev = prev
				s.must(s.DEL(&last))
				s.same("DEL left something", before, dump())
			}
			_, err = s.ADD(r)
			s.must(err)
			s.same("ADD after DEL", during, dump())
		})
	}
}

// TestAttachments adds further attachments of a pod, and deletes them in any order. The remaining attachments still
// answer, and pass CHECK.
func TestAttachments(t *testing.T) {
	nics := []eniAt{{0, 1}, {1, 3}, {2, 1}}
	for _, order := range [][]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}} {
		t.Run(fmt.Sprint(order), func(t *testing.T) {
			s := newSeveral(t, 1, 3, 1)
			pod, path := nltest.NS(t, "pod")
			s.strict(pod)
			before := nltest.Dump(t, s.node, pod)
			var rs []*plugin.Request[Config]
			var results []*types100.Result
			for i, n := range nics {
				r := s.ask(path, []string{"eth0", "net1", "net2"}[i], `{}`, answer(n))
				if i == 2 {
					r.Network = "another"
				}
				for range 2 {
					res, err := s.ADD(r)
					s.must(err)
					if i > 0 && len(res.Routes) > 0 {
						t.Errorf("a further attachment has the routes %v", res.Routes)
					}
					results = append(results[:i], res)
				}
				rs = append(rs, r)
			}
			if order[0] == 0 && order[1] == 1 {
				nltest.Golden(t, "pod-attachments", nltest.Dump(t, pod), *update)
			}
			left := []int{0, 1, 2}
			for turn, gone := range order {
				for _, i := range left {
					s.answers(pod, nics[i])
					s.must(s.CHECK(rs[i], results[i]))
				}
				last := *rs[gone]
				if last.Prev = results[gone]; turn == 1 {
					last.Prev = nil
				}
				for range 2 {
					s.must(s.DEL(&last))
				}
				if s.CHECK(rs[gone], results[gone]) == nil {
					t.Errorf("CHECK of %s after DEL: no error", last.IfName)
				}
				left = slices.DeleteFunc(left, func(i int) bool { return i == gone })
				for _, i := range left { // a second ADD must not change an attachment
					during := nltest.Dump(t, pod)
					_, err := s.ADD(rs[i])
					s.must(err)
					s.same("the second ADD changed something", during, nltest.Dump(t, pod))
				}
			}
			s.same("DEL left something", before, nltest.Dump(t, s.node, pod))
		})
	}
}

// TestCheckFurther removes a part of a further NIC. CHECK names the part, and ADD restores it.
func TestCheckFurther(t *testing.T) {
	s := newSeveral(t, 1, 3, 4)
	pod, path := nltest.NS(t, "pod")
	first := s.ask(path, "eth0", `{}`, answer(eniAt{0, 1}, eniAt{1, 3}))
	second := s.ask(path, "net1", `{}`, answer(eniAt{2, 4}))
	results := map[*plugin.Request[Config]]*types100.Result{}
	for _, r := range []*plugin.Request[Config]{first, second} {
		res, err := s.ADD(r)
		s.must(err)
		results[r] = res
	}
	for _, c := range []struct {
		of            *plugin.Request[Config]
		nic           int
		spoil, reason string // in spoil, $t is the routing table of the NIC
	}{
		{first, 1, "ip rule del from 10.0.3.21", "there is no such rule"},
		{first, 1, "ip -6 rule del from fd00:0:0:3::21", "there is no such rule"},
		{first, 1, "ip route del default table $t", "there is no such route"},
		{first, 1, "ip route del 10.0.3.0/24 table $t", "there is no such route"},
		{first, 1, "ip -6 route del default table $t", "there is no such route"},
		{first, 1, "ip addr del 10.0.3.21/24 dev eth2", "has no address"},
		{first, 1, "ip link del eth2", "no such device"},
		{second, 0, "ip rule del from 10.0.4.22", "there is no such rule"},
		{second, 0, "ip route flush table $t", "there is no such route"},
		{second, 0, "ip -6 addr del fd00:0:0:4::22/64 dev net1", "has no address"},
		{second, 0, "ip link set net1 down", "the link is down"},
		{second, 0, "ip link del net1", "no such device"},
	} {
		s.must(s.CHECK(first, results[first]))
		s.must(s.CHECK(second, results[second]))
		nltest.Shell(t, pod, fmt.Sprintf("t=%d; %s", nl.FurtherTable(nl.PodGroup(c.of.Digest()), c.nic), c.spoil))
		if err := s.CHECK(c.of, results[c.of]); err == nil || !strings.Contains(err.Error(), c.reason) {
			t.Errorf("CHECK after %q: %v, want %s", c.spoil, err, c.reason)
		}
		if strings.HasSuffix(c.spoil, "down") { // ADD cannot repair a link that is down, because its routes are gone
			s.must(s.DEL(c.of))
		}
		_, err := s.ADD(c.of)
		s.must(err)
	}
	s.answers(pod, eniAt{0, 1}, eniAt{1, 3}, eniAt{2, 4})
}

// TestARP: a pod has three NICs on one network. Each NIC answers ARP only for its own address, with its own MAC
// address.
func TestARP(t *testing.T) {
	s := newSeveral(t, 1, 1, 1)
	bridge, _ := nltest.NS(t, "bridge")
	nltest.Shell(t, bridge, "ip link add br0 type bridge; ip link set br0 up; ip addr add 10.0.1.9/24 dev br0")
	for i := range 3 { // the bridge replaces the VPCs
		s.must(nl.Wiring{{NS: s.node, Object: nl.Veth{Name: eniLink(i)}}}.Del())
		s.must(nl.Wiring{{NS: s.node, Object: nl.Veth{Name: eniLink(i), MAC: mac(i), Peer: eniLink(i),
			PeerNS: bridge}}}.Add())
		nltest.Shell(t, bridge, "ip link set "+eniLink(i)+" master br0")
	}
	pod, path := nltest.NS(t, "pod")
	_, err := s.ADD(s.ask(path, "eth0", `{}`, answer(eniAt{0, 1}, eniAt{1, 1})))
	s.must(err)
	_, err = s.ADD(s.ask(path, "net1", `{}`, answer(eniAt{2, 1})))
	s.must(err)
	port := s.serve(pod)
	s.vpcs = []*nl.NS{bridge, bridge, bridge}
	for range 3 {
		for i := range 3 {
			nltest.Shell(t, bridge, "ip neigh flush dev br0")
			s.called(i, "10.0.1.9", addr4(i, 1), port)
			nltest.Shell(t, bridge, fmt.Sprintf("ip neigh show %s dev br0 | grep -q %s || { ip neigh; exit 1; }",
				addr4(i, 1), mac(i)))
		}
	}
}

// TestSource: the packets of a program that binds no address have the first NIC's address as their source. This is true
// even on a link without addresses, and even if the further NIC is older than the first NIC.
func TestSource(t *testing.T) {
	s := newSeveral(t, 1, 3)
	pod, path := nltest.NS(t, "pod")
	first, second := s.ask(path, "eth0", `{}`, answer(eniAt{0, 1})), s.ask(path, "net1", `{}`, answer(eniAt{1, 3}))
	add := func(r *plugin.Request[Config]) {
		_, err := s.ADD(r)
		s.must(err)
	}
	add(first)
	add(second)
	s.must(s.DEL(first))
	add(first)
	s.must(nl.Wiring{{NS: s.node, Object: nl.Veth{Name: "near", Peer: "eth1", PeerNS: pod}}}.Add())
	nltest.Shell(t, pod, "ip route add 172.20.0.0/16 dev eth1; ip -6 route add fd00:0:0:3:1::/80 dev eth1")
	for to, want := range map[string]string{"172.20.0.10:80": addr4(0, 1), "[fd00:0:0:3:1::1]:80": addr6(0, 1),
		"10.0.3.7:80": addr4(0, 1), "[fd00:0:0:3::7]:80": addr6(0, 1)} {
		var got string
		s.must(pod.Do(func() error {
			c, err := net.Dial("udp", to)
			if err == nil {
				got = c.LocalAddr().(*net.UDPAddr).IP.String()
				c.Close()
			}
			return err
		}))
		if got != want {
			t.Errorf("the source of a datagram to %s is %s, want %s", to, got, want)
		}
	}
}

// TestOtherNames: ADD fails if the requested name is the name of another link, and changes nothing. That link may
// belong to another attachment of the pod.
func TestOtherNames(t *testing.T) {
	s := newSeveral(t, 1, 3)
	pod, path := nltest.NS(t, "pod")
	nltest.Shell(t, pod, "ip link add tun0 type bridge")
	first := s.ask(path, "eth0", asking(t, "", `[{}, {"name": "net1"}]`), answer(eniAt{0, 1}, eniAt{1, 3}))
	res, err := s.ADD(first)
	s.must(err)
	before := nltest.Dump(t, s.node, pod)
	for want, r := range map[string]*plugin.Request[Config]{
		"net1 belongs to another attachment of the pod": s.ask(path, "net1", `{}`, answer(eniAt{1, 3})),
		"tun0 is bridge, not ipvlan":                    s.ask(path, "tun0", `{}`, answer(eniAt{1, 3})),
	} {
		if _, err := s.ADD(r); err == nil || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("ADD of %s: %v, want %s", r.IfName, err, want)
		}
		s.must(s.DEL(r))
		s.same("ADD and DEL of "+r.IfName, before, nltest.Dump(t, s.node, pod))
	}
	s.must(s.CHECK(first, res))
}

// TestHalfOfFirst: the ADD of the first attachment was killed. Then the ADD of a further attachment succeeds. The first
// attachment still counts as the first. After its DEL, its next ADD makes it the first again.
func TestHalfOfFirst(t *testing.T) {
	s := newSeveral(t, 1, 3)
	pod, path := nltest.NS(t, "pod")
	first, second := s.ask(path, "eth0", `{}`, answer(eniAt{0, 1})), s.ask(path, "net1", `{}`, answer(eniAt{1, 3}))
	own := nl.PodGroup(first.Digest())
	s.must(nl.Wiring{{NS: s.node, Object: nl.IPVlan{Name: "eth0", Master: "ens6", NS: pod, Group: own,
		Down: true}}}.Add())
	_, err := s.ADD(second)
	s.must(err)
	nltest.Shell(t, pod, "ip link set eth0 up")
	for range 2 {
		for _, want := range []struct {
			link  string
			group uint32
		}{{"eth0", own}, {"net1", nl.FurtherGroup(nl.PodGroup(second.Digest()))}} {
			_, err = s.ADD(map[string]*plugin.Request[Config]{"eth0": first, "net1": second}[want.link])
			s.must(err)
			if l, err := pod.LinkByName(want.link); err != nil || l.Group != want.group {
				t.Errorf("%s is in group %d, want %d: %v", want.link, l.Group, want.group, err)
			}
		}
		s.answers(pod, eniAt{0, 1}, eniAt{1, 3})
		s.must(s.DEL(first))
	}
}

// TestLeftovers: a pod has prepared rules and routes in its namespace. ADD and DEL of several NICs remove only the
// rules and routes that have our protocol number and our tables.
func TestLeftovers(t *testing.T) {
	s := newSeveral(t, 1, 3)
	r := s.ask("", "eth0", `{}`, answer(eniAt{0, 1}, eniAt{1, 3}))
	own := nl.PodGroup(r.Digest())
	table, other := nl.FurtherTable(own, 1), nl.FurtherTable(own+1, 1)
	ours := regexp.MustCompile(fmt.Sprintf("(lookup|table) %d proto(col)? 72$", table))
	for _, prank := range []string{
		"ip rule add pref 1024 from 10.0.3.21 lookup $t protocol 72",
		"ip rule add pref 1024 from 10.0.3.21 lookup $t",
		"ip rule add pref 5 from 10.0.3.21 lookup main",
		"ip link set lo up; ip route add prohibit 10.9.0.0/16 table $t proto 72; ip -6 route add prohibit fd09::/64 " +
			"table $t proto 72",
		"ip link set lo up; ip route add 10.9.0.0/16 dev lo table $t; ip route add 10.8.0.0/16 dev lo table $other " +
			"proto 72",
		"for i in $(seq 300); do echo rule add pref 7 fwmark $i lookup $t protocol 72; done | ip -batch -",
		"ip link add eth2 type bridge",
	} {
		pod, path := nltest.NS(t, "pod")
		nltest.Shell(t, pod, fmt.Sprintf("t=%d other=%d; %s", table, other, prank))
		stays := strings.Join(slices.DeleteFunc(strings.Split(nltest.Dump(t, pod), "\n"), ours.MatchString), "\n")
		r.NetNS = path
		res, err := s.ADD(r)
		s.must(err)
		s.must(s.CHECK(r, res))
		for range 2 {
			s.must(s.DEL(r))
		}
		s.same("ADD and DEL after "+prank, stays, nltest.Dump(t, pod))
		nltest.Remove(t, path)
	}
}
