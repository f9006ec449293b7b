// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package lease

import (
	"slices"
	"strings"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
)

// DefaultPool is the name of the pool that the top-level keys configure. It serves
// whom no other pool serves.
const DefaultPool = "default"

// AnnotationPool is the annotation by which a pod asks for a pool. The runtime hands
// annotations on where the plugin declares the capability
// io.kubernetes.cri.pod-annotations.
const AnnotationPool = "cni-ipvlan-vpc-k8s/pool"

// CodePoolRefused is the CNI error code of an ADD whose pod may not have the pool that
// it asks for.
const CodePoolRefused = 100

// Policies are those of the pools, the default one first. The Config has been validated.
func (c *Config) Policies() []Policy { return slices.Clone(c.pools) }

// Choose returns the policy of the pool that serves a pod: the one it asks for, if
// that lets its namespace ask; else the one that claims its namespace most narrowly;
// else the default pool.
func (c *Config) Choose(pod plugin.Pod) (Policy, error) {
	if name := c.RuntimeConfig.Annotations[AnnotationPool]; name != "" {
		return c.requested(pod, name)
	}
	return c.serving(pod.Namespace), nil
}

// serving is the pool of a namespace whose pods ask for none.
func (c *Config) serving(namespace string) Policy {
	best, width := c.pools[0], -1
	for _, p := range c.pools[1:] {
		if w := narrowest(p.namespaces, namespace); w > width {
			best, width = p, w
		}
	}
	return best
}

// requested is the pool of that name, if the pod may ask for it.
func (c *Config) requested(pod plugin.Pod, name string) (Policy, error) {
	if name == DefaultPool {
		name = ""
	}
	i := slices.IndexFunc(c.pools, func(p Policy) bool { return p.Pool == name })
	if i < 0 {
		return Policy{}, plugin.Errorf(CodePoolRefused, "use a pool of the node's network configuration: the key pools lists them",
			"pod %s asks for the pool %q: there is none of that name", pod, name)
	}
	p := c.pools[i]
	if c.serving(pod.Namespace).Pool == p.Pool || max(narrowest(p.namespaces, pod.Namespace), narrowest(p.selectable, pod.Namespace)) >= 0 {
		return p, nil
	}
	return Policy{}, plugin.Errorf(CodePoolRefused, "an administrator can add the namespace to selectable of that pool",
		"pod %s asks for the pool %q, which does not let the namespace %s ask", pod, name, pod.Namespace)
}

// narrowest tells how closely the globs match a namespace: by the length of the
// longest that does, a name being closer than any beginning; -1 if none does.
func narrowest(globs []string, namespace string) int {
	width := -1
	for _, g := range globs {
		start, open := strings.CutSuffix(g, "*")
		switch {
		case namespace == "":
		case !open && g == namespace:
			width = len(g) + 1
		case open && strings.HasPrefix(namespace, start):
			width = max(width, len(start))
		}
	}
	return width
}
