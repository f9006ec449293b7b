// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package doctor

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin/ipvlan"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/conf"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/view"
)

// slaveConfig returns the configuration of the plugin ipvlan in a network's conflist. checkConfig reports the mistakes
// in this configuration.
func slaveConfig(n conf.List) (c ipvlan.Config) {
	_ = json.Unmarshal(n.Plugin(conf.TypeIPVlan), &c)
	return c
}

// checkSlaves compares the MTU and the mode of pods' links with the pods' conflist. The MTU and the mode can change
// while a pod runs. If an ENI gets a new MTU, all of its slaves get this MTU. If an ENI gets a new slave, all of its
// slaves get the mode of the new slave.
func (p *Node) checkSlaves() (found []Finding, failed error) {
	configs := map[string]ipvlan.Config{}
	for _, n := range p.ours {
		configs[n.Name] = slaveConfig(n)
	}
	seen := map[registry.Key]bool{}
	for _, l := range p.state.Leases.All() {
		config, known := configs[l.Network]
		if !known || l.NIC > 0 || l.NetNS == "" || seen[l.Key] {
			continue
		}
		seen[l.Key] = true
		of, err := checkSlave(l, config)
		found, failed = append(found, of...), errors.Join(failed, err)
	}
	return found, failed
}

// checkSlave checks the pod's link of one attachment.
func checkSlave(l registry.Lease, config ipvlan.Config) (found []Finding, err error) {
	pod, err := nl.Open(l.NetNS, l.NetNS)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // the pod has ended, and a collection will end the lease
	}
	if err != nil {
		return nil, err
	}
	defer pod.Close()
	link, err := pod.LinkByName(l.IfName)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	add := func(severity, means, do string, fix func(context.Context) (string, error)) {
		found = append(found, Finding{Severity: severity, About: l.IfName + " of " + view.Owner(l), Means: means,
			Do: do, fix: fix})
	}
	mtu6 := nl.MTU6{Dev: l.IfName}
	if err := mtu6.Check(pod); err != nil {
		add(severe, err.Error(), "run in the pod's network namespace: "+mtu6.String(),
			func(context.Context) (string, error) { return addToPod(l, mtu6) })
	}
	if config.MTU != 0 && link.MTU != config.MTU {
		add(warning, fmt.Sprintf("the link's MTU is %d, but the conflist has %d. Another program has changed the MTU "+
			"of the link or of the ENI, or the conflist is newer than the pod",
			link.MTU, config.MTU), "delete the pod", nil)
	}
	if want := cmp.Or(config.Mode, "l2"); link.Kind == "ipvlan" && link.Mode != want {
		add(warning,
			fmt.Sprintf(
				"the link's mode is %s, but the conflist has %s. The next ADD on this ENI changes the mode of all "+
					"pods on the ENI",
				link.Mode, want),
			"drain the node before you change the key \"mode\". Give networks with different modes ENIs of their "+
				"own", nil)
	}
	return found, nil
}

func addToPod(l registry.Lease, o nl.Object) (string, error) {
	pod, err := nl.Open(l.NetNS, l.NetNS)
	if err != nil {
		return "", err
	}
	defer pod.Close()
	return o.String(), nl.Wiring{{NS: pod, Object: o}}.Add()
}
