// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package e2e

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/judge"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/paths"
)

// A mesh has a proxy in each pod. Rules in the pod redirect the pod's TCP connections to the proxy.
type mesh struct {
	name    string
	version func(t *testing.T) string
	rules   string   // the command that loads the rules
	out, in uint16   // the proxy's ports for connections that leave the pod, and for those that arrive
	user    uintptr  // the user ID of the proxy: the rules do not redirect its connections
	chains  []string // the chains that redirect
}

var meshes = []mesh{
	{"istio-cni", istioVersion, "iptables-restore --noflush <" + judges + "/istio.rules", 15001, 15006, 1337,
		[]string{"ISTIO_IN_REDIRECT", "ISTIO_REDIRECT"}},
	{"linkerd-cni", linkerdVersion, "sh -e " + linkerdRules, 4140, 4143, 2102,
		[]string{"PROXY_INIT_REDIRECT", "PROXY_INIT_OUTPUT"}},
}

// TestJudgeMesh: the rules of a mesh redirect TCP connections to a proxy: those that leave a pod, and those that reach
// it. Each path must still work, also the paths to Services and to the internet. The receiver must see the same address
// as without a mesh.
func TestJudgeMesh(t *testing.T) {
	nltest.Need(t, "root", "nftables", "iptables")
	for _, m := range meshes {
		for path, mode := range map[string]mode{"ipvlan": loops[0], byPair: loops[len(loops)-1]} {
			t.Run(m.name+"/"+path, func(t *testing.T) {
				mode.need(t)
				judge.Attr(t, "rules of `"+m.name+"` for a sidecar", m.version(t),
					"`dataPath` `"+path+"`, all paths in IPv4")
				m.test(t, mode)
			})
		}
	}
}

func (m mesh) test(t *testing.T, mode mode) {
	s := mode.serviceScene(t)
	serve(t, s, proxiesOf(1)[0])
	for _, p := range slices.Concat(s.Nodes[0].Pods, s.Nodes[1].Pods) {
		m.sidecar(t, p)
	}
	tryMeshed(t, s)
	for _, n := range s.Nodes {
		for _, p := range n.Pods {
			if err := n.Check(t.Context(), p); err != nil {
				t.Error(err)
			}
		}
	}
	m.redirected(t, s.Nodes[0].Pods[0])
}

func istioVersion(t *testing.T) string {
	t.Helper()
	m := regexp.MustCompile(`(?m)^require (\S+ \S+)$`).FindSubmatch(must(os.ReadFile("sim/judges/istio/go.mod")))
	if m == nil {
		t.Fatal("sim/judges/istio/go.mod requires nothing")
	}
	return string(m[1])
}

// linkerdRules is a script with Linkerd's rules. The Go module proxy does not serve the module of Linkerd's own
// program.
const linkerdRules = "e2e/testdata/linkerd.sh"

// linkerdVersion returns the version that the script linkerdRules names.
func linkerdVersion(t *testing.T) string {
	t.Helper()
	m := regexp.MustCompile(`linkerd-cni (v\S+)`).FindSubmatch(must(os.ReadFile(linkerdRules)))
	if m == nil {
		t.Fatalf("%s names no version", linkerdRules)
	}
	return "linkerd/linkerd2-proxy-init cni-plugin/" + string(m[1])
}

func tryMeshed(t *testing.T, s *paths.Scene) {
	t.Helper()
	for _, p := range slices.Concat(paths.Daily, paths.Further) {
		if p.In(paths.IPv4) {
			tryPath(t, s, p, paths.Quick)
		}
	}
	for _, svc := range paths.Services {
		// Omit Services without backends: the proxy accepts the application's connection before it can know that there
		// is no backend.
		if svc.In(paths.IPv4) && !strings.Contains(svc.Name, "without backends") {
			tryPath(t, s, svc.Path, svc.Probes)
		}
	}
}

func tryPath(t *testing.T, s *paths.Scene, p paths.Path, probes []paths.Probe) {
	t.Helper()
	t.Run(p.Name, func(t *testing.T) {
		if r := p.Try(s, paths.IPv4, probes); r.Err != nil {
			t.Error(r.Err)
		}
	})
}

// sidecar starts the proxy of a pod, and loads the rules of the mesh. The proxy answers connections that reach the pod,
// and relays connections that leave the pod.
func (m mesh) sidecar(t *testing.T, p *paths.Pod) {
	t.Helper()
	if err := p.Answer(m.in); err != nil {
		t.Fatal(err)
	}
	var l net.Listener
	err := p.Do(func() (err error) { l, err = net.Listen("tcp4", fmt.Sprint(":", m.out)); return err })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for c, err := l.Accept(); err == nil; c, err = l.Accept() {
			go m.relay(p.Path, c.(*net.TCPConn))
		}
	}()
	nltest.Shell(t, p.NS, m.rules)
}

// relay connects to the original destination of a redirected connection, and copies the data in both directions.
func (m mesh) relay(path string, c *net.TCPConn) {
	defer c.Close()
	ns, err := nl.Open("pod", path)
	if err != nil {
		return
	}
	defer ns.Close()
	var out net.Conn
	if err := ns.Do(func() (err error) {
		// A socket belongs to the user of the thread that makes it.
		setUser(m.user)
		defer setUser(0)
		out, err = net.Dial("tcp4", original(c).String())
		return err
	}); err != nil {
		return
	}
	defer out.Close()
	go func() {
		_, _ = io.Copy(out, c)
		_ = out.(*net.TCPConn).CloseWrite()
	}()
	_, _ = io.Copy(c, out)
}

func setUser(id uintptr) { _, _, _ = syscall.RawSyscall(syscall.SYS_SETFSUID, id, 0, 0) }

// original returns the original destination of a redirected connection.
func original(c *net.TCPConn) (to netip.AddrPort) {
	const option = 80 // SO_ORIGINAL_DST of linux/netfilter_ipv4.h
	raw, err := c.SyscallConn()
	if err != nil {
		return to
	}
	_ = raw.Control(func(fd uintptr) {
		// The option fills a sockaddr_in, which begins with the port and the address. IPv6Mreq is a buffer of the same
		// length.
		m, err := unix.GetsockoptIPv6Mreq(int(fd), unix.SOL_IP, option)
		if err == nil {
			a := m.Multiaddr
			to = netip.AddrPortFrom(netip.AddrFrom4([4]byte(a[4:8])), binary.BigEndian.Uint16(a[2:4]))
		}
	})
	return to
}

// redirected checks that the rules have redirected connections of the pod, in both directions.
func (m mesh) redirected(t *testing.T, p *paths.Pod) {
	t.Helper()
	rules := nltest.Shell(t, p.NS, "iptables -w -t nat -v -S")
	for _, chain := range m.chains {
		if !regexp.MustCompile(`-A ` + chain + ` .*-c [1-9].* -j REDIRECT`).MatchString(rules) {
			t.Errorf("%s: no connection has met %s:\n%s", p.Name, chain, rules)
		}
	}
}
