// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"errors"
	"fmt"
	"net/netip"
	"time"
)

// A Config is the plugin's part of a network configuration. The keys down to
// ipBatchSize are the original's, with its types and defaults.
type Config struct {
	InterfaceIndex   int               `json:"interfaceIndex"`   // lowest device index whose ENI serves pods; 0: the boot ENI too
	SubnetTags       map[string]string `json:"subnetTags"`       // tags that the subnet of a new ENI must have, all of them
	SecGroupIDs      []string          `json:"secGroupIds"`      // security groups of a new ENI
	SkipDeallocation bool              `json:"skipDeallocation"` // never unassign an address
	RouteToVPCPeers  bool              `json:"routeToVpcPeers"`  // route to the CIDRs of peered VPCs by the ENI
	RouteToCIDRs     []string          `json:"routeToCidrs"`     // route to these by the ENI, too
	ReuseIPWait      *int              `json:"reuseIPWait"`      // seconds before an address is used again; 60
	IPBatchSize      *int              `json:"ipBatchSize"`      // addresses to ask EC2 for at least; 1; 0: as many as fit

	Provision  string            `json:"provision"`  // what may be asked of EC2: full, assign (no new ENIs) or none; full
	MaxENIs    int               `json:"maxENIs"`    // ENIs of the instance at most, the boot ENI included; 0: as many as it can have
	ENITags    map[string]string `json:"eniTags"`    // further tags of a new ENI
	AddTimeout *int              `json:"addTimeout"` // seconds that an ADD may take; 60

	policy Policy
}

// A Policy is a Config that cannot be wrong.
type Policy struct {
	MinIndex       int
	SubnetTags     map[string]string
	SecurityGroups []string
	Keep           bool // never unassign
	Peers          bool
	Routes         []netip.Prefix
	ReuseWait      time.Duration
	Batch          int // 0: as many as fit
	Provision      Provision
	MaxENIs        int // 0: the instance type's limit
	Tags           map[string]string
	Timeout        time.Duration
}

// Provision says what the node may ask of EC2.
type Provision string

const (
	ProvisionFull   Provision = "full"   // addresses and ENIs
	ProvisionAssign Provision = "assign" // addresses on the ENIs that there are
	ProvisionNone   Provision = "none"   // nothing: a launch template has seen to it
)

// maxTimeout keeps an ADD below the skeleton's own deadline, and that below the
// runtimes'.
const maxTimeout = 90

// Validate sets the defaults, and returns every mistake at once, each with the key
// and the value that is wrong and what would be right.
func (c *Config) Validate() error {
	v := validation{}
	c.policy = Policy{
		MinIndex:       v.atLeast("interfaceIndex", &c.InterfaceIndex, 0, 0),
		SubnetTags:     c.SubnetTags,
		SecurityGroups: c.SecGroupIDs,
		Keep:           c.SkipDeallocation,
		Peers:          c.RouteToVPCPeers,
		Routes:         v.prefixes("routeToCidrs", c.RouteToCIDRs),
		ReuseWait:      time.Duration(v.atLeast("reuseIPWait", c.ReuseIPWait, 60, 0)) * time.Second,
		Batch:          v.atLeast("ipBatchSize", c.IPBatchSize, 1, 0),
		Provision:      v.provision(c.Provision),
		MaxENIs:        v.atLeast("maxENIs", &c.MaxENIs, 0, 0),
		Tags:           c.ENITags,
		Timeout:        time.Duration(v.between("addTimeout", c.AddTimeout, 60, 1, maxTimeout)) * time.Second,
	}
	if c.policy.Provision == ProvisionFull && c.SecGroupIDs == nil {
		v.wrong("secGroupIds must be specified: a list of security group IDs for new ENIs (or [], for the VPC's default group; or \"provision\": \"assign\", for none)")
	}
	return errors.Join(v.mistakes...)
}

// A validation collects mistakes.
type validation struct{ mistakes []error }

func (v *validation) wrong(format string, args ...any) {
	v.mistakes = append(v.mistakes, fmt.Errorf(format, args...))
}

// atLeast returns *n, or the default if n is nil.
func (v *validation) atLeast(key string, n *int, otherwise, least int) int {
	if n == nil {
		return otherwise
	}
	if *n < least {
		v.wrong("%s: %d: want %d or more", key, *n, least)
	}
	return *n
}

func (v *validation) between(key string, n *int, otherwise, least, most int) int {
	if n != nil && (*n < least || *n > most) {
		v.wrong("%s: %d: want %d to %d", key, *n, least, most)
		return otherwise
	}
	return v.atLeast(key, n, otherwise, least)
}

func (v *validation) prefixes(key string, texts []string) []netip.Prefix {
	var ps []netip.Prefix
	for _, text := range texts {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			v.wrong("%s: %q: want a CIDR block, for example 10.8.0.0/16", key, text)
			continue
		}
		ps = append(ps, p.Masked())
	}
	return ps
}

func (v *validation) provision(text string) Provision {
	switch p := Provision(text); p {
	case "":
		return ProvisionFull
	case ProvisionFull, ProvisionAssign, ProvisionNone:
		return p
	}
	v.wrong("provision: %q: want full, assign or none", text)
	return ProvisionNone
}
