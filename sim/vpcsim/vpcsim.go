// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package vpcsim moves packets in the VPCs that package ec2sim simulates. Each instance is a network namespace of this
// kernel, and each ENI is a veth pair. One more namespace, the fabric, connects the instances. It delivers and drops
// packets as EC2 does.
//
//	vpc-1: 10.0.0.0/16, 100.64.0.0/16            vpc-2: 10.1.0.0/16
//
//	node1                    node2               db
//	  eth0 10.0.0.10           eth0 10.0.0.11      eth0 10.1.0.10     instances: DHCP has configured eth0;
//	   |     eth1               |                   |                 eth1 ... appears when EC2 attaches it
//	...|......|.................|...................|........................................................
//	 eni-01  eni-04           eni-02              eni-03              vpc: the fabric
//	   |      |                 |                   |
//	   +------+-----------------+--- peering -------+---> drainSpoofed \
//	                            |                   +---> drainNoHost   > drains: they count what is dropped
//	                           igw                  +---> drainNoRoute /
//	............................|............................................................................
//	                           vpc                                    igw: the internet gateway
//	                            | 10.0.0.10 is 198.18.0.1             1:1 NAT, for boot ENIs with a public address,
//	                            |                                     a NAT gateway for subnets, IPv6 as it is
//	............................|............................................................................
//	                           eth0 203.0.113.1                       internet: one host
//
// There is no broadcast domain. The fabric answers ARP and neighbour solicitations for all addresses that the asking
// ENI does not have. For IPv6, the fabric has the address fe80:ec2::1, which is the router's address in all subnets.
// When a program calls, for example, AssignPrivateIpAddresses, the fabric changes before EC2 answers
// ([ec2sim.Sim.OnChange]). The fabric also serves the metadata of the instances. It recognises an instance by the
// source address of the request.
//
// The fabric consists of routing rules and routes. Each address of an ENI has a rule, for example "iif eni-04 from
// 100.64.1.5". The rule selects the routing table of the VPC, which has a route to each address that the VPC can reach.
// If no rule matches a packet, or if the VPC has no route for it, the packet goes to a drain. There is a drain for each
// reason why the fabric drops a packet. [Fabric.Drops] returns the number of packets in each drain.
//
// The fabric needs root. It creates the directory /run/vpcsim0, and namespaces with names such as vpcsim0-node1. It
// changes nothing else. If a process is killed, its namespaces remain. The next process that calls [New] removes them.
package vpcsim

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
)

// A Fabric is the network between the instances of a simulated EC2, and between the instances and the internet.
type Fabric struct {
	EC2      *ec2sim.Sim
	Internet *Namespace // the only host of the internet, with the address InternetAddr

	run      *run
	region   string
	networks map[string]*network // by VPC
	vpc, igw *Namespace
	spoofed  *os.File // a socket, see Spoofed

	launch sync.Mutex // held while an instance boots

	mu          sync.Mutex           // guards all fields below
	booting     *Instance            // the instance that RunInstance launches, until its ID is known
	instances   map[string]*Instance // by ID
	made        []*Namespace
	plugged     map[string]pluggedENI // by ENI
	publicAddrs map[string]mapping    // by ENI
	natSubnets  []netip.Prefix        // the subnets that have a NAT gateway
	openPorts   []uint16              // the ports that calls from the internet may use
	onLaunch    func(*Instance)       // from OnLaunch; nil: an instance that a program launches has no namespace
	failed      error
}

// New starts EC2 and its fabric. The VPCs must not overlap, even without a peering, because they share one fabric.
func New(c ec2sim.Config) (*Fabric, error) {
	sim, err := ec2sim.New(c)
	if err != nil {
		return nil, err
	}
	networks, err := newNetworks(c)
	if err != nil {
		return nil, err
	}
	r, err := newRun()
	if err != nil {
		return nil, err
	}
	f := &Fabric{
		EC2: sim, run: r, region: c.Region, networks: networks,
		instances: map[string]*Instance{}, plugged: map[string]pluggedENI{}, publicAddrs: map[string]mapping{},
	}
	if err := f.build(); err != nil {
		return nil, errors.Join(fmt.Errorf("build the fabric: %w", err), f.Close())
	}
	sim.OnChange(f.applyReported)
	return f, nil
}

func (f *Fabric) build() (err error) {
	if f.vpc, err = f.NewNamespace("vpc"); err != nil {
		return err
	}
	if f.igw, err = f.NewNamespace("igw"); err != nil {
		return err
	}
	if f.Internet, err = f.NewNamespace("internet"); err != nil {
		return err
	}
	w := routerSysctls(f.vpc.NS)
	w = append(w, f.drainWiring()...)
	w = append(w, f.internetWiring()...)
	for _, n := range f.networks {
		w = append(w, n.wiring(f.vpc.NS, f.igw.NS)...)
	}
	if err := w.Add(); err != nil {
		return err
	}
	return errors.Join(f.serveMetadata(), f.answerNeighbours(), f.watchLinks(), f.watchSpoofed())
}

// routerSysctls returns the sysctls that make a namespace a router. The router forwards packets unchanged. It answers
// ARP requests for all addresses to which it can forward.
func routerSysctls(n *nl.NS) nl.Wiring {
	return nl.Wiring{
		{NS: n, Object: nl.Sysctl{Key: "net/ipv4/ip_forward", Value: "1"}}, // first: ip_forward resets other sysctls
		{NS: n, Object: nl.Sysctl{Key: "net/ipv4/conf/all/proxy_arp", Value: "1"}},
		{NS: n, Object: nl.Sysctl{Key: "net/ipv4/conf/all/rp_filter", Value: "0"}},
		{NS: n, Object: nl.Sysctl{Key: "net/ipv4/conf/default/rp_filter", Value: "0"}},
		{NS: n, Object: nl.Sysctl{Key: "net/ipv4/conf/all/send_redirects", Value: "0"}},
		{NS: n, Object: nl.Sysctl{Key: "net/ipv4/conf/default/send_redirects", Value: "0"}},
		{NS: n, Object: nl.Sysctl{Key: "net/ipv6/conf/all/forwarding", Value: "1"}},
		// Do not add link-local addresses automatically. If the kernel added such addresses, it would check the
		// addresses for duplicates, and the drains would count the packets of this check.
		{NS: n, Object: nl.Sysctl{Key: "net/ipv6/conf/default/addr_gen_mode", Value: "1"}},
	}
}

// Err returns the errors of all changes in EC2 that the fabric could not apply. A test should call Err or
// [Fabric.Close] at its end. Close also returns these errors.
func (f *Fabric) Err() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.failed
}

// Close removes all files and namespaces of the fabric, including the namespaces of pods. It does not end processes in
// the namespaces: the program that started a process must end the process. A second Close does nothing.
func (f *Fabric) Close() error {
	err := f.Err()
	f.mu.Lock()
	made, run := f.made, f.run
	f.made, f.run = nil, nil
	f.mu.Unlock()
	if run == nil {
		return nil
	}
	if f.spoofed != nil {
		err = errors.Join(err, f.spoofed.Close())
	}
	for _, n := range made {
		err = errors.Join(err, n.Close())
	}
	return errors.Join(err, run.remove())
}

func hostPrefix(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }
