// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package kubeproxy

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"sync"
)

// Addrs are the addresses of a host or a Service.
type Addrs struct{ V4, V6 netip.Addr }

// A Host is a role in the scenario. In the comments of the roles, "the node" means the node that gets the rules.
type Host string

const (
	Node    Host = "node"    // the node itself, and pods with the node's network
	Client  Host = "client"  // a pod on the node, and the only backend of Service "hairpin"
	Sibling Host = "sibling" // a pod on the node; may be on the ENI of the client
	Local   Host = "local"   // a pod on the node; may be on another ENI than the client
	Remote  Host = "remote"  // a pod on another node
	VPCHost Host = "vpcHost" // a host that is no pod and no node, for example the API server
)

// A Scenario has the addresses of the host in each role. All hosts need an address of each family that Node has.
type Scenario map[Host]Addrs

// A Service is a Kubernetes Service for which there are recorded rules. Its Kubernetes namespace is "default". Its
// ports are the same for TCP and for UDP.
type Service struct {
	Name       string
	ClusterIP  Addrs
	Port       uint16 // of the ClusterIP
	TargetPort uint16 // of the backends
	// 0: the Service has no NodePort. In mode NFTables, the NodePort works only at the node's own address.
	NodePort uint16
	Backends []Host

	ClientIPAffinity     bool // sessionAffinity: ClientIP
	ExternalTrafficLocal bool // externalTrafficPolicy: Local
}

// recordedScenario returns the content of testdata/scenario.json, for which kube-proxy wrote the recorded rules.
var recordedScenario = sync.OnceValue(func() (r struct {
	ServiceCIDRs []netip.Prefix
	Hosts        Scenario
	Services     []Service
}) {
	b, err := testdata.ReadFile("testdata/scenario.json")
	if err == nil {
		err = json.Unmarshal(b, &r)
	}
	if err != nil {
		panic(err) // the file is compiled in
	}
	return r
})

// Services returns all Services that have recorded rules.
func Services() []Service { return recordedScenario().Services }

// ServiceCIDRs returns the ranges of all ClusterIPs, one for each family. In mode NFTables, the rules drop packets to
// an unused ClusterIP. In mode IPTables, the kernel routes such packets.
func ServiceCIDRs() []netip.Prefix { return recordedScenario().ServiceCIDRs }

// A family is IPv4 or IPv6: its name in the names of the recorded files, its name for nft(8), and its iptables program.
type family struct {
	name, nft, iptables string
	addrOf              func(Addrs) netip.Addr
}

var families = []family{
	{"v4", "ip", "iptables", func(a Addrs) netip.Addr { return a.V4 }},
	{"v6", "ip6", "ip6tables", func(a Addrs) netip.Addr { return a.V6 }},
}

// replaceAddrs replaces the addresses of a family in recorded rules by the scenario's addresses. No recorded address is
// a part of another recorded address, because all recorded addresses of a family have the same length.
func (s Scenario) replaceAddrs(f family, rules string) (string, error) {
	var swap []string
	for h, was := range recordedScenario().Hosts {
		is := f.addrOf(s[h])
		if !is.IsValid() {
			return "", fmt.Errorf("host %q has no address of family %s, which the node has", h, f.name)
		}
		swap = append(swap, f.addrOf(was).String(), is.String())
	}
	return strings.NewReplacer(swap...).Replace(rules), nil
}
