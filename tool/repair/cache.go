// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package repair

import (
	"encoding/json"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/conf"
)

// A keptADD is the data that a runtime keeps about an ADD.
type keptADD struct{ lease.Kept }

// fillConfig adds to config the values that the runtime passed to a plugin. The runtime passes a value for each
// capability that the plugin declares.
func (t keptADD) fillConfig(capabilities map[string]bool, config any) {
	given := map[string]json.RawMessage{}
	for name, arg := range t.Args {
		if capabilities[name] {
			given[name] = arg
		}
	}
	if text, err := json.Marshal(given); err == nil {
		_ = json.Unmarshal(text, config) // no error: the plugin has read the same values
	}
}

// keptADDs returns, for each attachment to a network, the data that a runtime keeps about this attachment.
func keptADDs(network string) map[registry.Attachment]keptADD {
	all := map[registry.Attachment]keptADD{}
	for _, k := range lease.KeptOf(network) {
		all[k.Lease().Attachment] = keptADD{k}
	}
	return all
}

// addResult returns the plugins' answer to the ADD, or nil if this program cannot read the answer.
func (t keptADD) addResult() *types100.Result {
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

// networkAtADD returns the network with the configuration that it had at the time of the ADD. If the runtime does not
// keep this configuration, networkAtADD returns the argument "present".
func (t keptADD) networkAtADD(present conf.Network) conf.Network {
	list, err := conf.Cached(present.File, t.Config)
	if err != nil {
		return present
	}
	was, err := conf.NetworkOf(list)
	if err != nil {
		return present
	}
	return was
}
