// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package lease

import (
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// KeptIn are the directories in which runtimes and Multus keep the configuration and the result of each ADD until the
// DEL ends (libcni, getCacheFilePath). Only root can write into these directories.
var KeptIn = []string{"/var/lib/cni/results", "/var/lib/cni/multus/results"}

// A Kept is a file of KeptIn (libcni, cachedInfo).
type Kept struct {
	Kind        string                     `json:"kind"`
	ContainerID string                     `json:"containerId"`
	Config      []byte                     `json:"config"`
	IfName      string                     `json:"ifName"`
	Network     string                     `json:"networkName"`
	NetNS       string                     `json:"netns"` // libcni before 1.2 does not keep the path
	CNIArgs     [][2]string                `json:"cniArgs"`
	Args        map[string]json.RawMessage `json:"capabilityArgs"`
	Result      json.RawMessage            `json:"result"`
}

// Lease returns a lease with the key, the network namespace and the pod of the attachment.
func (k Kept) Lease() registry.Lease {
	at := registry.Attachment{ContainerID: k.ContainerID, IfName: k.IfName}
	l := registry.Lease{Key: registry.Key{Network: k.Network, Attachment: at}, NetNS: k.NetNS}
	for _, arg := range k.CNIArgs {
		switch arg[0] {
		case "K8S_POD_NAMESPACE":
			l.PodNamespace = arg[1]
		case "K8S_POD_NAME":
			l.PodName = arg[1]
		}
	}
	return l
}

// KeptOf reads the runtimes' files about the ADDs of a network: see [Kept]. If network is empty, KeptOf reads the files
// of all networks.
func KeptOf(network string) (all []Kept) {
	for _, dir := range KeptIn {
		entries, _ := os.ReadDir(dir) // without the directory, no runtime keeps anything
		for _, e := range entries {
			if network != "" && !strings.HasPrefix(e.Name(), network+"-") {
				continue
			}
			b, err := os.ReadFile(filepath.Join(dir, e.Name()))
			var k Kept
			if err == nil && json.Unmarshal(b, &k) == nil && k.Kind == "cniCacheV1" &&
				(network == "" || k.Network == network) {
				all = append(all, k)
			}
		}
	}
	return all
}

// hasAddr reports whether the address is in the result of the ADD.
func (k Kept) hasAddr(a netip.Addr) bool {
	type ip struct {
		Address netip.Prefix `json:"address"`
	}
	var result struct {
		IPs []ip `json:"ips"`
	}
	err := json.Unmarshal(k.Result, &result)
	return err == nil && slices.ContainsFunc(result.IPs, func(i ip) bool { return i.Address.Addr() == a })
}
