// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/book"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/more"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/conf"
)

// The code in this file counts the addresses that a node offers to the scheduler. These are the addresses that the node
// has for pods, and the addresses that EC2 can still give. If a node offers too many addresses, the node gets pods
// whose sandbox fails until an address is free. If a node offered fewer addresses than are leased, a kubelet would
// reject running pods when it restarts. So a node always offers at least the leased addresses. If it is not known
// whether EC2 can give an address, the address counts as offered.

// Resource is the extended resource of the default pool. The resource of another pool is named Resource-POOL.
const Resource = "cni-ipvlan-vpc-k8s/addresses"

// resourceName matches the names of resources, without the prefix (Kubernetes documentation, "Extended resources").
var resourceName = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$`)
})

// resourceOf returns the name of the resource of a pool. ok reports whether Kubernetes allows this name.
func resourceOf(pool string) (name string, ok bool) {
	if pool == "" {
		return Resource, true
	}
	return Resource + "-" + pool, resourceName().MatchString("addresses-" + pool)
}

// An offerRow is a resource of a node, with its number and the parts of this number.
type offerRow struct {
	Resource string `json:"resource"`
	Number   int    `json:"number"`   // leased + free + more + cooling - reserved, but at least leased
	Leased   int    `json:"leased"`   // addresses that pods have
	Free     int    `json:"free"`     // addresses that the next pods can get at once
	More     int    `json:"more"`     // addresses that EC2 can still give
	Cooling  int    `json:"cooling"`  // addresses that no pod gets yet, because they were used a short time ago
	Reserved int    `json:"reserved"` // addresses not offered: the highest number of cooling addresses within --window
}

// offerRows returns a row for each pool of this node.
func offerRows(c *cli.Context) ([]offerRow, error) {
	n, err := countedNodeOf(c)
	if err != nil {
		return nil, err
	}
	defer n.pool.Close()
	subnets, err := n.currentSubnets(c.Context)
	if err != nil {
		return nil, err
	}
	rows, cooling := []offerRow{}, map[string]int{}
	for _, p := range n.pools {
		name, ok := resourceOf(p.Pool)
		if !ok {
			slog.Warn("Kubernetes allows no resource of this name, so the command does not advertise this pool: "+
				"rename the pool", "pool", p.Pool, "resource", name)
			continue
		}
		o := more.OfferOf(n.state, p, n.except, subnets)
		cooling[name] = o.Cooling
		rows = append(rows, offerRow{Resource: name, Leased: o.Leased, Free: o.Free, More: o.More, Cooling: o.Cooling})
	}
	most, err := mostCooling(n.pool.Registry, cooling, c.Duration("window"), c.Bool("dry-run"))
	if err != nil {
		return nil, err
	}
	for i := range rows {
		r := &rows[i]
		r.Reserved = most[r.Resource]
		r.Number = r.Leased + max(r.Free+r.More+r.Cooling-r.Reserved, 0)
	}
	return rows, nil
}

// A countedNode is the node whose addresses the command advertise counts.
type countedNode struct {
	pool   *ipam.Pool
	state  *registry.State
	pools  []lease.Policy
	except int // number of ENIs not to count, because they are for pods that ask for ENIs
}

// countedNodeOf reads the configuration and the registry. If the registry is empty, countedNodeOf rebuilds the
// registry. countedNodeOf cannot leave this to the first ADD, because the scheduler sends no pod to a node that has
// advertised no number.
func countedNodeOf(c *cli.Context) (n countedNode, err error) {
	conflists := conf.Load(c.String("config"))
	networks, err := conflists.All()
	if err != nil {
		return n, err
	}
	var takes bool
	if n.pools, takes = poolsOf(networks); takes {
		n.except = 1
	}
	for i := range n.pools {
		n.pools[i].ReuseWait = conflists.ReuseWait(n.pools[i].Pool)
	}
	if _, err = cli.ViewRegistry(); err != nil {
		return n, err
	}
	if n.pool, err = cli.OpenPool(n.pools[0]); err != nil {
		return n, err
	}
	if n.state, err = n.knownState(c.Context); err != nil {
		n.pool.Close()
	}
	return n, err
}

// knownState returns the state of the registry. It first rebuilds a registry that is empty or of another instance. If
// the node gets addresses from EC2, it also asks EC2 for missing limits of the instance type.
func (n countedNode) knownState(ctx context.Context) (*registry.State, error) {
	if err := n.pool.OfThisInstance(ctx); err != nil {
		return nil, err
	}
	if n.grows() {
		return n.pool.DescribeInstance(ctx)
	}
	s, err := n.pool.Registry.View()
	if err != nil || !lease.Unknown(s) {
		return s, err
	}
	if err := n.pool.Learn(ctx); err != nil {
		return nil, err
	}
	return n.pool.Registry.View()
}

func (n countedNode) grows() bool {
	return slices.ContainsFunc(n.pools, func(p lease.Policy) bool { return p.Provision != lease.ProvisionNone })
}

// How old EC2's last description of the subnets may be. scarceSubnetsMaxAge is for a node whose subnets limit how many
// addresses the node can get. subnetsMaxAge is for all other nodes. All nodes of an account share EC2's limit for
// describe calls.
const (
	scarceSubnetsMaxAge = 10 * time.Minute
	subnetsMaxAge       = time.Hour
)

// currentSubnets returns EC2's last description of the subnets, with their numbers of free addresses. currentSubnets
// asks EC2 again if this description is too old. It also asks again if the subnets limit the node, and an ENI has got
// addresses after this description. If EC2 does not answer, the old description counts. If the role does not permit the
// EC2 call, the result is nil: the subnets then count as large enough.
func (n countedNode) currentSubnets(ctx context.Context) ([]aws.Subnet, error) {
	if !n.grows() {
		return nil, nil
	}
	last, asked := n.pool.LastSubnets(n.state)
	if age := time.Since(asked); !asked.IsZero() && age < subnetsMaxAge+jitter(subnetsMaxAge) &&
		!(n.limitedBySubnets(last) && (n.grownSince(asked) || age >= scarceSubnetsMaxAge+jitter(scarceSubnetsMaxAge))) {
		return last, nil
	}
	const moment = 5 * time.Second
	ctx, cancel := context.WithTimeout(ctx, moment)
	defer cancel()
	all, err := n.pool.DescribeSubnets(ctx, book.VPCOf(n.state), n.state.Instance.Zone)
	switch {
	case err == nil:
		return slices.Concat([]aws.Subnet{}, all), nil
	case aws.NotAllowed(err):
		slog.Warn("the role of the instance does not allow ec2:DescribeSubnets, so this command assumes that "+
			"the subnets have enough addresses", "error", err)
		return nil, nil
	case !asked.IsZero():
		slog.Warn("EC2 does not describe the subnets, so this command uses EC2's last description",
			"described", asked, "error", err)
		return last, nil
	}
	return nil, fmt.Errorf("ask EC2 how many free addresses the subnets have: %w", err)
}

// limitedBySubnets reports whether the subnets limit how many addresses a pool can get.
func (n countedNode) limitedBySubnets(subnets []aws.Subnet) bool {
	return slices.ContainsFunc(n.pools, func(p lease.Policy) bool {
		return more.OfferOf(n.state, p, n.except, subnets).Bounded
	})
}

// grownSince reports whether an ENI has got addresses after t.
func (n countedNode) grownSince(t time.Time) bool {
	for _, e := range n.state.ENIs {
		if e.Grown.After(t) {
			return true
		}
	}
	return false
}

// coolingsFile is the name of a file in the registry's directory. The file has the coolingSamples of the last runs.
const coolingsFile = "advertised.json"

// A coolingSample has the numbers of addresses that cooled at the time of a run.
type coolingSample struct {
	Boot    string         // ID of the boot of the machine
	Up      time.Duration  // time since that boot, from a clock that no process can set
	Cooling map[string]int // number of addresses, by resource
}

// mostCooling returns, for each resource, the highest number of addresses that cooled at the same time. It looks at
// this run and at earlier runs within the window. The argument "now" has the numbers of this run. If dryRun is false,
// mostCooling records the numbers of this run.
func mostCooling(
	r *registry.Registry, now map[string]int, window time.Duration, dryRun bool,
) (map[string]int, error) {
	var samples []coolingSample
	if b, err := r.Kept(coolingsFile); err == nil && json.Unmarshal(b, &samples) != nil {
		samples = nil // a damaged file counts as empty
	}
	boot, up := registry.BootID(), registry.Uptime()
	samples = slices.DeleteFunc(samples, func(s coolingSample) bool {
		return s.Boot != boot || s.Up > up || up-s.Up > window
	})
	samples = append(samples, coolingSample{boot, up, now})
	most := map[string]int{}
	for _, s := range samples {
		for name, n := range s.Cooling {
			most[name] = max(most[name], n)
		}
	}
	if dryRun {
		return most, nil
	}
	b, err := json.Marshal(samples)
	if err == nil {
		err = r.Keep(coolingsFile, b)
	}
	return most, err
}
