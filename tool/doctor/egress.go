// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/ask"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin/egress"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/conf"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/repair"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/view"
)

// checkEgress looks for reasons why clients do not reach their routers, or routers do not reach the destinations.
func (p *Node) checkEgress(ctx context.Context) ([]Finding, error) {
	networks, _ := p.conflists.Egress() // checkConfig reports mistakes in networks
	if len(networks) == 0 {
		return nil, nil
	}
	found := egressKernel(networks)
	if slices.ContainsFunc(found, func(f Finding) bool { return f.Severity == severe }) {
		return found, nil
	}
	ports := map[string]int{} // by network
	for _, n := range networks {
		ports[n.List.Name] = n.UDPPort()
		for _, name := range slices.Sorted(maps.Keys(n.Egresses)) {
			found = append(found, refusingGateways(ctx, name, n.Egresses[name], n.UDPPort())...)
		}
	}
	outdated, err := egressOutdated(networks)
	if err != nil {
		return found, err
	}
	lost, unread := p.egressLost(ports, outdated)
	more, err := p.egressPods(ctx, ports)
	return slices.Concat(found, lost, outdatedFindings(outdated), more), errors.Join(unread, err)
}

// egressOutdated returns the pods whose egress differs from the configuration. The keys are the paths of the pods'
// namespaces.
func egressOutdated(networks []conf.NetworkEgress) (map[string]repair.Outdated, error) {
	host, err := nl.Node()
	if err != nil {
		return nil, err
	}
	defer host.Close()
	all := map[string]repair.Outdated{}
	for _, n := range networks {
		for _, o := range repair.OutdatedBy(host, n) {
			all[o.NetNS] = o
		}
	}
	return all, nil
}

// outdatedFindings returns findings about pods whose egress is complete, but does not follow the present configuration.
func outdatedFindings(outdated map[string]repair.Outdated) (found []Finding) {
	for _, path := range slices.Sorted(maps.Keys(outdated)) {
		o := outdated[path]
		f := Finding{Severity: warning, About: "pod " + o.Owner(),
			Means: "the pod's egress does not follow the present configuration: " + o.String(),
			Do:    "after " + cli.Name + " repair has run on the routers' nodes, run " + cli.Name + " repair here"}
		if o.Err != nil {
			f.Do = "delete the pod: the next pod gets the egress of the configuration"
		} else {
			f.fix = egressFix(o)
		}
		found = append(found, f)
	}
	return found
}

// egressFix returns the fix that changes the egress of a pod to the present configuration.
func egressFix(o repair.Outdated) func(context.Context) (string, error) {
	return func(context.Context) (string, error) {
		host, err := nl.Node()
		if err != nil {
			return "", err
		}
		defer host.Close()
		return o.Renew(host)
	}
}

// egressLost returns a finding for each pod whose egress has lost an object. If repair can put the object back, the
// finding has a fix, and egressLost deletes the pod from the map "outdated". So doctor reports the pod only once. The
// argument ports has the UDP port of each network.
func (p *Node) egressLost(ports map[string]int, outdated map[string]repair.Outdated) (found []Finding, failed error) {
	seen := map[registry.Key]bool{} // a pod has a lease for each address
	for _, l := range p.state.Leases.All() {
		if _, is := ports[l.Network]; !is || l.NIC > 0 || l.NetNS == "" || seen[l.Key] {
			continue
		}
		seen[l.Key] = true
		ns, err := nl.Open(l.NetNS, l.NetNS)
		if err == nil {
			err = errors.Join(egress.Lost(ns, l.IfName), ns.Close())
		}
		switch {
		case errors.Is(err, egress.ErrLost):
			f := lostEgress(view.Owner(l), err)
			if o, is := outdated[l.NetNS]; is && o.Err == nil {
				f.Do = "run " + cli.Name + " repair. Then look for the program that removed the object"
				f.fix, f.partly = egressFix(o), true
				delete(outdated, l.NetNS)
			}
			found = append(found, f)
		case err != nil && !errors.Is(err, fs.ErrNotExist): // ErrNotExist: the pod has ended, or has no egress
			failed = errors.Join(failed, err)
		}
	}
	return found, failed
}

