// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package lease

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin/nic"
)

// A Permission is an entry of the configuration key "requests": what the pods of some namespaces may ask for.
//
//codec:describe exported
type Permission struct {
	// Kubernetes namespaces of the pods; "name*" means all names that begin with "name"
	Namespaces     []string `json:"namespaces"`
	Subnets        []string `json:"subnets"`        // IDs of the subnets to choose from
	SecurityGroups []string `json:"securityGroups"` // IDs of the security groups to choose from
	// pods may ask for an ENI if it has all of these tags
	ENIs      map[string]string `json:"enis"`
	IPs       bool              `json:"ips"`       // pods may choose addresses
	Takeover  bool              `json:"takeover"`  // the node may take a chosen address from an ended instance
	Exclusive bool              `json:"exclusive"` // pods may ask for whole ENIs
	Max       int               `json:"max"`       // largest number of interfaces of a pod; default: 1
}

// TakesENIs reports whether a pod with this permission can make the node attach an ENI that is in no configured pool.
func (p Permission) TakesENIs(provision Provision) bool {
	made := len(p.Subnets)+len(p.SecurityGroups) > 0 || p.Exclusive
	return provision == ProvisionFull && made || provision != ProvisionNone && len(p.ENIs) > 0
}

func (v *validation) checkPermissions(all []Permission) {
	for i, p := range all {
		v.Within = fmt.Sprintf("requests: %d: ", i+1)
		if v.Namespaces("namespaces", p.Namespaces); len(p.Namespaces) == 0 {
			v.Wrong(`namespaces must be specified: want the Kubernetes namespaces whose pods may ask, or ["*"] for all`)
		}
		v.IDs("subnets", "subnet", p.Subnets)
		v.IDs("securityGroups", "sg", p.SecurityGroups)
		if p.ENIs != nil && len(p.ENIs) == 0 {
			v.Wrong("enis: {}: want the tags of the ENIs for which pods may ask, because otherwise pods could ask " +
				"for any ENI of the account")
		}
		if p.Takeover && !p.IPs {
			v.Wrong(`takeover: true: want "ips": true, too, because "takeover" is only for addresses that pods choose`)
		}
		if p.Max < 0 {
			v.Wrong("max: %d: want 1 or more, or 0, which means 1", p.Max)
		}
	}
	v.Within = ""
}

// isFor reports whether the permission is for the Kubernetes namespace of the pod.
func (p Permission) isFor(pod plugin.Pod) bool {
	return slices.Contains(p.Namespaces, "*") || plugin.Namespaces(p.Namespaces).Has(pod.Namespace)
}

// checkRequests returns an error if the permission does not allow the pod's requests.
func (p Permission) checkRequests(asked []nic.Request) error {
	if most := max(p.Max, 1); len(asked) > most {
		return fmt.Errorf(`%d interfaces: "max" in "requests" is %d`, len(asked), most)
	}
	for i, r := range asked {
		if err := p.checkRequest(r); err != nil {
			return fmt.Errorf("interface %d: %w", i+1, err)
		}
	}
	return nil
}

func (p Permission) checkRequest(r nic.Request) error {
	lacking := func(of []string) func(string) bool { return func(v string) bool { return !slices.Contains(of, v) } }
	group := slices.IndexFunc(r.SecurityGroups, lacking(p.SecurityGroups))
	switch {
	case r.Subnet != "" && !slices.Contains(p.Subnets, r.Subnet):
		return fmt.Errorf("subnet: %s: allowed are %s", r.Subnet, listText(p.Subnets))
	case group >= 0:
		return fmt.Errorf("securityGroups: %s: allowed are %s", r.SecurityGroups[group], listText(p.SecurityGroups))
	case len(r.Addrs) > 0 && !p.IPs:
		return fmt.Errorf(`ip: %s: "ips" in "requests" is not true`, r.Addrs[0])
	case r.ENI != "" && len(p.ENIs) == 0:
		return fmt.Errorf("eni: %s: there is no key \"enis\" in \"requests\"", r.ENI)
	case r.Exclusive && !p.Exclusive:
		return errors.New(`exclusive: true: "exclusive" in "requests" is not true`)
	}
	return nil
}

// listText formats the allowed values, to show them to people.
func listText(values []string) string { return cmp.Or(strings.Join(values, ", "), "none") }
