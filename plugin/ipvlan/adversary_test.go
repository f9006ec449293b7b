// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipvlan

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
)

// An adversary is a program in a pod, with its permissions.
type adversary struct {
	name   string
	attr   syscall.SysProcAttr
	packet bool // the program can open a packet socket
	admin  bool // the program can change the pod's links
}

// adversaries are a pod as Kubernetes makes it, one whose owner trusts it, one without any capability, and one that is
// root in a user namespace of its own (hostUsers: false).
func adversaries() []adversary {
	user := &syscall.Credential{Uid: 65534, Gid: 65534}
	root := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 65534, Size: 1}}
	return []adversary{
		{"only sockets", syscall.SysProcAttr{Credential: user}, false, false},
		{"CAP_NET_RAW", syscall.SysProcAttr{Credential: user, AmbientCaps: []uintptr{unix.CAP_NET_RAW}}, true, false},
		{"CAP_NET_ADMIN", syscall.SysProcAttr{}, true, true},
		{"user namespace", syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET,
			UidMappings: root, GidMappings: root,
			Credential: &syscall.Credential{NoSetGroups: true}}, true, true},
	}
}

// adversaryEnv is an environment variable. If it is set, the test binary is the program in a pod: it reads attempts,
// one in each line, makes each, and prints the error.
const adversaryEnv = "IPVLAN_ADVERSARY"

func init() {
	if os.Getenv(adversaryEnv) == "" {
		return
	}
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		name, family, _ := strings.Cut(lines.Text(), " / ")
		err := errors.New("there is no such attempt")
		if i := slices.IndexFunc(attempts, func(a attempt) bool { return a.name == name }); i >= 0 {
			err = attempts[i].make(family == "IPv6")
		}
		if name == "begin" {
			err = nil
		}
		fmt.Println(strings.ReplaceAll(fmt.Sprint(err), "\n", " "))
	}
	os.Exit(0)
}

// A captive is an adversary that runs in a pod.
type captive struct {
	adversary
	path string // of the pod's network namespace
	in   io.Writer
	out  *bufio.Reader
}

// capture starts an adversary in a new network namespace. An adversary with its own user namespace makes the network
// namespace itself.
func (b bench) capture(a adversary) captive {
	b.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env, cmd.SysProcAttr, cmd.Stderr = append(os.Environ(), adversaryEnv+"=1"), &a.attr, os.Stderr
	in, err := cmd.StdinPipe()
	b.must(err)
	out, err := cmd.StdoutPipe()
	b.must(err)
	pod, path := nltest.NS(b, "captive")
	b.must(pod.Do(cmd.Start))
	b.Cleanup(func() { b.must(errors.Join(in.Close(), cmd.Wait())) })
	c := captive{a, path, in, bufio.NewReader(out)}
	if a.attr.Cloneflags&syscall.CLONE_NEWNET != 0 {
		c.path = fmt.Sprintf("/proc/%d/ns/net", cmd.Process.Pid)
	}
	if answer := c.tell("begin", ""); answer != "<nil>" {
		b.Fatal(answer)
	}
	return c
}

// tell makes the adversary carry out an attempt, and returns its answer.
func (c captive) tell(attempt, family string) string {
	fmt.Fprintf(c.in, "%s / %s\n", attempt, family)
	answer, err := c.out.ReadString('\n')
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(answer)
}

// A target is a bench whose node is as trusting as a node may be: it forwards, accepts router advertisements and
// neighbours, and checks no source.
type target struct {
	bench
	sockets []net.PacketConn // of the node and of the hosts behind it, in both families
}

func newTarget(t *testing.T) target {
	g := target{bench: newBench(t)}
	nltest.Shell(t, g.node, `ip addr add 10.0.1.5/24 dev ens6; ip addr add fd00:0:0:1::5/64 dev ens6 nodad
		ip addr add 10.0.0.5/24 dev eth0; ip addr add fd00::5/64 dev eth0 nodad
		for s in all ens6 eth0; do echo 0 >/proc/sys/net/ipv4/conf/$s/rp_filter; echo 1 >/proc/sys/net/ipv4/conf/$s/arp_accept; done
		echo 1 >/proc/sys/net/ipv4/ip_forward; echo 1 >/proc/sys/net/ipv6/conf/all/forwarding; echo 2 >/proc/sys/net/ipv6/conf/ens6/accept_ra
		echo 1 >/proc/sys/net/ipv4/conf/ens6/accept_local`)
	nltest.Shell(t, g.vpc,
		`ip addr add 10.0.0.9/24 dev eni0; ip addr add fd00::9/64 dev eni0 nodad; ip addr add 10.0.1.1/24 dev eni1; ip addr add fd00:0:0:1::1/64 dev eni1 nodad
		for s in all eni0; do echo 0 >/proc/sys/net/ipv4/conf/$s/rp_filter; done`)
	for _, n := range []*nl.NS{g.node, g.vpc} {
		g.must(n.Do(func() error {
			for network, addr := range map[string]string{"udp4": "0.0.0.0:9", "udp6": "[::]:9"} {
				c, err := net.ListenPacket(network, addr)
				if err != nil {
					return err
				}
				g.sockets = append(g.sockets, c)
				g.Cleanup(func() { c.Close() })
			}
			return nil
		}))
	}
	return g
}

