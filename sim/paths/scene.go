// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package paths

import (
	"cmp"
	"errors"
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/libcni"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/vpcsim"
)

// sceneVPC has the VPC of all scenes, with separate CIDRs for nodes, pods and a host, and two peered VPCs.
//
// EC2 shows only one CIDR of the peered VPC vpc-office. The host in vpc-office is in another CIDR. So this host also
// stands for hosts behind a transit gateway, whose CIDRs EC2 does not show.
var sceneVPC = ec2sim.World(`
	vpc-main      10.0.0.0/16 100.64.0.0/16 100.65.0.0/16 2001:db8:0:100::/56 2001:db8:0:400::/56
	subnet-nodes  10.0.0.0/24 2001:db8:0:100::/64 public
	subnet-host   10.0.1.0/24 2001:db8:0:101::/64
	subnet-second 100.65.0.0/24 2001:db8:0:400::/64
	subnet-pods1  100.64.0.0/20 2001:db8:0:111::/64 kubernetes_kubelet=true
	subnet-pods2  100.64.16.0/20 2001:db8:0:112::/64 kubernetes_kubelet=true
	subnet-pods3  100.64.32.0/20 2001:db8:0:113::/64 kubernetes_kubelet=true
	subnet-only6  2001:db8:0:114::/64 family=IPv6
	vpc-peer      10.1.0.0/16 2001:db8:0:200::/56
	subnet-peer   10.1.0.0/24 2001:db8:0:200::/64
	vpc-office    10.2.0.0/16 2001:db8:0:300::/56
	subnet-office 10.2.1.0/24 2001:db8:0:301::/64
	pcx-1         vpc-main vpc-peer
	pcx-2         vpc-main vpc-office 10.2.0.0/24`)

// OfficeCIDRs are the CIDRs of the host in vpc-office. Pods need the key routeToCidrs to reach this host.
var OfficeCIDRs = []netip.Prefix{netip.MustParsePrefix("10.2.1.0/24"), netip.MustParsePrefix("2001:db8:0:301::/64")}

const instanceType = "m5.large"

// Port is the port on which all ends answer.
const Port = 8080

// Options describe a Scene.
type Options struct {
	Bin      string   // the directory of the plugins
	Type     string   // the instance type; m5.large by default
	Conflist []byte   // the network configuration
	Families []Family // families of the pods' addresses; with IPv6, each instance also has an IPv6 address
	Further  bool     // the scene also has the ends of the further paths
	// The pods' packets to the internet leave directly through the pods' ENIs, whose subnets have a NAT gateway.
	NAT      bool
	Kept     bool // the conflist sets keepCaller, for the backends of NodePorts: see Services
	Tracking bool // the conflist sets serviceLoop to "masquerade", so the kernel tracks the connections in the pods
	Loopless bool // the conflist sets serviceLoop to "none", so backends see the address of the node

	// The annotations of the pods, by Kubernetes namespace. For annotations, the conflist must have the capability
	// io.kubernetes.cri.pod-annotations.
	Annotations map[string]map[string]string
}

// A Scene has the ends of the paths.
type Scene struct {
	*vpcsim.Fabric
	Nodes []*Node // two

	options Options
	list    *libcni.NetworkConfigList
	others  map[string]*vpcsim.Instance // hosts that are not nodes, by name
}

// New makes a scene. The scene's instances have only their boot ENIs at first.
func New(o Options) (*Scene, error) {
	list, err := libcni.NetworkConfFromBytes(o.Conflist)
	if err != nil {
		return nil, err
	}
	f, err := vpcsim.New(sceneVPC)
	if err != nil {
		return nil, err
	}
	s := &Scene{Fabric: f, options: o, list: list, others: map[string]*vpcsim.Instance{}}
	if err := s.populate(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *Scene) populate() error {
	for _, subnet := range sceneVPC.Subnets {
		if s.options.NAT && subnet.Tags != nil && subnet.CIDR.IsValid() {
			if err := s.AddNATGateway(subnet.CIDR); err != nil {
				return err
			}
		}
	}
	for _, name := range []string{"node1", "node2"} {
		i, err := s.launch(name, "subnet-nodes")
		if err != nil {
			return err
		}
		s.Nodes = append(s.Nodes, s.newNode(i))
	}
	others := []string{"host", "peer"}
	if s.options.Further {
		others = append(others, "second", "office")
	}
	for _, name := range others {
		i, err := s.launch(name, "subnet-"+name)
		if err != nil {
			return err
		}
		s.others[name] = i
	}
	return errors.Join(s.OpenPorts(nodePorts()...), s.Internet.Answer(Port))
}

// launch starts an instance that answers calls.
func (s *Scene) launch(name, subnet string) (*vpcsim.Instance, error) {
	r := ec2sim.RunInstance{Type: cmp.Or(s.options.Type, instanceType), Subnet: subnet}
	if slices.Contains(s.options.Families, IPv6) {
		r.IPv6 = 1
	}
	i, err := s.RunInstance(name, r)
	if err != nil {
		return nil, err
	}
	return i, i.Answer(Port)
}
