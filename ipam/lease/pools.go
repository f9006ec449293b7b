// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package lease

import (
	"cmp"
	"slices"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/internal/excerpt"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
)

// DefaultPool is the name of the pool that the keys at the top level of the configuration describe. It serves all pods
// that no other pool serves.
const DefaultPool = "default"

// AnnotationPool is the annotation by which a pod asks for a pool. The runtime passes annotations to the plugin if the
// configuration declares the capability io.kubernetes.cri.pod-annotations.
const AnnotationPool = "cni-ipvlan-vpc-k8s/pool"

// Policies returns the policies of the pools. The policy of the default pool is first. The caller must have called
// Validate before.
func (c *Config) Policies() []Policy { return slices.Clone(c.pools) }

// Choose returns the policy of the pool that serves a pod. If the pod asks for a pool, this pool serves the pod.
// Otherwise, the pool with the most precise entry for the pod's namespace serves the pod. If no pool has an entry for
// the namespace, the default pool serves the pod. If the namespace has no permission to ask for the pool, Choose
// returns an error.
func (c *Config) Choose(pod plugin.Pod) (Policy, error) {
	if name := c.RuntimeConfig.Annotations[AnnotationPool]; name != "" {
		return c.requestedPool(pod, name)
	}
	return c.servingPool(pod.Namespace), nil
}

// Routed returns the names of the pools whose "dataPath" is "veth", and the names of the pools whose "dataPath" is
// "ipvlan". The caller must have called Validate before.
func (c *Config) Routed() (veth, ipvlan []string) {
	for _, p := range c.pools {
		name := cmp.Or(p.Pool, DefaultPool)
		if p.Routed {
			veth = append(veth, name)
		} else {
			ipvlan = append(ipvlan, name)
		}
	}
	return veth, ipvlan
}

// servingPool returns the policy of the pool that serves a namespace's pods if they ask for no pool.
func (c *Config) servingPool(namespace string) Policy {
	best, width := c.pools[0], -1
	for _, p := range c.pools[1:] {
		if w := plugin.Namespaces(p.namespaces).Narrowest(namespace); w > width {
			best, width = p, w
		}
	}
	return best
}

// requestedPool returns the policy of the pool with this name, if the pod may ask for this pool.
func (c *Config) requestedPool(pod plugin.Pod, name string) (Policy, error) {
	if name == DefaultPool {
		name = ""
	}
	i := slices.IndexFunc(c.pools, func(p Policy) bool { return p.Pool == name })
	if i < 0 {
		return Policy{}, plugin.Errorf(plugin.CodeRefused,
			"use a pool of the node's network configuration: the key \"pools\" lists them",
			"pod %s asks for the pool %s, but no pool has that name", pod, excerpt.Quote(name))
	}
	p := c.pools[i]
	if c.servingPool(pod.Namespace).Pool == p.Pool || plugin.Namespaces(p.namespaces).Has(pod.Namespace) ||
		plugin.Namespaces(p.selectable).Has(pod.Namespace) {
		return p, nil
	}
	return Policy{}, plugin.Errorf(plugin.CodeRefused,
		"add the namespace to the key \"selectable\" of that pool, in the network configuration of the node",
		"pod %s asks for the pool %q, which does not allow the namespace %s to ask for it", pod, name, pod.Namespace)
}
