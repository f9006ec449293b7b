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

// metadataAddr is the address at which the fabric serves the metadata of all instances.
var metadataAddr = netip.MustParseAddrPort("169.254.169.254:80")

// errorAddr is the source address of the fabric's ICMP errors. Without errorAddr, the kernel would use the address of
// the metadata service as their source. A pod without a route to the metadata service might then drop the errors.
var errorAddr = netip.MustParseAddr("192.0.2.253")

// ec2Addr is the address of EC2 in each instance's namespace. The fabric does not simulate the network path to EC2.
const ec2Addr = "127.0.0.1:8773"

// serveHTTP answers HTTP at an address of a namespace until the namespace is closed. hopLimit is the hop limit of the
// answers; 0 means the kernel's default.
func (n *Namespace) serveHTTP(addr string, hopLimit int, h http.Handler) error {
	l := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		if hopLimit == 0 {
			return nil
		}
		control := c.Control(func(fd uintptr) {
			err = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_IP, syscall.IP_TTL, hopLimit)
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

// serveMetadata serves the metadata of all instances. The hop limit of its answers is 1, as by default in EC2 (EC2 user
// guide, "Configure the Instance Metadata Service options": "HttpPutResponseHopLimit"). So a container whose packets
// the node routes gets no answer.
func (f *Fabric) serveMetadata() error {
	// The kernel uses the first address of the loopback as the source of ICMP errors.
	for _, a := range []netip.Addr{errorAddr, metadataAddr.Addr()} {
		if err := (nl.Addr{Prefix: hostPrefix(a), Dev: "lo"}).Add(f.vpc.NS); err != nil {
			return err
		}
	}
	const hops = 1
	return f.vpc.serveHTTP(metadataAddr.String(), hops, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		i := f.callerOf(r)
		if i == nil {
			http.Error(w, "the fabric knows no instance of this address", http.StatusForbidden)
			return
		}
		i.Metadata().ServeHTTP(w, r)
	}))
}

// callerOf returns the instance whose ENI has the source address of a request.
func (f *Fabric) callerOf(r *http.Request) *Instance {
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return nil
	}
	for _, e := range f.EC2.ENIs() {
		for _, p := range eniPrefixes(e) {
			if p.Contains(from.Addr()) {
				f.mu.Lock()
				defer f.mu.Unlock()
				return f.instances[e.Instance]
			}
		}
	}
	return nil
}
