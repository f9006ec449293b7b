// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package vpc is the map of this repository and its glossary. It has no code.
//
// Three CNI plugins give a Kubernetes pod a native address of an AWS VPC. They are a chain of programs, or one program:
//
//	plugin/         code that all plugins share: decode, dispatch, encode, errors
//	plugin/nic/     requests of pods for their interfaces; plugin/values/ the rules for values of the configuration
//	ipam/           manages the addresses: a program that the plugins execute to ask EC2, and functions for tool/
//	  lease/        the first plugin: leases the addresses that the node has (the whole warm path)
//	  more/         gets more addresses and ENIs from EC2, and finishes what a killed process has begun
//	  asked/        gets the ENI or the address for which a pod asks
//	  less/         releases addresses and ENIs that the node does not need
//	  known/        asks metadata, EC2 and the kernel about the node's ENIs and addresses
//	  call/         makes the calls to EC2, and waits while EC2 throttles
//	  book/         functions that read or edit the registry's state in memory, without I/O
//	plugin/ipvlan/  the second plugin: puts an ipvlan slave of the address's ENI into the pod
//	unnumbered-ptp/ the third plugin: adds routes, masquerade rules, and a veth pair between pod and node
//	  legacy/       removes what the original plugin has left on a node
//	plugin/egress/  an additional plugin: packets of chosen pods leave with the address of a router pod
//	plugin/chain/   all plugins in one process
//	tool/           the tool for people, cloud-init and systemd timers: a file per command
//	tool/cli/       code that all commands share: output, messages, progress, exit codes
//	tool/conf/      loads the conflists, once for each run of a command, and validates them
//	tool/view/      shows what registry, kernel, metadata and EC2 say, side by side
//	tool/repair/    puts back objects that a node has lost
//	tool/doctor/    finds faults of the pods' network: a file per check
//	tool/bundle/    writes a support bundle: one file with the state of a node
//	  page/         explains a support bundle: repeats the checks of doctor, and writes an HTML page
//	tool/connectivity/ makes pods, sends packets on each path, and finds where packets are lost
//	tool/iam/       has the permissions that a node's role needs; tool/install/ puts the suite on a node
//	tool/kube/      makes the suite's only request to the API server, with the kubelet's credentials
//	tool/history/   reads the lease log, and finds out which pod had which address
//
// The packages aws, nl and registry do not import each other. The packages above use these packages:
//
//	aws/            EC2 and metadata as types of this suite; only aws and acceptance import the AWS SDK
//	  api/          the table of EC2's actions
//	nl/             reads and changes links, addresses, routes, rules and nftables of node and pod, by netlink
//	nl/bpf/         the BPF programs that nl attaches to links
//	nl/ifname/      the kernel's rules for the name of a link; nl/ask/ has queries that no plugin needs
//	registry/       the locked directory that all processes of a node share; the only package that uses flock
//	  indexed/      the registry's large lists and tables, from which a process reads one entry
//	internal/release/ the version of a program; internal/excerpt/ prepares texts of others for messages and tables
//	internal/atomicfile/ replaces a file, whole or not at all; internal/stack/ makes a stack grow in one step
//	internal/trace/ finds the distributed trace to which a CNI call belongs
//	internal/codec/ JSON without the reflection of encoding/json
//	  gen/          generates descriptions of types from struct tags; codectest/ compares descriptions with tags
//
// The tests use a simulated cloud and a real kernel. All code that simulates AWS, or a cluster on AWS, is in sim:
//
//	sim/ec2sim/     EC2 and metadata over HTTP, from one state in memory
//	sim/vpcsim/     the data plane of a VPC: namespaces as instances, veths as ENIs
//	sim/simtest/    two simulations for tests: a VPC that forwards packets, and a node whose ENIs carry no packets
//	sim/paths/      packets on each path between pods, nodes, Services and the internet
//	sim/kubeproxy/  the rules that the real kube-proxy writes
//	sim/cri/        containerd and CRI-O, called as kubelet calls them
//	sim/machine/    an instance with mounts, processes, a host name and cgroups of its own
//	sim/cluster/    Kubernetes on such machines; make test-cluster, and make cluster for experiments
//	sim/demo/       make demo; sim/shell/ is make sim; sim/fleet/ measures waits for EC2 (make fleet, make cold)
//	sim/bench/      make bench, and its plots
//	e2e/            tests of the whole suite: the programs and conflists on simulated instances, and the docs
//	acceptance/     make test-ec2: tests the suite on the real EC2, for a person with an AWS account
//	  compare/      makes the same calls to two EC2s, and compares their answers field by field
//	  ends/         makes pods and sends packets on an instance
//	nl/nltest/      namespaces for tests, programs killed at any system call, and a VM whose kernel has ipvlan
//	internal/kernels/ the results of the tests on each kernel; internal/table/ Markdown tables
//	internal/judges/ the results of other projects' test programs; internal/testevents/ the output of go test -json
//
// A table in repo_test.go lists the imports between packages, and a test there checks the table. To read the source,
// begin with plugin.Main and chain.Commands, then lease.Pool.Take and ipam.Pool.Acquire, then nl.Wiring.Add.
//
// # Glossary
//
// Each word has one meaning, in code, messages and docs.
//
// The cloud:
//
//	ENI             an elastic network interface of EC2; on the node it is a link
//	boot ENI        the ENI with which EC2 launched the instance; metadata's "mac" is its MAC (registry.ENI.IsBoot)
//	slot            a device index of a network card, where one ENI can be attached
//	prefix          a block that EC2 delegates to an ENI: a /28 of IPv4, a /80 of IPv6
//	pool            a named set of ENIs with its own subnets and security groups; top-level keys define "default"
//	derived pool    a pool for pods that ask for the same security groups or ENI; it is made from the pods' own pool
//	ENI on request  an ENI for which a pod has asked: only pods that ask for it get its addresses
//	managed         an ENI that this suite created, and may delete; a tag in EC2 says so
//	foreign         an ENI that serves no pods: its owner forbids changes, or it had no address when we found it
//	peer            a VPC that is peered with the node's VPC
//	metadata        EC2's instance metadata service (IMDS); it may lag behind EC2
//
// The node:
//
//	node          an EC2 instance as a Kubernetes node, and its network namespace
//	host          a machine with an address, as in the kernel's host route (/32, /128); a node is never called a host
//	link          a network interface of the kernel, as in ip-link(8)
//	slave         an ipvlan link; the ENI's link is its master
//	pair          the veth pair of a pod: one end in the pod, the other on the node
//	data path     how a pod's packets reach its ENI: through a slave (ipvlan), or through its pair and the node (veth)
//	routed pod    a pod whose data path is veth; its pair is its only link
//	family        IPv4 or IPv6
//	attachment    one interface of one container, as in the CNI specification; a lease also names the network
//	wiring        the list of kernel objects that a plugin adds, checks and deletes
//	service loop  the path of a pod's packet to a Service: to the node, back into the pod, and out through its ENI
//	direct        traffic that leaves through the pod's ENI and not through the node
//	egress        destinations that client pods reach through router pods, and that see the address of a router
//
// Addresses:
//
//	registry      the file in which the node's processes record ENIs, addresses and leases
//	lease         the entry of the registry that gives an address to an attachment
//	reserved      a lease names the address, but no process has seen it in the kernel yet
//	bound         a lease names the address, and the kernel has it in the pod
//	cooling       the last lease of the address ended less than reuseIPWait ago, so no pod gets the address yet
//	free          the node has the address, no lease names it, and it is not cooling
//	used          the address has a lease, or is shown by a namespace or by a host route of the node
//	warm          free in advance: a warm ADD makes no EC2 call and no metadata call
//	unconfirmed   metadata or EC2 shows the address, but may lag; no ADD takes it yet
//
// Changes in EC2:
//
//	growth        getting more addresses for a pool; only the process that holds the lock "grow" does this
//	waiter        an ADD that waits for an address; growth makes one EC2 call for all waiters
//	intent        the registry's record of an EC2 call: written before the call, removed when the outcome is known
//	throttled     EC2 has refused a call because there were too many calls; all processes of the node then wait
//	draining      an ENI that will be deleted: it gets no new leases
//	release       to return free addresses, prefixes or ENIs to EC2; a lease is not released: it ends
//	collection    a run of registry-gc: ends the leases of pods that are gone, and releases free addresses and ENIs
//	repair        to put back objects of the wiring that the node has lost: rules, routes, veth pairs
package vpc