// arrived returns the datagrams that have arrived since its last call. First it sends datagrams on the same paths. When
// these have arrived, all earlier packets have arrived or are lost.
func (g target) arrived() (got []string) {
	g.Helper()
	for _, addr := range []string{"10.0.1.5:9", "[fd00:0:0:1::5]:9"} {
		g.must(g.vpc.Do(func() error { return datagram("udp", addr, "sentinel") }))
	}
	for _, addr := range []string{"10.0.0.9:9", "[fd00::9]:9"} {
		g.must(g.node.Do(func() error { return datagram("udp", addr, "sentinel") }))
	}
	for _, c := range g.sockets {
		g.must(c.SetReadDeadline(time.Now().Add(time.Minute)))
		for {
			b := make([]byte, 2000)
			n, from, err := c.ReadFrom(b)
			g.must(err)
			if string(b[:n]) == "sentinel" {
				break
			}
			got = append(got, fmt.Sprintf("%.20s from %s", b[:n], from))
		}
	}
	return append(got, g.beliefs()...)
}

// beliefs returns the false routers and neighbours that the node has learned, and makes the node forget them.
func (g target) beliefs() (got []string) {
	addrs, err := g.node.Addrs("ens6")
	g.must(err)
	for _, a := range addrs {
		if claimed6.Contains(a.Prefix.Addr()) {
			got = append(got, "an address by a router advertisement")
		}
	}
	var known []byte
	g.must(g.node.Do(func() (err error) {
		known, err = exec.Command("sh", "-c", "ip neigh show dev ens6; "+forget).Output()
		return err
	}))
	if strings.Contains(string(known), falseMAC) || strings.Contains(string(known), "10.0.1.66 ") {
		got = append(got, "a neighbour")
	}
	return got
}

// forget makes the node forget what it has learned. The IPv6 router stays a neighbour, because the kernel believes
// claims only about known neighbours.
const forget = `ip -6 addr flush dev ens6 scope global dynamic; ip -6 route flush proto ra; ip neigh flush dev ens6 to 10.0.1.66
	ip neigh replace fd00:0:0:1::1 lladdr 0a:00:00:00:00:01 nud stale dev ens6`

func datagram(network, addr, text string) error {
	c, err := net.Dial(network, addr)
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = c.Write([]byte(text))
	return err
}

var claimed6 = netip.MustParsePrefix("fd66::/64")

// TestAdversaries makes each adversary try each attempt, in both families. With the guard (nl.Guard), no attempt
// succeeds. Without the guard, attempts of adversaries with a packet socket succeed, which proves that the test can
// fail. docs/security.md has the counts.
func TestAdversaries(t *testing.T) {
	nltest.Need(t, "root", "ipvlan", "nftables")
	var counts nltest.Matrix
	for _, a := range adversaries() {
		t.Run(a.name, func(t *testing.T) {
			g := newTarget(t)
			c := g.capture(a)
			r := request(t, `{}`, [][2]string{{"10.0.1.20/24", "10.0.1.1"}, {"fd00:0:0:1::20/64", "fd00:0:0:1::1"}},
				[][2]string{{"10.0.0.0/16", "10.0.1.1"}})
			r.NetNS = c.path
			_, err := g.ADD(r)
			g.must(err)
			g.arrived()
			for _, try := range attempts {
				made, succeeded := g.try(c, try)
				counts.Set(try.name, a.name, fmt.Sprintf("%d of %d", succeeded, made))
				if succeeded > 0 {
					t.Errorf("%s: %d of %d have succeeded, want none", try.name, succeeded, made)
				}
			}
			nltest.Shell(t, g.node, "nft flush ruleset")
			for _, try := range attempts {
				if _, succeeded := g.try(c, try); succeeded == 0 && a.packet && (a.admin || !try.admin) &&
					!g.lacks(try) {
					t.Errorf("without the guard, %q has not succeeded: it proves nothing", try.name)
				}
			}
		})
	}
	if !t.Failed() && counts.Columns() == len(adversaries()) {
		nltest.Section(t, "../../docs/security.md", "go test ./plugin/ipvlan -run TestAdversaries -update",
			counts.Markdown("the pod"), *update)
	}
}

// try makes an attempt in both families. It returns how many attempts were made, and how many succeeded.
func (g target) try(c captive, try attempt) (made, succeeded int) {
	g.Helper()
	for _, family := range []string{"IPv4", "IPv6"} {
		answer := c.tell(try.name, family)
		got := g.arrived()
		if answer == "<nil>" && (!c.packet || try.admin && !c.admin) {
			g.Errorf("%s by %s: a program without the capability could make it", try.name, family)
		}
		lacks := strings.Contains(answer, "Unknown device type") // the kernel has no ifb
		if answer != "<nil>" && !lacks && c.packet && (c.admin || !try.admin) {
			g.Errorf("%s by %s: it could not be made: %s", try.name, family, answer)
		}
		made++
		if len(got) > 0 {
			succeeded++
			g.Logf("%s by %s: %s", try.name, family, got)
		}
	}
	return made, succeeded
}

// lacks reports whether the kernel cannot make the link that an attempt needs.
func (g target) lacks(try attempt) bool {
	err := g.node.Do(func() error {
		return exec.Command("sh", "-c", "ip link add ifbprobe type ifb && ip link del ifbprobe").Run()
	})
	return try.admin && err != nil
}
