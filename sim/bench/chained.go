// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// connectChained returns a function that connects a pod. The function executes our chained plugins except ipam, which
// needs EC2. furtherKeys are keys for the plugins' configuration.
func connectChained(furtherKeys map[string]any) func(*host, *guest) error {
	return func(h *host, g *guest) error {
		conf := g.pluginConf()
		maps.Copy(conf, furtherKeys)
		return execChain(h, g, conf)
	}
}

// pluginConf returns the configuration of our plugins for a pod. Its prevResult is like the result of ipam.
func (g *guest) pluginConf() map[string]any {
	return map[string]any{
		"cniVersion": "1.0.0", "name": "traffic", "master": "eth1",
		"hostInterface": "eth0", "containerInterface": "eth1", "ipMasq": true,
		"prevResult": map[string]any{
			"cniVersion": "1.0.0",
			"interfaces": []any{map[string]any{"name": "eth1"}},
			"ips": []any{map[string]any{"address": subnetPrefix(g.addr).String(), "gateway": router.String(),
				"interface": 0}},
			"routes": []any{map[string]any{"dst": "10.0.0.0/16", "gw": router.String()}},
		},
	}
}

// connectChainedVeth connects a routed pod by the plugin unnumbered-ptp. The pod's packets go to the subnet's router.
// In EC2 the router forwards packets, but here it does not. So on the host, a neighbour entry maps the router's address
// to the MAC address of the other host's ENI.
func connectChainedVeth(h *host, g *guest) error {
	conf := g.pluginConf()
	conf["prevResult"] = map[string]any{
		"cniVersion": "1.0.0",
		"interfaces": []any{map[string]any{"name": "eth1"}, map[string]any{"name": "eth0", "sandbox": g.Path}},
		"ips": []any{
			map[string]any{"address": hostPrefix(g.addr).String(), "gateway": router.String(), "interface": 1},
			map[string]any{"address": subnetPrefix(h.eni).String(), "interface": 0},
		},
		"routes": []any{map[string]any{"dst": "10.0.0.0/16", "gw": router.String()}},
	}
	if len(h.guests) == 1 {
		far := nl.Neigh{Addr: router, MAC: mac(1-h.number, 3), Dev: "eth1"}
		if err := (nl.Wiring{{NS: h.NS, Object: far}}).Add(); err != nil {
			return err
		}
	}
	return execPlugins(h, g, conf, "cni-ipvlan-vpc-k8s-unnumbered-ptp")
}

// execChain executes the plugins ipvlan and unnumbered-ptp for a pod. If conf has the key egress, it also executes the
// plugin egress. The pod's name is also the name of its Kubernetes namespace.
func execChain(h *host, g *guest, conf map[string]any) error {
	plugins := []string{"cni-ipvlan-vpc-k8s-ipvlan", "cni-ipvlan-vpc-k8s-unnumbered-ptp"}
	if conf["egress"] != nil {
		plugins = append(plugins, "cni-ipvlan-vpc-k8s-egress")
	}
	return execPlugins(h, g, conf, plugins...)
}

// execPlugins executes plugins one after the other. Each plugin gets the result of the previous plugin.
func execPlugins(h *host, g *guest, conf map[string]any, plugins ...string) error {
	for _, plugin := range plugins {
		stdin, err := json.Marshal(conf)
		if err != nil {
			return err
		}
		var out bytes.Buffer
		err = h.Do(func() error {
			c := exec.Command(filepath.Join(h.bin, plugin))
			c.Env = append(os.Environ(), "CNI_COMMAND=ADD", "CNI_CONTAINERID="+g.name, "CNI_NETNS="+g.Path,
				"CNI_IFNAME=eth0", "CNI_PATH="+h.bin,
				"CNI_ARGS=K8S_POD_NAMESPACE="+g.pod+";K8S_POD_NAME="+g.pod)
			c.Stdin, c.Stdout, c.Stderr = bytes.NewReader(stdin), &out, os.Stderr
			return c.Run()
		})
		if err != nil {
			return fmt.Errorf("%s: %w: %s", plugin, err, out.Bytes())
		}
		conf["prevResult"] = json.RawMessage(out.Bytes())
	}
	return nil
}
