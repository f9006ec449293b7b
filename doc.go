// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package vpc is the map of this repository and its glossary. It has no code.
//
// Three CNI plugins, in one process or chained, give a Kubernetes pod a native address of an AWS VPC:
//
//	plugin/         code of all plugins: decode, dispatch, encode, errors
//	plugin/nic/     requests of pods for their interfaces; plugin/values/ the rules for values of the configuration
//	ipam/           addresses: the program that the plugins execute to ask EC2, and the functions of the tool
//	  lease/        the first plugin: leases the addresses that the node has; all of the warm path
//	  more/         gets more addresses and ENIs from EC2, and finishes what a killed process has begun
//	  asked/        gets an ENI or an address for which a single pod asks
//	  less/         releases to EC2 addresses and ENIs that the node does not need
//	  known/        finds out the truth about ENIs and addresses, by metadata, EC2 and the kernel
//	  call/         makes the calls to EC2, and waits while EC2 throttles
//	  book/         edits of the registry's state, and questions about it: no I/O
//	plugin/ipvlan/  the second plugin: an ipvlan slave of the address's ENI, in the pod
//	unnumbered-ptp/ the third plugin: a veth pair between pod and node, routes, masquerade
//	  legacy/       removes what the original plugin has left on a node
//	plugin/egress/  a further plugin: packets of chosen pods leave with the addresses of routers
//	plugin/chain/   all plugins in one process
//	tool/           the tool for people, cloud-init and systemd timers: a file per command
//	tool/cli/       code of all commands: output, messages, progress, exit codes
//	tool/conf/      conflists: load them, once for a command, and validate them
//	tool/view/      registry, kernel, metadata and EC2 side by side
//	tool/repair/    puts back objects that a node has lost
//	tool/doctor/    finds faults of the pods' network: a file per check
//	tool/bundle/    the state of a node in one file
//	  page/         explains such a file: repeats the checks, and makes a page of HTML
//	tool/connectivity/ makes pods, sends packets on each path, and finds where they stop
//	tool/iam/       the permissions that the role of a node needs; tool/install/ puts the suite on a node
//	tool/kube/      the one request to the API server, with the kubelet's credentials
//	tool/history/   which pod had which address: the lease log
//
// The packages above use the following packages. The packages aws, nl and registry do not import each other:
//
//	aws/            EC2 and metadata as types of this suite; only aws and acceptance import the AWS SDK
//	  api/          the table of EC2's actions
//	nl/             links, addresses, routes, rules and nftables of two namespaces, by netlink
//	nl/bpf/         the BPF programs that nl attaches to links
//	nl/ifname/      the kernel's rules for the name of a link; nl/ask/ has queries that no plugin needs
//	registry/       the locked directory that all processes of a node share; the only package that uses flock
//	  indexed/      the registry's large lists and tables, from which a process reads one entry
//	internal/release/ the release of a program; internal/excerpt/ shows texts of others in messages and tables
//	internal/atomicfile/ replaces a file, whole or not at all; internal/stack/ lets a goroutine's stack grow at once
//	internal/trace/ the distributed trace of a call
//	internal/codec/ JSON without the reflection of encoding/json
//	  gen/          writes the descriptions of types from struct tags; codectest/ compares descriptions and tags
//
// The tests use a simulated cloud and a real kernel. All code that simulates AWS, or a cluster on AWS, is in sim:
//
//	sim/ec2sim/     EC2 and metadata over HTTP, from one state in memory
//	sim/vpcsim/     the data plane of a VPC: namespaces as instances, veths as ENIs
//	sim/simtest/    the simulated worlds of tests: a VPC with packets, or a node whose ENIs carry no packets
//	sim/paths/      packets on each path between pods, nodes, Services and the internet
//	sim/kubeproxy/  the rules that the real kube-proxy writes
//	sim/cri/        containerd and CRI-O, called as kubelet calls them
//	sim/machine/    an instance with mounts, processes, a host name and cgroups of its own
//	sim/cluster/    Kubernetes on such machines; make test-cluster, and make cluster for experiments
//	sim/demo/       make demo; sim/shell/ is make sim; sim/fleet/ is make fleet and make cold: nodes wait for EC2
//	sim/bench/      make bench, and its plots
//	e2e/            tests of the whole suite: the programs and conflists on simulated instances, and the docs
//	acceptance/     make test-ec2: the same checks on the real EC2, for a person with an AWS account
//	  compare/      makes the same calls to two EC2s, and compares their answers field by field
//	  ends/         makes pods and sends packets on an instance
//	nl/nltest/      namespaces for tests, programs killed at any system call, and a VM whose kernel has ipvlan
//	internal/kernels/, judges/ test results by kernel, and by programs of others (sim/judge/); internal/table/ tables
//	internal/testevents/ reads the output of go test -json for both
//
// The table of the imports between packages is in repo_test.go. A test there checks the table. To read the source,
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
//	pool            a named set of ENIs with subnets and security groups of its own; "default" has the top-level keys
//	derived pool    a pool that a pod's request makes from the pod's pool
//	ENI on request  an ENI for which a pod has asked: only pods that ask for it get its addresses
//	managed         an ENI that this suite created, and may delete; EC2 has this as a tag
//	foreign         an ENI whose owner forbids changes, or that had no address when first found: it serves no pods
//	peer            a VPC that is peered with the node's VPC
//	metadata        EC2's instance metadata service (IMDS); it may lag behind EC2
//
// The node:
//
//	node          an EC2 instance as a Kubernetes node, and its network namespace
//	host          any machine with an address, as in the kernel's host route (/32, /128); never a node of this suite
//	link          a network interface of the kernel, as in ip-link(8)
//	slave         an ipvlan link; the ENI's link is its master
//	pair          the veth pair of a pod: one end in the pod, the other on the node
//	data path     how a pod's packets reach its ENI: by a slave (ipvlan), or by its pair and the node (veth)
//	routed pod    a pod whose data path is veth: its pair is its only link
//	family        IPv4 or IPv6
//	attachment    one interface of one container, as in the CNI specification; the network's name completes the key
//	wiring        the list of kernel objects that a plugin adds, checks and deletes
//	service loop  the path of a pod's packet to a Service: to the node, back into the pod, and out by its ENI
//	direct        traffic that leaves by the pod's ENI and not through the node
//	egress        destinations that some pods (clients) reach by other pods (routers), with the routers' addresses
//
// Addresses:
//
//	registry      the file in which the node's processes record ENIs, addresses and leases
//	lease         the entry of the registry that gives an address to an attachment
//	reserved      a lease names the address, but no process has seen it in the kernel yet
//	bound         a lease names the address, and the kernel has it in the pod
//	cooling       the last lease of the address ended less than reuseIPWait ago, so no pod gets the address yet
//	free          the node has the address, no lease names it, and it is not cooling
//	used          leased, or seen in a namespace or in a route to the single address
//	warm          free in advance: a warm ADD makes no EC2 call and no metadata call
//	unconfirmed   metadata or EC2 shows the address, but may lag; no ADD takes it yet
//
// Changes in EC2:
//
//	growth        getting more addresses for a pool; one process at a time, under the lock "grow"
//	waiter        an ADD that waits for an address; growth asks EC2 for all waiters in one call
//	intent        the record of an EC2 call in the registry; it stays from before the call until the outcome is known
//	throttled     EC2 has refused a call because of its rate; all processes of the node then wait
//	draining      an ENI that will be deleted: it gets no new leases
//	release       to return free addresses, prefixes or ENIs to EC2; not a word for leases: a lease ends
//	collection    a run of registry-gc: it ends leases of pods that are gone, and releases free addresses and ENIs
//	repair        to put back objects of the wiring that the node has lost: rules, routes, veth pairs
package vpc
