// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package repair

import (
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/conf"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/view"
	ptp "github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/unnumbered-ptp"
)

// Caches are where runtimes, and Multus, keep for the DEL what they have told the plugins in the ADD (libcni, getCacheFilePath).
var Caches = []string{"/var/lib/cni/results", "/var/lib/cni/multus/results"}

// limited is the configuration of a pod's pair with the limits of its bandwidth. Neither the conflist nor the registry has
// them: they are annotations of the pod, which the runtime reads.
func limited(n conf.Network, l registry.Lease) ptp.Config {
	c := n.Pair
	if !n.Limits {
		return c
	}
	for _, dir := range Caches {
		var told struct {
			Args json.RawMessage `json:"capabilityArgs"`
		}
		b, err := os.ReadFile(filepath.Join(dir, n.Name+"-"+l.ContainerID+"-"+l.IfName))
		if err != nil || json.Unmarshal(b, &told) != nil {
			continue
		}
		if told.Args == nil || json.Unmarshal(told.Args, &c.RuntimeConfig) == nil {
			return c
		}
	}
	slog.Warn("the runtime does not tell the limits of a pod's bandwidth, so its veth pair has none: if the pod needs them, delete it", "pod", view.Owner(l))
	return n.Pair
}
