// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package vpcsim

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"syscall"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// metadataAddr is where the fabric answers for the metadata services of all instances.
var metadataAddr = netip.MustParseAddrPort("169.254.169.254:80")

// errorAddr is whom the fabric's ICMP errors are from. Without an address of its own for that the kernel would take the
// metadata service's, which pods may refuse to know. EC2's are from routers that nobody can ask.
var errorAddr = netip.MustParseAddr("192.0.2.253")

// ec2Addr is where EC2 listens in each instance's namespace. In truth it is far away, and the way no concern of ours.
const ec2Addr = "127.0.0.1:8773"

// serve answers HTTP at an address of a namespace until that is closed. Answers live for so many hops; 0 is as usual.
func (n *Namespace) serve(addr string, hops int, h http.Handler) error {
	l := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		if hops == 0 {
			return nil
		}
		control := c.Control(func(fd uintptr) {
			err = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_IP, syscall.IP_TTL, hops)
		})
		if control != nil {
			return control
		}
		return err
	}}
	var socket net.Listener
	err := n.Do(func() (err error) {
		socket, err = l.Listen(context.Background(), "tcp4", addr)
		return err
	})
	if err != nil {
		return fmt.Errorf("%s: %w", n.Name, err)
	}
	s := &http.Server{Handler: h}
	n.open = append(n.open, s)
	go s.Serve(socket)
	return nil
}

// serveMetadata answers at the metadata service's address. Its answers do not survive a hop (EC2 user guide, "Configure
// the Instance Metadata Service options": "HttpPutResponseHopLimit", 1 by default): a container behind the node's
// routing does not get them, one that is on the ENI does.
func (f *Fabric) serveMetadata() error {
	for _, a := range []netip.Addr{errorAddr, metadataAddr.Addr()} { // the kernel takes the first
		if err := (nl.Addr{Prefix: prefix(a), Dev: "lo"}).Add(f.vpc.NS); err != nil {
			return err
		}
	}
	const hops = 1
	return f.vpc.serve(metadataAddr.String(), hops, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		i := f.caller(r)
		if i == nil {
			http.Error(w, "the fabric knows no instance of this address", http.StatusForbidden)
			return
		}
		i.Metadata().ServeHTTP(w, r)
	}))
}

// caller is the instance whose ENI has the address that a request comes from.
func (f *Fabric) caller(r *http.Request) *Instance {
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return nil
	}
	for _, e := range f.EC2.ENIs() {
		for _, p := range prefixes(e) {
			if p.Contains(from.Addr()) {
				f.mu.Lock()
				defer f.mu.Unlock()
				return f.instances[e.Instance]
			}
		}
	}
	return nil
}