// lostEgress returns the finding about a pod whose egress has lost an object.
func lostEgress(pod string, err error) Finding {
	return Finding{Severity: severe, About: "pod " + pod, Means: err.Error(),
		Do: "delete the pod: the next pod gets a complete egress. Then look for the program that removed the object. " +
			"Doctor also reports a pod that an earlier release has made, because such a pod has fewer objects"}
}

// egressKernel tries whether the kernel makes tunnels in the families of the gateways. It returns a finding for each
// family without tunnels. A tunnel needs kernel modules. In a unit of systemd, for example, doctor is not permitted to
// load them. The finding is then only a note, because the runtime may have the permission.
func egressKernel(networks []conf.NetworkEgress) (found []Finding) {
	for _, f := range nl.Families {
		if !slices.ContainsFunc(networks, func(n conf.NetworkEgress) bool {
			return slices.ContainsFunc(slices.Collect(maps.Values(n.Egresses)),
				func(e egress.Egress) bool { return e.Has(f) })
		}) {
			continue
		}
		err := nl.Scratch(func(n *nl.NS) error { return egress.Supported(n, f) })
		a := Finding{Severity: severe, About: fmt.Sprintf("tunnels of %v", f),
			Do: plugin.ModulesHint + ". Tunnels need the modules fou and ipip, for IPv6 also fou6 and ip6_tunnel"}
		switch {
		case errors.Is(err, nl.ErrMayNotLoad):
			a.Severity, a.Means = note, "doctor does not know whether pods that use an egress can start: "+err.Error()
			a.Do = "run " + cli.Name + " doctor --check egress in a shell of root. Or " + a.Do
		case err != nil:
			a.Means = "pods that use an egress cannot start: " + err.Error()
		default:
			continue
		}
		found = append(found, a)
	}
	return found
}

// refusingGateways sends a datagram to each gateway of an egress. It returns a finding for each gateway that refuses
// the datagram. If a gateway's Service has no endpoint, kube-proxy's rules refuse the datagram at once. A router does
// not answer, because the datagram contains no packet to forward.
func refusingGateways(ctx context.Context, name string, e egress.Egress, port int) (found []Finding) {
	for _, gw := range e.Gateways {
		err := exchangeDatagram(ctx, net.Dialer{}, net.JoinHostPort(gw, fmt.Sprint(port)), 500*time.Millisecond)
		if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.EPERM) {
			found = append(found, Finding{Severity: severe, About: fmt.Sprintf("egress %s, gateway %s", name, gw),
				Means: fmt.Sprintf("the gateway refuses UDP port %d. Its Service has no endpoint, or a pod behind "+
					"the Service is no router, or this node's firewall forbids the packet", port),
				Do: "look at the endpoints of the Service (kubectl get endpointslices -A), and start the routers " +
					"again. The Service's port and targetPort must be egressPort, and this node's firewall must " +
					"allow this port"})
		}
	}
	return found
}

// exchangeDatagram sends a datagram, and waits for an answer. A refusal, or no answer within the timeout, is an error.
func exchangeDatagram(ctx context.Context, d net.Dialer, to string, timeout time.Duration) error {
	c, err := d.DialContext(ctx, "udp", to)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(timeout)); err != nil {
		return err
	}
	if _, err := c.Write([]byte{0}); err != nil {
		return err
	}
	_, err = c.Read(make([]byte, 1))
	return err
}

// egressPods checks that a router answers each client of this node at each gateway, and that destinations answer this
// node's routers.
func (p *Node) egressPods(ctx context.Context, ports map[string]int) (found []Finding, err error) {
	pods, err := view.EgressPods(p.state)
	for _, pod := range pods {
		if f, lost := silentRouter(pod); lost {
			found = append(found, f)
		}
	}
	silent := 0 // gateways without an answer; doctor waits some seconds for each gateway
	err = errors.Join(err, lease.EachNetNS(func(ns *nl.NS) error {
		s, unread := egress.Read(ns)
		if unread != nil || s.Role != egress.Client {
			return nil // view.EgressPods has reported what could not be read
		}
		l, leased := p.state.Leases.At(s.Addrs[0])
		if !leased || silent >= enoughUnanswered {
			return nil // the client's address has no lease, or there are enough findings
		}
		routes, err := ns.Routes(nl.RouteFilter{Table: egress.TableOut, Protocol: nl.RouteProtocol})
		for _, r := range onePerGateway(routes) {
			if !routerAnswers(ctx, ns, s, r) {
				silent++
				found = append(found, unansweredFinding(view.Owner(l), r, cmp.Or(ports[l.Network], egress.DefaultPort)))
			}
		}
		return err
	}))
	return found, err
}

