// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

// greeting explains the shell, and suggests first commands.
const greeting = `
You are on node1, a simulated EC2 instance. The cloud is simulated; kernel, packets and programs are real.
There are also node2, with the pod web; host and peer, which have no pods; and internet.

  cni-tool eniif           the ENIs of node1
  pod add cart             start a pod, as a container runtime does
  pod exec cart ping web   from pod to pod
  cni-tool status          which pod has which address
  cni-tool doctor          whether anything is wrong with the node
  call web                 by TCP; web says whom it sees. In a pod: pod exec cart call web
  service add web          kube-proxy's rules for a Service of that pod; then call it from a pod
  ec2                      do what EC2 does: detach an ENI, take an address, throttle, deny; and undo that
  on node2 COMMAND         run a command on the other node
  pod del cart             end the pod; its address is then free, see cni-tool registry-list
  cni-tool --help          all other commands; exit ends the simulation, and nothing remains

`
