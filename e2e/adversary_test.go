// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package e2e

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
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
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin/egress"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/paths"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/vpcsim"
)

// A shot is a datagram that a program in a pod sends to a namespace of the test.
type shot struct {
	Dev string // the link to which the socket is bound; "": the socket is not bound
	// the source address of a header that the program makes with CAP_NET_RAW; invalid: the kernel makes the header
	From    netip.Addr
	To      netip.AddrPort
	Payload []byte
	Bare    bool // Payload is a whole packet: it follows the header of From without a UDP header
}

var update = flag.Bool("update", false, "write the tables of docs")

// shooterEnv is an environment variable. If it is set, the test binary is the program in a pod: it reads shots, one in
// each line, fires each, and prints the error.
const shooterEnv = "VPC_SHOOTER"

func init() {
	if os.Getenv(shooterEnv) == "" {
		return
	}
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		var s shot
		err := json.Unmarshal(lines.Bytes(), &s)
		if err == nil {
			err = s.fire()
		}
		fmt.Println(strings.ReplaceAll(fmt.Sprint(err), "\n", " "))
	}
	os.Exit(0)
}

func (s shot) fire() error {
	family, to := unix.AF_INET, unix.Sockaddr(&unix.SockaddrInet4{Port: int(s.To.Port()),
		Addr: [4]byte(s.To.Addr().AsSlice()[:4])})
	if s.To.Addr().Is6() {
		family, to = unix.AF_INET6, &unix.SockaddrInet6{Port: int(s.To.Port()), Addr: s.To.Addr().As16()}
	}
	typ, protocol, b := unix.SOCK_DGRAM, 0, s.Payload
	if s.From.IsValid() {
		typ, protocol, b = unix.SOCK_RAW, unix.IPPROTO_RAW, datagram(s.From, s.To, s.Payload)
		if s.Bare {
			b = packet(s.From, s.To.Addr(), inIP[s.From.Is4()], s.Payload)
		}
		if family == unix.AF_INET6 {
			to = &unix.SockaddrInet6{Addr: s.To.Addr().As16()} // a raw socket has no port
		}
	}
	fd, err := unix.Socket(family, typ|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if s.Dev != "" {
		if err := unix.BindToDevice(fd, s.Dev); err != nil {
			return err
		}
	}
	return unix.Sendto(fd, b, 0, to)
}

// inIP is the protocol number of a packet inside a packet: key true for IPv4 (RFC 2003), false for IPv6 (RFC 2473).
var inIP = map[bool]byte{true: unix.IPPROTO_IPIP, false: unix.IPPROTO_IPV6}

// datagram is an IP packet with a UDP datagram.
func datagram(from netip.Addr, to netip.AddrPort, payload []byte) []byte {
	size := uint16(8 + len(payload))
	u := binary.BigEndian.AppendUint16([]byte{0x9c, 0x40}, to.Port()) // from port 40000
	u = append(binary.BigEndian.AppendUint16(u, size), 0, 0)          // RFC 768: no checksum
	u = append(u, payload...)
	if from.Is6() {
		pseudo := slices.Concat(from.AsSlice(), to.Addr().AsSlice(), []byte{0, unix.IPPROTO_UDP},
			binary.BigEndian.AppendUint16(nil, size), u)
		if len(pseudo)%2 == 1 {
			pseudo = append(pseudo, 0)
		}
		binary.BigEndian.PutUint16(u[6:], sum(pseudo))
	}
	return packet(from, to.Addr(), unix.IPPROTO_UDP, u)
}

func packet(from, to netip.Addr, protocol byte, payload []byte) []byte {
	size := uint16(len(payload))
	if from.Is6() {
		b := binary.BigEndian.AppendUint16([]byte{0x60, 0, 0, 0}, size)
		return slices.Concat(b, []byte{protocol, 64}, from.AsSlice(), to.AsSlice(), payload)
	}
	b := binary.BigEndian.AppendUint16([]byte{0x45, 0}, 20+size)
	b = append(b, 0, 0, 0, 0, 64, protocol, 0, 0)
	b = slices.Concat(b, from.AsSlice(), to.AsSlice())
	binary.BigEndian.PutUint16(b[10:], sum(b))
	return append(b, payload...)
}

// A way is an attempt of a pod to reach a forbidden target, or to send with the address of another pod or node.
type way struct {
	name  string
	raw   bool // the way needs CAP_NET_RAW
	veth  bool // a routed pod fires
	may   int  // in how many of the two families docs/security.md allows it to succeed
	shots func(*gallery, paths.Family) []shot
	guard string // the guard that stops the way, see lift; "": EC2 stops it, several guards do, or nothing does
	// seen reports whether a datagram that arrives from this address is a success; nil: every datagram is a success.
	seen func(r *gallery, f paths.Family, from netip.Addr) bool
}

// A gallery has a node with a pod that fires shots, and all targets of the shots.
type gallery struct {
	*egressScene
	boxes []box
	tries []*try
}

// A try is one attempt of a way by one program in one family. The number of the try is the payload of its shots,
// because a shot may arrive during a later try.
type try struct {
	way    way
	family paths.Family
	hits   []string
}

// A box records the datagrams that arrive at port 9 of a namespace, in both families.
type box struct {
	name  string
	conns map[paths.Family]*net.UDPConn
	addr  map[paths.Family]netip.Addr
}

// target returns the address and port 9 of the named box. No program answers at this port.
func (r *gallery) target(name string, f paths.Family) netip.AddrPort {
	i := slices.IndexFunc(r.boxes, func(b box) bool { return b.name == name })
	return netip.AddrPortFrom(r.boxes[i].addr[f], 9)
}

const (
	metadataBox, hostBox, nodeBox = "the metadata service", "a host", "the node"
	podBox, internetBox           = "a pod of another ENI", "the internet"
	siblingBox                    = "another pod of that ENI"
)

const nodePort = 30009

// byNodePort returns two shots at the node's nodePort through a link. The source of the first is the address of a pod
// of the node. The source of the second is the address of the host.
func (r *gallery) byNodePort(f paths.Family, dev string) []shot {
	all := append(r.by(nodeBox, f, r.client.Addr(f), dev), r.by(nodeBox, f, r.target(hostBox, f).Addr(), dev)...)
	for i := range all {
		all[i].To = netip.AddrPortFrom(r.node(f), nodePort)
	}
	return all
}

// by returns a shot at a box through each of the links in devs. The argument from is the source address of the shots.
func (r *gallery) by(box string, f paths.Family, from netip.Addr, devs ...string) (all []shot) {
	for _, dev := range devs {
		all = append(all, shot{Dev: dev, From: from, To: r.target(box, f)})
	}
	return all
}

// routed returns a shot at a box through an egress router. The shot's payload is the packet that a tunnel would carry.
func (r *gallery) routed(box string, f paths.Family, from netip.Addr) []shot {
	inside := datagram(from, r.target(box, f), r.mark())
	return []shot{{To: netip.AddrPortFrom(r.router.Addr(f), egress.DefaultPort), Payload: inside}}
}

// bare returns a shot at a box through an egress router. The shot is a packet inside a packet, without UDP between the
// two headers.
func (r *gallery) bare(box string, f paths.Family) []shot {
	s := r.routed(box, f, r.other.Addr(f))
	s[0].From, s[0].Bare = r.other.Addr(f), true
	return s
}

// mark returns the number of the newest try. This number is the payload of the try's shots.
func (r *gallery) mark() []byte { return fmt.Append(nil, "shot ", len(r.tries)-1) }

func (r *gallery) cousin() *paths.Pod  { return r.Nodes[0].Pods[3] }
func (r *gallery) sibling() *paths.Pod { return r.Nodes[0].Pods[4] }

func (r *gallery) node(f paths.Family) netip.Addr {
	if f == paths.IPv6 {
		return r.Nodes[0].Addr6()
	}
	return r.Nodes[0].Addr()
}

// Each guard has the name of the namespace in which it is.
const podGuard, nodeGuard, routerGuard = "the pod", "the node", "the router"

// lift removes the guard from its namespace.
func (r *gallery) lift(t *testing.T, guard string) {
	t.Helper()
	in, script := r.router.NS, "nft flush ruleset"
	switch guard {
	case podGuard:
		in = r.other.NS
		script = "ip route del prohibit 169.254.169.254; ip -6 route del prohibit fd00:ec2::254; tc qdisc del " +
			"dev eth0 clsact; tc qdisc del dev eth1 clsact"
	case nodeGuard:
		in = r.Nodes[0].NS
		script = "nft flush chain inet cni_ipvlan_vpc_k8s senders; nft flush chain inet " +
			"cni_ipvlan_vpc_k8s._routed.cni-ipvlan-vpc-k8s senders; for f in " +
			"/proc/sys/net/ipv4/conf/*/rp_filter; do echo 0 >$f; done"
	}
	if err := in.Do(func() error {
		out, err := exec.Command("sh", "-ec", script).CombinedOutput()
		if err != nil {
			t.Logf("%s", out)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

var ways = []way{
	{name: "reach the metadata service", guard: podGuard, shots: func(r *gallery, f paths.Family) []shot {
		return r.by(metadataBox, f, netip.Addr{}, "", "eth0", "eth1")
	}},
	{name: "reach the metadata service by a header of its own", raw: true, guard: podGuard,
		shots: func(r *gallery, f paths.Family) []shot {
			return r.by(metadataBox, f, r.other.Addr(f), "", "eth0", "eth1")
		}},
	{name: "send to the VPC by the veth, and not as itself", shots: func(r *gallery, f paths.Family) []shot {
		return r.by(hostBox, f, netip.Addr{}, "eth1")
	},
		seen: func(r *gallery, f paths.Family, from netip.Addr) bool { return from != r.other.Addr(f) }},
	{name: "send to the VPC as its node", raw: true, shots: func(r *gallery, f paths.Family) []shot {
		return r.by(hostBox, f, r.node(f), "eth0", "eth1")
	}},
	{name: "send to the VPC as a pod of another ENI", raw: true, shots: func(r *gallery, f paths.Family) []shot {
		return r.by(hostBox, f, r.cousin().Addr(f), "eth0", "eth1")
	}},
	{name: "send to the VPC as a pod of its own ENI", raw: true, may: 2,
		shots: func(r *gallery, f paths.Family) []shot {
			return r.by(hostBox, f, r.client.Addr(f), "eth0")
		}},
	{name: "send to a pod of its node by the veth, as another", raw: true,
		shots: func(r *gallery, f paths.Family) []shot {
			return append(r.by(podBox, f, r.client.Addr(f), "eth1"), r.by(podBox, f, r.node(f), "eth1")...)
		}},
	{name: "send to a pod of its node by a NodePort, as another", raw: true, guard: nodeGuard,
		shots: func(r *gallery, f paths.Family) []shot { return r.byNodePort(f, "eth1") }},
	{name: "if routed: send to a pod of its node by a NodePort, as another", raw: true, veth: true, guard: nodeGuard,
		shots: func(r *gallery, f paths.Family) []shot { return r.byNodePort(f, "eth0") }},
	{name: "send to its node by the veth, as another", raw: true, may: 1, guard: nodeGuard,
		shots: func(r *gallery, f paths.Family) []shot {
			return append(r.by(nodeBox, f, r.client.Addr(f), "eth1"), r.by(nodeBox, f, r.cousin().Addr(f), "eth1")...)
		}},
	{name: "send to the internet by the veth, as another", raw: true, guard: nodeGuard,
		shots: func(r *gallery, f paths.Family) []shot {
			return append(r.by(internetBox, f, r.cousin().Addr(f), "eth1"), r.by(internetBox, f, r.node(f), "eth1")...)
		}},
	{name: "reach the metadata service by an egress router", shots: func(r *gallery, f paths.Family) []shot {
		return r.routed(metadataBox, f, r.other.Addr(f))
	}},
	{name: "reach a node by an egress router", guard: routerGuard, shots: func(r *gallery, f paths.Family) []shot {
		return append(r.routed(nodeBox, f, r.other.Addr(f)), r.routed(hostBox, f, r.other.Addr(f))...)
	}},
	{name: "reach a pod by an egress router", guard: routerGuard, shots: func(r *gallery, f paths.Family) []shot {
		return r.routed(podBox, f, r.other.Addr(f))
	}},
	{name: "reach a pod by an egress router, without UDP", raw: true, guard: routerGuard,
		shots: func(r *gallery, f paths.Family) []shot {
			return r.bare(podBox, f)
		}},
	{name: "leave by an egress router, and not as a pod of it", shots: func(r *gallery, f paths.Family) []shot {
		outside := map[paths.Family]netip.Addr{paths.IPv4: netip.MustParseAddr("203.0.113.77"),
			paths.IPv6: netip.MustParseAddr("2600:1f00::77")}
		return r.routed(internetBox, f, outside[f])
	}},
	{name: "leave by an egress router, though it is no client", may: 2, shots: func(r *gallery, f paths.Family) []shot {
		return r.routed(internetBox, f, r.other.Addr(f))
	}},
	{name: "leave by an egress router as another pod", may: 2, shots: func(r *gallery, f paths.Family) []shot {
		return r.routed(internetBox, f, r.cousin().Addr(f))
	}},
}

// TestAdversaryWays makes programs in pods try each way in both families. The first program has only sockets, the
// second has each network capability, and the third is root in its own user namespace. The number of families in which
// a way succeeds must be the number in docs/security.md. After the removal of its guard, a way must succeed in at least
// one family. This proves that the test can fail.
func TestAdversaryWays(t *testing.T) {
	nltest.Need(t, "root", "ipvlan", "nftables", "fou", "fib")
	r := newRange(t)
	var counts nltest.Matrix
	for _, a := range shooters() {
		fire := r.shooters(t, a)
		var all [][]*try
		for _, w := range ways {
			all = append(all, r.try(t, a, w, fire[w.veth], w.wants(a)))
		}
		for i, tries := range all {
			succeeded, want := r.succeeded(t, tries), ways[i].wants(a)
			if succeeded != want {
				t.Errorf("%s: %s: %d of 2 have succeeded, want %d", a.name, ways[i].name, succeeded, want)
			}
			counts.Set(ways[i].name, a.name, fmt.Sprintf("%d of 2", succeeded))
		}
	}
	r.answers(t)
	mighty := shooters()[2]
	fire := r.shooters(t, mighty)
	for _, guard := range []string{podGuard, nodeGuard, routerGuard} {
		r.lift(t, guard)
		for _, w := range ways {
			if w.guard == guard { // after the removal of its guard, the way must succeed
				r.try(t, mighty, w, fire[w.veth], 1)
			}
		}
	}
	if !t.Failed() {
		nltest.Section(t, "docs/security.md", "go test ./e2e -run TestAdversaryWays -update",
			counts.Markdown("the pod"), *update)
	}
}

// answers makes a pod that is no client call the internet through a router. The pod's socket has the tunnel's port, and
// gets the answer. Then the pod calls with a client's address as the source. The client gets the answer to this call,
// and refuses it.
func (r *gallery) answers(t *testing.T) {
	t.Helper()
	far := map[paths.Family]netip.Addr{paths.IPv4: vpcsim.InternetAddr, paths.IPv6: vpcsim.InternetAddr6}
	// Packets of the tunnel have no UDP checksum. By default, an IPv6 socket does not accept such packets.
	without := func(_, _ string, c syscall.RawConn) (failed error) {
		err := c.Control(func(fd uintptr) {
			failed = unix.SetsockoptInt(int(fd), unix.SOL_UDP, unix.UDP_NO_CHECK6_RX, 1)
		})
		return errors.Join(failed, err)
	}
	var c net.PacketConn
	if err := r.other.Do(func() (err error) {
		c, err = (&net.ListenConfig{Control: without}).ListenPacket(t.Context(), "udp",
			fmt.Sprint(":", egress.DefaultPort))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, f := range dual.Families {
		call := func(from netip.Addr) {
			inside := datagram(from, netip.AddrPortFrom(far[f], paths.Port), []byte("call"))
			port := netip.AddrPortFrom(r.router.Addr(f), egress.DefaultPort)
			if _, err := c.WriteTo(inside, net.UDPAddrFromAddrPort(port)); err != nil {
				t.Fatal(err)
			}
		}
		call(r.other.Addr(f))
		b := make([]byte, 2000)
		err := c.SetReadDeadline(time.Now().Add(20 * time.Second))
		n, from, err2 := c.ReadFrom(b)
		answer := slices.Concat(far[f].AsSlice(), r.other.Addr(f).AsSlice())
		if err := errors.Join(err, err2); err != nil || !bytes.Contains(b[:n], answer) {
			t.Errorf("%v: no answer to the pod comes out of the tunnel: %x by %v; %v", f, b[:n], from, err)
		}
		before := r.state(t, r.client).Refused
		call(r.client.Addr(f))
		await(t, "a client refuses the answer to another pod", func() bool {
			return r.state(t, r.client).Refused > before
		})
	}
}

// try tries a way in both families, and waits until it has succeeded in at least must families.
func (r *gallery) try(t *testing.T, a shooterKind, w way, fire func(shot) string, must int) (tries []*try) {
	t.Helper()
	for _, f := range dual.Families {
		r.tries = append(r.tries, &try{way: w, family: f})
		failed := 0
		shots := w.shots(r, f)
		for _, s := range shots {
			if s.Payload == nil {
				s.Payload = r.mark()
			}
			if answer := fire(s); answer != "<nil>" {
				failed++
				t.Logf("%s: %s by %v: %s", a.name, w.name, f, answer)
			}
		}
		if w.raw && a.raw && w.guard != podGuard && failed == len(shots) {
			t.Errorf("%s: %s by %v: nothing could be sent", a.name, w.name, f)
		}
	}
	tries = r.tries[len(r.tries)-2:]
	await(t, a.name+": "+w.name, func() bool { return r.succeeded(t, tries) >= must })
	return tries
}

func (w way) wants(a shooterKind) int {
	if w.raw && !a.raw {
		return 0
	}
	return w.may
}

// succeeded returns how many of the tries have hit a box.
func (r *gallery) succeeded(t *testing.T, tries []*try) (n int) {
	t.Helper()
	for _, f := range dual.Families {
		r.gather(t, f)
	}
	for _, tried := range tries {
		if len(tried.hits) > 0 {
			n++
			t.Logf("%s by %v: %s", tried.way.name, tried.family, tried.hits)
		}
	}
	return n
}

// A shooterKind has the permissions of a program that fires shots.
type shooterKind struct {
	name string
	attr syscall.SysProcAttr
	raw  bool
}

func shooters() []shooterKind {
	unprivileged := &syscall.Credential{Uid: 65534, Gid: 65534}
	root := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 65534, Size: 1}}
	return []shooterKind{
		{"only sockets", syscall.SysProcAttr{Credential: unprivileged}, false},
		{"CAP_NET_RAW", syscall.SysProcAttr{Credential: unprivileged, AmbientCaps: []uintptr{unix.CAP_NET_RAW}}, true},
		{"CAP_NET_ADMIN too", syscall.SysProcAttr{Credential: unprivileged,
			AmbientCaps: []uintptr{unix.CAP_NET_RAW, unix.CAP_NET_ADMIN}}, true},
		{"own user namespace", syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: root,
			GidMappings: root,
			Credential:  &syscall.Credential{NoSetGroups: true}}, false},
	}
}

// shooters starts two programs. It returns functions that make them fire: false is the key of the one in a pod with a
// slave, and true of the one in a routed pod.
func (r *gallery) shooters(t *testing.T, a shooterKind) map[bool]func(shot) string {
	t.Helper()
	return map[bool]func(shot) string{false: r.shooter(t, a, r.other), true: r.shooter(t, a, r.cousin())}
}

// shooter starts a program in a pod. The function that it returns makes this program fire a shot.
func (r *gallery) shooter(t *testing.T, a shooterKind, p *paths.Pod) (fire func(shot) string) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env, cmd.SysProcAttr, cmd.Stderr = append(os.Environ(), shooterEnv+"=1"), &a.attr, os.Stderr
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err := errors.Join(err1, err2, p.Do(cmd.Start)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(in.Close(), cmd.Wait()); err != nil {
			t.Error(err)
		}
	})
	answers := bufio.NewReader(out)
	return func(s shot) string {
		text, err := json.Marshal(s)
		if err == nil {
			_, err = in.Write(append(text, '\n'))
		}
		answer, err2 := answers.ReadString('\n')
		if err := errors.Join(err, err2); err != nil && !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		return strings.TrimSpace(answer)
	}
}

// newRange starts the nodes of a gallery, and opens all boxes.
func newRange(t *testing.T) *gallery {
	t.Helper()
	r := &gallery{egressScene: newEgress(t, mode{"single process", func(ipam, ptp map[string]any) {
		withServices(ipam, ptp)
		routedCousins(ipam, ptp)
		clients := maps.Clone(wayOut["partner"].(map[string]any))
		clients["namespaces"] = []string{"payments"} // a routed pod cannot be a client
		ptp["egress"], ptp["blockInstanceMetadata"] = map[string]any{"partner": clients}, true
	}, dual})}
	vpc, err := nl.Open("vpc", strings.TrimSuffix(r.Internet.Path, "internet")+"vpc")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { vpc.Close() })
	// Without this route, the pod sends IPv6 packets by the veth only to hostCidrs. A process with CAP_NET_ADMIN in the
	// pod can add this route.
	anyway := nl.Route{Dst: netip.MustParsePrefix("::/0"), Via: r.node(paths.IPv6), Dev: "eth1", Metric: 5000}
	if err := (nl.Wiring{{NS: r.other.NS, Object: anyway}}).Add(); err != nil {
		t.Fatal(err)
	}
	addPod(t, r.Nodes[0], "cousins", "sibling")
	ports := nl.Chain{Name: "prerouting", Type: "nat", Hook: "prerouting", Priority: -100}
	for _, f := range dual.Families {
		node := r.node(f)
		ports.Rules = append(ports.Rules, nl.NFRule{nl.DAddr(netip.PrefixFrom(node, node.BitLen())),
			nl.DPort("udp", nodePort, nodePort), nl.DNAT(netip.AddrPortFrom(r.sibling().Addr(f), 9))})
	}
	if err := (nl.Table{Family: "inet", Name: "ports", Chains: []nl.Chain{ports}}).Add(r.Nodes[0].NS); err != nil {
		t.Fatal(err)
	}
	metadata6 := netip.MustParsePrefix("fd00:ec2::254/128")
	if err := (nl.Addr{Prefix: metadata6, Dev: "lo", NoDAD: true}).Add(vpc); err != nil {
		t.Fatal(err)
	}
	far := r.Nodes[1]
	for _, p := range []struct {
		name   string
		ns     *nl.NS
		v4, v6 netip.Addr
	}{
		{metadataBox, vpc, netip.MustParseAddr("169.254.169.254"), metadata6.Addr()},
		{hostBox, far.NS, far.Addr(), far.Addr6()},
		{nodeBox, r.Nodes[0].NS, r.node(paths.IPv4), r.node(paths.IPv6)},
		{podBox, r.cousin().NS, r.cousin().Addr(paths.IPv4), r.cousin().Addr(paths.IPv6)},
		{siblingBox, r.sibling().NS, r.sibling().Addr(paths.IPv4), r.sibling().Addr(paths.IPv6)},
		{internetBox, r.Internet.NS, vpcsim.InternetAddr, vpcsim.InternetAddr6},
	} {
		b := box{p.name, map[paths.Family]*net.UDPConn{}, map[paths.Family]netip.Addr{paths.IPv4: p.v4,
			paths.IPv6: p.v6}}
		for f, network := range map[paths.Family]string{paths.IPv4: "udp4", paths.IPv6: "udp6"} {
			if err := p.ns.Do(func() (err error) {
				b.conns[f], err = net.ListenUDP(network, &net.UDPAddr{Port: 9})
				return err
			}); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { b.conns[f].Close() })
		}
		r.boxes = append(r.boxes, b)
	}
	return r
}

