// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package egress

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/internal/excerpt"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
)

// The annotations by which pods choose egresses. The runtime passes a pod's annotations to a plugin whose configuration
// declares the capability io.kubernetes.cri.pod-annotations.
const (
	// Annotation names the egresses of a client, with commas in between.
	Annotation = "cni-ipvlan-vpc-k8s/egress"
	// RouterAnnotation names the egress of a router. A pod needs this annotation if the pods of its namespace may be
	// routers of several egresses.
	RouterAnnotation = "cni-ipvlan-vpc-k8s/egress-router"
)

// A role says what a pod is: a router of one egress, a client of some egresses, or neither.
type role struct {
	router string
	client []string // sorted
}

func (r role) isNone() bool { return r.router == "" && len(r.client) == 0 }

// roleOf returns the role of a pod. If the configuration does not permit a request of the pod, the error names this
// request. A router is never a client, even if the router's namespace matches an entry for clients, for example "*". A
// router that asks to be a client gets an error.
func (c *Config) roleOf(pod plugin.Pod) (r role, err error) {
	if !c.mayHaveRole(pod) {
		return r, nil
	}
	if asked := c.RuntimeConfig.Annotations[Annotation]; len(asked) > mostText {
		return r, plugin.Errorf(plugin.CodeRefused, "name each egress once",
			"pod %s: annotation %s has %d bytes: %d are allowed", pod, Annotation, len(asked), mostText)
	}
	if r.router, err = c.egressOfRouter(pod); err != nil || r.router != "" {
		if asked := c.RuntimeConfig.Annotations[Annotation]; err == nil && asked != "" {
			err = plugin.Errorf(plugin.CodeRefused, "remove the annotation, or let the pod run in another namespace",
				"pod %s: annotation %s: %s: the namespace makes the pod a router of the egress %s, and a "+
					"router cannot be a client",
				pod, Annotation, excerpt.Quote(asked), r.router)
		}
		return r, err
	}
	r.client, err = c.egressesOfClient(pod)
	return r, err
}

// mostText is the largest length of a list of egresses, in bytes. A user of Kubernetes writes the list.
const mostText = 4 << 10

// mayHaveRole returns false only if the pod cannot have a role. It does not parse annotations, because a mistake in an
// annotation must not make a DEL fail.
func (c *Config) mayHaveRole(pod plugin.Pod) bool {
	if c.RuntimeConfig.Annotations[Annotation] != "" || c.RuntimeConfig.Annotations[RouterAnnotation] != "" {
		return true
	}
	for _, e := range c.Egresses {
		if plugin.Namespaces(e.Routers).Has(pod.Namespace) || plugin.Namespaces(e.Namespaces).Has(pod.Namespace) {
			return true
		}
	}
	return false
}

func (c *Config) egressOfRouter(pod plugin.Pod) (string, error) {
	var may []string
	for _, name := range slices.Sorted(maps.Keys(c.Egresses)) {
		if plugin.Namespaces(c.Egresses[name].Routers).Has(pod.Namespace) {
			may = append(may, name)
		}
	}
	name, asks := c.RuntimeConfig.Annotations[RouterAnnotation]
	switch {
	case asks && !slices.Contains(may, name):
		return "", c.refusedError(pod, RouterAnnotation, name, `"routers"`)
	case asks:
		return name, nil
	case len(may) > 1:
		return "", plugin.Errorf(plugin.CodeRefused, "give the pod the annotation "+RouterAnnotation+
			" with the name of one egress",
			"pod %s may be a router of the egresses %s: it must choose one", pod, strings.Join(may, ", "))
	}
	return strings.Join(may, ""), nil
}

func (c *Config) egressesOfClient(pod plugin.Pod) (all []string, err error) {
	for _, name := range slices.Sorted(maps.Keys(c.Egresses)) {
		if plugin.Namespaces(c.Egresses[name].Namespaces).Has(pod.Namespace) {
			all = append(all, name)
		}
	}
	for name := range strings.SplitSeq(c.RuntimeConfig.Annotations[Annotation], ",") {
		name = strings.TrimSpace(name)
		e, known := c.Egresses[name]
		switch {
		case name == "" || slices.Contains(all, name):
		case !known || !plugin.Namespaces(e.Selectable).Has(pod.Namespace):
			return nil, c.refusedError(pod, Annotation, name, `"namespaces" or "selectable"`)
		default:
			all = append(all, name)
		}
	}
	slices.Sort(all)
	return all, c.checkDestinations(pod, all)
}

// refusedError returns the error for a pod that asks for an unknown egress, or for an egress that does not allow the
// pod's namespace.
func (c *Config) refusedError(pod plugin.Pod, annotation, name, keys string) error {
	if _, known := c.Egresses[name]; !known {
		return plugin.Errorf(plugin.CodeRefused,
			"use an egress of the node's network configuration: the key \"egress\" has "+
				cmp.Or(strings.Join(slices.Sorted(maps.Keys(c.Egresses)), ", "), "none"),
			"pod %s: annotation %s: no egress has the name %s", pod, annotation, excerpt.Quote(name))
	}
	return plugin.Errorf(plugin.CodeRefused, "add the namespace to the key "+keys+
		" of the egress, in the network configuration of the node",
		"pod %s: annotation %s: the egress %s does not allow pods of the namespace %q", pod, annotation, name,
		pod.Namespace)
}

// checkDestinations refuses egresses with the same destination, because an operator could not know which of them a
// packet uses.
func (c *Config) checkDestinations(pod plugin.Pod, names []string) error {
	for i, one := range names {
		for _, other := range names[i+1:] {
			if d, same := commonDestination(c.Egresses[one], c.Egresses[other]); same {
				return plugin.Errorf(plugin.CodeRefused,
					"let the pod use only one of the two egresses, or give the egresses different destinations",
					"pod %s uses the egresses %s and %s, which both have the destination %s", pod, one, other, d)
			}
		}
	}
	return nil
}
