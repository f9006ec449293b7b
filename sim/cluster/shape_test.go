// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package cluster_test

import (
	"encoding/json"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/cluster"
)

// These are shapes of the first two nodes. By default, these nodes have our single plugin, with the conflist for
// hostPorts.
const threePlugins, bothFamilies = "three plugins", "both families"

// shaped returns the options of the first two nodes. With bothFamilies, their conflist also has the keys that some
// specs need.
func shaped(t *testing.T) cluster.NodeOptions {
	t.Helper()
	switch *shape {
	case "":
		return cluster.NodeOptions{Conflist: conflist(t, "portmap")}
	case threePlugins:
		return cluster.NodeOptions{Conflist: chained(t)}
	case bothFamilies:
		return cluster.NodeOptions{IPv6: 1, Conflist: edited(t, "portmap", object{
			"ipFamilies": []string{"IPv4", "IPv6"}, "hostCidrs": []string{"fd00:20::/112"},
			"keepCaller": true, "serviceLoop": "masquerade"})}
	}
	t.Fatalf("-shape %q: there is no such shape", *shape)
	return cluster.NodeOptions{}
}

// chained returns the conflist for hostPorts, with the three plugins instead of the single plugin.
func chained(t *testing.T) []byte {
	t.Helper()
	var three, host object
	check(t, json.Unmarshal(conflist(t, "three-plugins"), &three))
	check(t, json.Unmarshal(conflist(t, "portmap"), &host))
	plugins, hosts := three["plugins"].([]any), host["plugins"].([]any)
	plugins[2].(object)["nodePorts"] = hosts[0].(object)["nodePorts"]
	three["plugins"] = append(plugins, hosts[1])
	return must(json.Marshal(three))
}

func named() string {
	if *shape == "" {
		return ""
	}
	return ", " + *shape
}
