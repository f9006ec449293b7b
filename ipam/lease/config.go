// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package lease

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin/nic"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// A Config is the plugin's part of a network configuration.
//
//codec:describe exported
type Config struct {
	PoolConfig // the keys of the pool "default"
	nic.Asked  // what a pod asks for

	InterfaceIndex  int      `json:"interfaceIndex"`  // lowest device index of an ENI for pods; 0: also the boot ENI
	RouteToVPCPeers bool     `json:"routeToVpcPeers"` // pods have routes through the ENI to the CIDRs of peered VPCs
	RouteToCIDRs    []string `json:"routeToCidrs"`    // pods also have routes through the ENI to these CIDRs

	IPFamilies []string              `json:"ipFamilies"` // families of a pod's addresses: IPv4, IPv6; default: [IPv4]
	Pools      map[string]PoolConfig `json:"pools"`      // further pools, by name
	// what the node may ask of EC2: full, assign (no new ENIs) or none; default: full
	Provision string `json:"provision"`
	// largest number of ENIs of the instance, including the boot ENI; 0: as many as it can have
	MaxENIs int `json:"maxENIs"`
	// largest number of pods of the node: the node keeps no address ready for more pods; 0: no limit
	MaxPods    int                `json:"maxPods"`
	AddTimeout *int               `json:"addTimeout"` // seconds that an ADD may take; default: 60
	LeaseLog   *registry.LeaseLog `json:"leaseLog"`   // a file with start and end of each lease; default: no file

	Permissions []Permission `json:"requests"` // which pods may ask for which interfaces; empty: no pod may ask

	pools []Policy // the default pool first
}

// A PoolConfig has the keys in which pools can differ. If a pool has no value for a key, the pool has the default
// pool's value.
//
//codec:describe
type PoolConfig struct {
	// the subnet of a new ENI must have all of these tags
	SubnetTags       map[string]string `json:"subnetTags"`
	SecGroupIDs      []string          `json:"secGroupIds"`      // security groups of a new ENI
	SkipDeallocation *bool             `json:"skipDeallocation"` // never unassign an address; true if provision is none
	ReuseIPWait      *int              `json:"reuseIPWait"`      // seconds before an address is used again; default: 60
	// smallest number of addresses to ask EC2 for; default: 1; 0: as many as fit
	IPBatchSize      *int              `json:"ipBatchSize"`
	PrefixDelegation *bool             `json:"prefixDelegation"` // ask for /28 prefixes instead of addresses
	ENITags          map[string]string `json:"eniTags"`          // further tags of a new ENI
	Warm             *registry.Warm    `json:"warm"`             // smallest and largest number of free addresses

	// how packets of a pod reach its ENI: ipvlan or veth; default: ipvlan
	DataPath string `json:"dataPath"`

	// timeouts of a new ENI; 0: the timeout of the boot ENI
	ConnectionTracking *registry.Tracking `json:"connectionTracking"`

	// the pool serves the pods of these Kubernetes namespaces; "name*" means all names that begin with "name"
	Namespaces []string `json:"namespaces"`
	Selectable []string `json:"selectable"` // further namespaces, whose pods may ask for this pool
}

// withDefaults returns c with the values of base for all keys that c does not have.
func (c PoolConfig) withDefaults(base PoolConfig) PoolConfig {
	if c.SubnetTags == nil {
		c.SubnetTags = base.SubnetTags
	}
	if c.SecGroupIDs == nil {
		c.SecGroupIDs = base.SecGroupIDs
	}
	if c.ENITags == nil {
		c.ENITags = base.ENITags
	}
	c.SkipDeallocation = cmp.Or(c.SkipDeallocation, base.SkipDeallocation)
	c.ReuseIPWait = cmp.Or(c.ReuseIPWait, base.ReuseIPWait)
	c.IPBatchSize = cmp.Or(c.IPBatchSize, base.IPBatchSize)
	c.PrefixDelegation = cmp.Or(c.PrefixDelegation, base.PrefixDelegation)
	c.Warm = cmp.Or(c.Warm, base.Warm)
	c.DataPath = cmp.Or(c.DataPath, base.DataPath)
	c.ConnectionTracking = cmp.Or(c.ConnectionTracking, base.ConnectionTracking)
	return c
}

// A Policy is the validated configuration of a pool.
type Policy struct {
	Pool string // the pool's name; empty: the default pool
	// the node can have several pools, configured or derived, so only the tags of an ENI show its pool
	Pools          bool
	MinIndex       int
	Families       []Family
	SubnetTags     map[string]string
	SecurityGroups []string
	Keep           bool // never unassign addresses
	Peers          bool
	Routes         []netip.Prefix
	ReuseWait      time.Duration
	Batch          int // 0: as many as fit
	Prefixes       bool
	Provision      Provision
	AnyMakesENIs   bool // a network of the node may create ENIs, although Provision is not full: see Common
	Changes        bool // a network of the node may change something in EC2, although Provision is none: see Common
	MaxENIs        int  // 0: the instance type's limit
	MaxPods        int  // 0: no limit
	Tags           map[string]string
	Warm           registry.Warm
	Tracking       registry.Tracking
	Routed         bool // pods have a routed veth pair instead of a slave of the ENI
	Timeout        time.Duration
	Log            registry.LeaseLog
	Choice         Choice // what the pod has chosen

	namespaces, selectable []string
	requests               []map[string]string  // tags of the ENIs for which pods may ask
	onRequest              []registry.OnRequest // the requests of all networks of the node: see Heed
}

