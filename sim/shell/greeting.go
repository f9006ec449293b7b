// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

// greeting explains the shell, and suggests first commands.
const greeting = `
You are on node1, a simulated EC2 instance. The cloud is simulated; kernel, packets and programs are real.
The pod web runs on node2. There are also host, peer and internet, which have no pods.

  cni-tool eniif           the ENIs of node1
  pod add cart             start a pod, as a container runtime does
  pod exec cart ping web   send packets from the pod cart to the pod web
  cni-tool status          which pod has which address
  cni-tool doctor          whether anything is wrong with the node
  call web                 call web by TCP, and print the caller's address, as web sees it
  pod exec cart call web   the same from the pod cart
  service add web          make a Service of web with kube-proxy's rules; then call its address from a pod
  ec2                      how to make EC2 detach an ENI, take an address, or refuse calls
  on node2 COMMAND         run a command on the other node
  pod del cart             end the pod; its address then cools: see cni-tool registry-list
  cni-tool --help          all other commands; exit ends the simulation, and nothing remains

`
