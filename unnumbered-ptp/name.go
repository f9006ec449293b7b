// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp

import (
	"encoding/hex"
	"net"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
)

// owner begins the alias of our links.
const owner = "cni-ipvlan-vpc-k8s"

// vethName is the name of the host end. kube2iam and others go by its prefix.
func vethName(network string, a plugin.Attachment) string {
	return ("veth" + hex.EncodeToString(plugin.Digest(network, a)))[:unix.IFNAMSIZ-1]
}

// macs are the addresses of the host's and the pod's end: locally administered,
// and for the same attachment always the same.
func macs(network string, a plugin.Attachment) (host, pod string) {
	end := net.HardwareAddr(plugin.Digest(network, a)[:6])
	end[0] = end[0]&^1 | 2
	end[5] &^= 1
	host = end.String()
	end[5] |= 1
	return host, end.String()
}

// alias says for people, and for GC, whose the link is: network, container ID,
// interface, and the pod if it is known.
func alias(r *plugin.Request[Config]) string {
	words := []string{owner, r.Network, r.ContainerID, r.IfName}
	if p := r.Pod.String(); p != "" {
		words = append(words, p)
	}
	const most = 255 // IFALIASZ-1
	s := strings.Join(words, " ")
	return s[:min(len(s), most)]
}

// networkOf is the network in an alias of ours, or "".
func networkOf(alias string) string {
	words := strings.SplitN(alias, " ", 3)
	if len(words) < 3 || words[0] != owner {
		return ""
	}
	return words[1]
}