// enoughUnanswered is the number of findings after which doctor asks no further client.
const enoughUnanswered = 5

// onePerGateway returns, for each gateway, the first route that uses the gateway.
func onePerGateway(routes []nl.Route) (first []nl.Route) {
	for _, r := range routes {
		if r.Via.IsValid() && !slices.ContainsFunc(first, func(o nl.Route) bool { return o.Via == r.Via }) {
			first = append(first, r)
		}
	}
	return first
}

// silentRouter returns the finding about a router that has forwarded many packets of clients, but no answer. It also
// reports whether p is such a router.
func silentRouter(p view.EgressPod) (Finding, bool) {
	const enough = 20
	lost := p.Role == egress.Router && p.Forwarded > enough && p.Answered == 0
	return Finding{Severity: warning, About: "router " + p.Pod,
		Means: fmt.Sprintf("the router has forwarded %d packets of clients, but no answer has come. The router may "+
			"have no route to the destinations",
			p.Forwarded),
		Do: "the subnet of the router's ENI needs a route to the destinations, for example by a NAT gateway. The " +
			"ENI's security groups and the subnet's network ACL must allow the packets"}, lost
}

// unansweredFinding returns the finding about a client that reaches no router.
func unansweredFinding(client string, r nl.Route, port int) Finding {
	return Finding{Severity: severe, About: "client " + client,
		Means: fmt.Sprintf("no router behind the gateway %s answers, so the client does not reach %s", r.Via, r.Dst),
		Do: fmt.Sprintf("allow UDP port %d between the security groups of clients and routers, in and out. Run "+
			"cni-tool egress on the routers' nodes to see whether the routers run. Run cni-tool doctor --check egress "+
			"on the same nodes to see whether the routers follow the present configuration", port)}
}

// routerAnswers sends a packet into the tunnel, and reports whether a router answers. The packet has the lowest hop
// limit, so the router must send back an ICMP message, and must not forward the packet.
func routerAnswers(ctx context.Context, client *nl.NS, s egress.State, r nl.Route) (answers bool) {
	const port = "33434" // of traceroute(8)
	to, err := tunnelledAddr(client, s, r)
	if err != nil || !to.IsValid() {
		return true // no address uses this route, because narrower routes cover its destination
	}
	hop := net.Dialer{Control: func(_, _ string, c syscall.RawConn) (err error) {
		failed := c.Control(func(fd uintptr) { err = setOneHop(int(fd), to) })
		return errors.Join(failed, err)
	}}
	for range 3 {
		err := client.Do(func() error {
			return exchangeDatagram(ctx, hop, net.JoinHostPort(to.String(), port), time.Second)
		})
		if errors.Is(err, syscall.EHOSTUNREACH) {
			return true
		}
	}
	return false
}

// unusedAddrs are addresses for documentation, which no host has (RFC 5737, RFC 3849, RFC 9637).
var unusedAddrs = []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1"),
	netip.MustParseAddr("3fff::1")}

// tunnelledAddr looks for an address to which the client sends packets through the tunnel. The address is within the
// destination of the route r. If tunnelledAddr finds no address, it returns the zero address.
func tunnelledAddr(client *nl.NS, s egress.State, r nl.Route) (netip.Addr, error) {
	first := r.Dst.Addr()
	for _, to := range append([]netip.Addr{first.Next(), first}, unusedAddrs...) {
		i := slices.IndexFunc(s.Addrs, func(a netip.Addr) bool { return a.Is4() == to.Is4() })
		if i < 0 || !r.Dst.Contains(to) || !to.IsGlobalUnicast() {
			continue
		}
		dev, err := ask.Leaves(client, s.Addrs[i], to)
		if err != nil {
			return netip.Addr{}, err
		}
		if dev == egress.Link4 || dev == egress.Link6 {
			return to, nil
		}
	}
	return netip.Addr{}, nil
}

// setOneHop gives a socket the lowest hop limit, and asks the kernel for all ICMP errors: ip(7), ipv6(7).
func setOneHop(fd int, to netip.Addr) error {
	if to.Is6() {
		return errors.Join(unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, 1),
			unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVERR, 1))
	}
	return errors.Join(unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_TTL, 1),
		unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_RECVERR, 1))
}