// A Family is IPv4 or IPv6.
type Family = nl.Family

// The families that a pod's addresses may have.
const (
	IPv4 = nl.IPv4
	IPv6 = nl.IPv6
)

// Provision says what the node may ask of EC2.
type Provision string

const (
	ProvisionFull   Provision = "full"   // addresses and ENIs
	ProvisionAssign Provision = "assign" // addresses on existing ENIs
	ProvisionNone   Provision = "none"   // nothing: a launch template has added all ENIs and addresses
)

// The values of dataPath.
const (
	byIPVlan = "ipvlan"
	byVeth   = "veth"
)

// maxTimeout is the largest addTimeout, in seconds. With this limit, an ADD ends before the deadline of package plugin.
// The runtimes' deadlines are even later.
const maxTimeout = int(registry.MostWait / time.Second)

// maxReuseWait is the largest reuseIPWait, in seconds: a day.
const maxReuseWait = 86400

// Validate sets the defaults, and returns all mistakes together.
func (c *Config) Validate() error {
	v := validation{}
	base := Policy{
		MinIndex:  v.AtLeast("interfaceIndex", &c.InterfaceIndex, 0, 0),
		Families:  v.families(c.IPFamilies),
		Pools:     len(c.Pools)+len(c.Permissions) > 0,
		Peers:     c.RouteToVPCPeers,
		Routes:    v.Prefixes("routeToCidrs", c.RouteToCIDRs),
		Provision: v.provision(c.Provision),
		MaxENIs:   v.AtLeast("maxENIs", &c.MaxENIs, 0, 0),
		MaxPods:   v.AtLeast("maxPods", &c.MaxPods, 0, 0),
		Timeout:   time.Duration(v.Between("addTimeout", c.AddTimeout, 60, 1, maxTimeout)) * time.Second,
		Log:       v.checkLeaseLog(c.LeaseLog),
	}
	for _, p := range c.Permissions {
		if len(p.ENIs) > 0 {
			base.requests = append(base.requests, p.ENIs)
		}
	}
	if len(c.Namespaces)+len(c.Selectable) > 0 {
		v.Wrong("the keys \"namespaces\" and \"selectable\" are allowed only in an entry of \"pools\": the " +
			"top-level keys describe the pool default, which serves all other namespaces")
	}
	c.pools = []Policy{v.poolPolicy("", base, c.PoolConfig)}
	for _, name := range slices.Sorted(maps.Keys(c.Pools)) {
		c.pools = append(c.pools, v.poolPolicy(name, base, c.Pools[name].withDefaults(c.PoolConfig)))
	}
	v.checkNamespaces(c.pools)
	v.checkPermissions(c.Permissions)
	return v.Err()
}

// poolPolicy returns the policy of the pool with this name, from the keys c of this pool. The policy p has the values
// that all pools share.
func (v *validation) poolPolicy(name string, p Policy, c PoolConfig) Policy {
	v.Within = ""
	if name != "" {
		v.Within = "pools: " + name + ": "
	}
	p.Pool = name
	p.SubnetTags, p.SecurityGroups, p.Tags = c.SubnetTags, c.SecGroupIDs, c.ENITags
	// With provision "none", the node could not get an unassigned address again.
	p.Keep = *cmp.Or(c.SkipDeallocation, new(false)) || p.Provision == ProvisionNone
	p.Prefixes = *cmp.Or(c.PrefixDelegation, new(false))
	p.ReuseWait = time.Duration(v.Between("reuseIPWait", c.ReuseIPWait, 60, 0, maxReuseWait)) * time.Second
	p.Batch = v.AtLeast("ipBatchSize", c.IPBatchSize, 1, 0)
	p.Warm = v.warm(c.Warm)
	p.Tracking = v.checkTracking(c.ConnectionTracking)
	v.OneOf("dataPath", cmp.Or(c.DataPath, byIPVlan), byIPVlan, byVeth)
	p.Routed = c.DataPath == byVeth
	p.namespaces, p.selectable = c.Namespaces, c.Selectable
	v.Namespaces("namespaces", p.namespaces)
	v.Namespaces("selectable", p.selectable)
	if p.Provision == ProvisionFull && c.SecGroupIDs == nil {
		v.Wrong("secGroupIds must be specified: want the IDs of the security groups of new ENIs, or [] for the VPC's " +
			"default group. If the node is to create no ENIs, set \"provision\" to \"assign\"")
	}
	if name == DefaultPool {
		v.Wrong("%s is the pool that the top-level keys describe: want another name", DefaultPool)
	}
	return p
}
