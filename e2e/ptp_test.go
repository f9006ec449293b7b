// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package e2e

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin/egress"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/conf"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/repair"
)

// TestEgressBehindPTP chains the egress plugin after upstream's ptp. The pods have addresses of an IPAM plugin that is
// not ours. A client must reach a partner through a router. Then the destinations change, and open connections must
// behave as docs/egress.md says.
func TestEgressBehindPTP(t *testing.T) {
	nltest.Need(t, "root", "nftables", "fou")
	w := newPTP(t)
	w.configure("203.0.113.0/24")
	router, client := w.add("egress", "router"), w.add("shop", "client")
	w.proxy(router.addr)
	if s, err := egress.Read(client.ns); err != nil || s.Role != egress.Client {
		t.Errorf("the client is %+v; %v", s, err)
	}
	w.do("CHECK", client)
	w.do("CHECK", router)
	w.do("STATUS", client)

	near, far := "203.0.113.9:80", "198.51.100.9:80"
	by := w.dial(client, "tcp", near)
	direct, datagrams := w.dial(client, "tcp", far), w.dial(client, "udp", far)
	by.sees("the partner", router)
	direct.sees("a host that is no destination", client)
	datagrams.sees("a host that is no destination", client)
	if did := w.repair(); len(did) > 0 {
		t.Errorf("without a change, repair did %v", did)
	}

	w.configure("203.0.113.0/24", "198.51.100.0/24")
	if d := cmp.Diff([]string{"egress of egress/router", "egress of shop/client"}, w.repair()); d != "" {
		t.Errorf("repair: -want +got\n%s", d)
	}
	by.sees("the partner, by an open connection", router)
	direct.sees("a new destination, by an open connection", client)
	datagrams.sees("a new destination, by datagrams", router)
	w.dial(client, "tcp", far).sees("a new destination", router)
	w.do("CHECK", client)
	w.do("CHECK", router)

	w.configure("198.51.100.0/24")
	w.repair()
	if seen, err := by.ask(); !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
		t.Errorf("a connection to what is no destination any more sees %v, %v: want a reset", seen, err)
	}
	w.dial(client, "tcp", near).sees("what is no destination any more", client)
	direct.sees("a destination, by an open connection", client)
	w.dial(client, "tcp", far).sees("a destination", router)
	w.do("CHECK", client)
	if did := w.repair(); len(did) > 0 {
		t.Errorf("the second repair did %v", did)
	}

	w.ends(client, "DEL")
	w.ends(w.add("shop", "second"), "GC")
	w.ends(router, "DEL")
}

// A ptpWorld has a node whose pods are connected by upstream's ptp, and a partner in a network beyond the node.
type ptpWorld struct {
	*testing.T
	node, partner *nl.NS
	dir, config   string
	cni           *libcni.CNIConfig
	list          *libcni.NetworkConfigList
}

func newPTP(t *testing.T) *ptpWorld {
	t.Helper()
	bin, err := filepath.Abs("bin")
	if err == nil {
		_, err = os.Stat(filepath.Join(bin, conf.TypeEgress))
	}
	foreign, unknown := filepath.Abs(peers)
	if err = errors.Join(err, unknown); err == nil {
		_, err = os.Stat(filepath.Join(foreign, "ptp"))
	}
	if err != nil {
		t.Fatalf("%v: run make build and make %s/ptp", err, peers)
	}
	w := &ptpWorld{T: t, dir: t.TempDir()}
	w.config = filepath.Join(w.dir, "10.conflist")
	w.cni = libcni.NewCNIConfigWithCacheDir([]string{bin, foreign}, w.dir, nil)
	were := lease.KeptIn
	lease.KeptIn = []string{filepath.Join(w.dir, "results")}
	t.Cleanup(func() { lease.KeptIn = were })
	t.Setenv("CNI_IPVLAN_VPC_STATE_DIR", filepath.Join(w.dir, "state"))
	w.node, _ = nltest.NS(t, "node")
	w.partner, _ = nltest.NS(t, "partner")
	p, a := netip.MustParsePrefix, netip.MustParseAddr
	w.must(nl.Wiring{
		{NS: w.node, Object: nl.Veth{Name: "world", Peer: "eth0", PeerNS: w.partner}},
		{NS: w.node, Object: nl.Addr{Prefix: p("203.0.113.1/24"), Dev: "world"}},
		{NS: w.partner, Object: nl.Addr{Prefix: p("203.0.113.9/24"), Dev: "eth0"}},
		{NS: w.partner, Object: nl.Addr{Prefix: p("198.51.100.9/32"), Dev: "eth0"}},
		{NS: w.partner, Object: nl.Route{Dst: nl.IPv4.Everywhere(), Via: a("203.0.113.1"), Dev: "eth0"}},
		{NS: w.node, Object: nl.Route{Dst: p("198.51.100.0/24"), Via: a("203.0.113.9"), Dev: "world"}},
	}.Add())
	w.must(w.partner.Do(w.serve))
	return w
}

func (w *ptpWorld) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// serve starts the partner's servers. They answer each byte with the address of the caller.
func (w *ptpWorld) serve() error {
	l, err := net.Listen("tcp4", ":80")
	if err != nil {
		return err
	}
	w.Cleanup(func() { _ = l.Close() }) // the listener's own goroutine ends with it
	u, err := net.ListenPacket("udp4", "198.51.100.9:80")
	if err != nil {
		return err
	}
	w.Cleanup(func() { _ = u.Close() })
	go func() {
		for c, err := l.Accept(); err == nil; c, err = l.Accept() {
			go answer(c)
		}
	}()
	go func() {
		b := make([]byte, 1)
		for _, from, err := u.ReadFrom(b); err == nil; _, from, err = u.ReadFrom(b) {
			_, _ = fmt.Fprintf(to{u, from}, "%s\n", from) // without the answer, the caller fails
		}
	}()
	return nil
}

type to struct {
	net.PacketConn
	addr net.Addr
}

func (t to) Write(b []byte) (int, error) { return t.WriteTo(b, t.addr) }

func answer(c net.Conn) {
	defer c.Close()
	for b := make([]byte, 1); ; {
		if _, err := io.ReadFull(c, b); err != nil {
			return
		}
		if _, err := fmt.Fprintln(c, c.RemoteAddr()); err != nil {
			return
		}
	}
}

func (w *ptpWorld) configure(destinations ...string) {
	w.Helper()
	text := fmt.Sprintf(`{"cniVersion": "1.1.0", "name": "pods", "plugins": [
		{"type": "ptp", "ipam": {"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": "10.1.2.0/24"}]],
			"routes": [{"dst": "0.0.0.0/0"}]}},
		{"type": %q, "egress": {"partner": {"gateways": ["172.20.0.77"], "destinations": ["%s"], "namespaces": ["shop"],
			"routers": ["egress"]}}}]}`,
		filepath.Join(w.dir, "local"), conf.TypeEgress, strings.Join(destinations, `", "`))
	w.must(os.WriteFile(w.config, []byte(text), 0o600))
	var err error
	w.list, err = libcni.ConfListFromFile(w.config)
	w.must(err)
}

type ptpPod struct {
	rt   *libcni.RuntimeConf
	ns   *nl.NS
	addr netip.Addr
}

