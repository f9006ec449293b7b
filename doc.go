// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package vpc is the map of this repository, and nothing else.
//
// Three CNI plugins, in one process or chained, give a Kubernetes pod a native address of an AWS VPC:
//
//	plugin/         the skeleton that the plugins share: decode, dispatch, encode, errors
//	ipam/lease/     which pod has which address, of those that the node has
//	ipam/           that, and getting more from EC2; the first plugin
//	plugin/ipvlan/  a slave of the address's ENI in the pod; the second plugin
//	unnumbered-ptp/ a veth pair between pod and node, routes, masquerade; the third plugin
//	plugin/chain/   the three in one process, which executes the first where EC2 has to be asked
//	tool/           what people, cloud-init and systemd timers run
//
// They stand on three packages that know nothing of each other:
//
//	aws/            EC2 and its metadata service in our words; alone knows the AWS SDK
//	nl/             links, addresses, routes, rules, nftables of two namespaces; alone knows netlink
//	nl/bpf/         the programs that links run on their packets
//	registry/       the locked directory that all processes of a node share; alone knows flock
//
// And on one that spares short lives the reflection of encoding/json:
//
//	codec/          JSON read and written by one description; codectest compares it with the struct tags
//
// And they are proven on a simulated cloud with a real kernel:
//
//	aws/ec2sim/     EC2 and metadata over HTTP, from one VPC in memory
//	aws/vpcsim/     its data plane: namespaces as instances, veths as ENIs; paths of packets; the demo; kube-proxy's rules; containerd and CRI-O
//	nl/nltest/      namespaces for tests, programs killed at any system call, and a kernel with ipvlan where the machine's has none
//
// Arrows, and no others (repo_test.go holds them):
//
//	tool -> ipam ipam/lease aws nl registry, and the other plugins for their configurations
//	ipam -> ipam/lease plugin aws nl registry
//	ipam/lease -> plugin nl registry codec      and not aws: it is the warm path
//	plugin/ipvlan -> plugin nl codec      unnumbered-ptp -> plugin nl codec
//	plugin/chain -> plugin plugin/ipvlan unnumbered-ptp ipam/lease codec
//	plugin -> codec                       registry -> codec
//	aws/vpcsim -> aws/ec2sim nl           nl/nltest -> nl           nl -> nl/bpf
//
// To read the source, begin with plugin.Main and chain.Commands, then lease.Pool.Take and ipam.Pool.Acquire, then nl.Wiring.Add.
package vpc
