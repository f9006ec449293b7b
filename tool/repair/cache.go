// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package repair

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/conf"
)

// Caches are where runtimes, and Multus, keep for the DEL what they have told the plugins in the ADD, and what these answered (libcni,
// getCacheFilePath). A file is there from the end of a successful ADD to the end of the DEL. Only root can write there.
var Caches = []string{"/var/lib/cni/results", "/var/lib/cni/multus/results"}

// A told is what a runtime keeps of an ADD (libcni, cachedInfo).
type told struct {
	Kind        string                     `json:"kind"`
	ContainerID string                     `json:"containerId"`
	Config      []byte                     `json:"config"`
	IfName      string                     `json:"ifName"`
	Network     string                     `json:"networkName"`
	NetNS       string                     `json:"netns"` // libcni before 1.2 does not keep it
	CNIArgs     [][2]string                `json:"cniArgs"`
	Args        map[string]json.RawMessage `json:"capabilityArgs"`
	Result      json.RawMessage            `json:"result"`
}

// attachment is the key of the attachment.
func (t told) attachment() registry.Attachment {
	return registry.Attachment{ContainerID: t.ContainerID, IfName: t.IfName}
}

// lease is what the registry would have of the attachment.
func (t told) lease() registry.Lease {
	l := registry.Lease{Key: registry.Key{Network: t.Network, Attachment: t.attachment()}, NetNS: t.NetNS}
	for _, arg := range t.CNIArgs {
		switch arg[0] {
		case "K8S_POD_NAMESPACE":
			l.PodNamespace = arg[1]
		case "K8S_POD_NAME":
			l.PodName = arg[1]
		}
	}
	return l
}

// ask fills in what the runtime gives the plugins for their capabilities.
func (t told) ask(capabilities map[string]bool, config any) {
	given := map[string]json.RawMessage{}
	for name, arg := range t.Args {
		if capabilities[name] {
			given[name] = arg
		}
	}
	if text, err := json.Marshal(given); err == nil {
		_ = json.Unmarshal(text, config) // what the plugin could not read, the ADD has refused
	}
}

// tolds reads what runtimes keep of the attachments to a network.
func tolds(network string) map[registry.Attachment]told {
	all := map[registry.Attachment]told{}
	for _, dir := range Caches {
		entries, _ := os.ReadDir(dir) // without the directory, no runtime has told anything
		for _, e := range entries {
			if !strings.HasPrefix(e.Name(), network+"-") {
				continue
			}
			b, err := os.ReadFile(filepath.Join(dir, e.Name()))
			var t told
			if err == nil && json.Unmarshal(b, &t) == nil && t.Kind == "cniCacheV1" && t.Network == network {
				all[t.attachment()] = t
			}
		}
	}
	return all
}

// result is the plugins' answer to the ADD, or nil if nobody can read it.
func (t told) result() *types100.Result {
	var head struct {
		CNIVersion string `json:"cniVersion"`
	}
	if json.Unmarshal(t.Result, &head) != nil || head.CNIVersion == "" {
		return nil
	}
	r, err := version.NewResult(head.CNIVersion, t.Result)
	if err != nil {
		return nil
	}
	added, err := types100.NewResultFromResult(r)
	if err != nil {
		return nil
	}
	return added
}

// network is the network as the ADD had it, or as it is now if the runtime does not keep that.
func (t told) network(now conf.Network) conf.Network {
	var list conf.List
	if json.Unmarshal(t.Config, &list) != nil {
		return now
	}
	was, err := conf.NetworkOf(list, now.File)
	if err != nil {
		return now
	}
	return was
}