func (w *ptpWorld) add(namespace, name string) ptpPod {
	w.Helper()
	var p ptpPod
	var path string
	p.ns, path = nltest.NS(w.T, name)
	p.rt = &libcni.RuntimeConf{ContainerID: "id-" + name, NetNS: path, IfName: "eth0",
		Args: [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", namespace}, {"K8S_POD_NAME", name}}}
	var result types.Result
	w.must(w.node.Do(func() (err error) { result, err = w.cni.AddNetworkList(w.Context(), w.list, p.rt); return err }))
	r, err := types100.NewResultFromResult(result)
	w.must(err)
	p.addr, _ = netip.AddrFromSlice(r.IPs[0].Address.IP.To4())
	return p
}

func (w *ptpWorld) do(verb string, p ptpPod) {
	w.Helper()
	w.must(w.node.Do(func() error {
		switch verb {
		case "DEL":
			return w.cni.DelNetworkList(w.Context(), w.list, p.rt)
		case "CHECK":
			return w.cni.CheckNetworkList(w.Context(), w.list, p.rt)
		case "GC": // only the router's attachment is valid
			return w.cni.GCNetworkList(w.Context(), w.list, &libcni.GCArgs{ValidAttachments: []types.GCAttachment{
				{ContainerID: "id-router", IfName: "eth0"}}})
		}
		return w.cni.GetStatusNetworkList(w.Context(), w.list)
	}))
}

// ends runs a verb that ends a pod, and checks that nothing of the pod remains.
func (w *ptpWorld) ends(p ptpPod, verb string) {
	w.Helper()
	w.do(verb, p)
	if s, err := egress.Read(p.ns); err == nil {
		w.Errorf("after %s, the pod is %+v", verb, s)
	}
	links, err := p.ns.Links()
	w.must(err)
	if slices.ContainsFunc(links, func(l nl.Link) bool { return l.Name == "eth0" || l.Name == egress.Link4 }) {
		w.Errorf("after %s, the pod has the links %v", verb, links)
	}
	if _, err := os.Stat(filepath.Join(w.dir, "local", "pods", p.addr.String())); err == nil {
		w.Errorf("after %s, %s is not free", verb, p.addr)
	}
}

// proxy makes the node forward packets for the Service's address to the router, as kube-proxy does.
func (w *ptpWorld) proxy(router netip.Addr) {
	w.Helper()
	w.must(nl.Wiring{{NS: w.node, Object: nl.Table{Family: "ip", Name: "services", Chains: []nl.Chain{
		{Name: "services", Type: "nat", Hook: "prerouting", Priority: -100, Rules: []nl.NFRule{
			{nl.DAddr(netip.MustParsePrefix("172.20.0.77/32")), nl.DPort("udp", egress.DefaultPort, egress.DefaultPort),
				nl.DNAT(netip.AddrPortFrom(router, egress.DefaultPort))}}}}}}}.Add())
}

// repair runs cni-tool repair, and returns the changes that it reports.
func (w *ptpWorld) repair() (did []string) {
	w.Helper()
	w.must(w.node.Do(func() (err error) { did, err = repair.Node(w.Context(), conf.Load(w.config)); return err }))
	return did
}

type ptpCall struct {
	*ptpWorld
	net.Conn
	answers *bufio.Reader
}

func (w *ptpWorld) dial(p ptpPod, network, to string) ptpCall {
	w.Helper()
	var c net.Conn
	w.must(p.ns.Do(func() (err error) { c, err = net.DialTimeout(network, to, 5*time.Second); return err }))
	w.Cleanup(func() { _ = c.Close() }) // the connection may be reset
	return ptpCall{w, c, bufio.NewReader(c)}
}

func (c ptpCall) ask() (seen netip.Addr, err error) {
	if err := c.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return seen, err
	}
	if _, err := c.Write([]byte{0}); err != nil {
		return seen, err
	}
	line, err := c.answers.ReadString('\n')
	if err != nil {
		return seen, err
	}
	from, err := netip.ParseAddrPort(strings.TrimSpace(line))
	return from.Addr(), err
}

func (c ptpCall) sees(who string, want ptpPod) {
	c.Helper()
	if seen, err := c.ask(); err != nil || seen != want.addr {
		c.Errorf("%s sees %v, want %s; %v", who, seen, want.addr, err)
	}
}