// gather makes the node send a datagram to each box, and reads the datagrams that have arrived before it.
func (r *gallery) gather(t *testing.T, f paths.Family) {
	t.Helper()
	for _, b := range r.boxes {
		err := r.Nodes[0].Do(func() error {
			c, err := net.Dial("udp", netip.AddrPortFrom(b.addr[f], 9).String())
			if err != nil {
				return err
			}
			defer c.Close()
			_, err = c.Write([]byte("sentinel"))
			return err
		})
		if err != nil {
			t.Fatalf("%s: %v", b.name, err)
		}
		text := make([]byte, 2000)
		for n := 0; string(text[:n]) != "sentinel"; {
			var from netip.AddrPort
			b.conns[f].SetReadDeadline(time.Now().Add(time.Minute))
			if n, from, err = b.conns[f].ReadFromUDPAddrPort(text); err != nil {
				t.Fatalf("%s by %v: %v", b.name, f, err)
			}
			var number int
			if _, err := fmt.Sscanf(string(text[:n]), "shot %d", &number); err != nil {
				continue
			}
			tried, sender := r.tries[number], from.Addr().Unmap()
			if tried.way.seen == nil || tried.way.seen(r, f, sender) {
				tried.hits = append(tried.hits, b.name+" from "+sender.String())
			}
		}
	}
}
