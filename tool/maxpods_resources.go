// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool

import (
	"errors"
	"fmt"
	"io"
	"log/slog"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
)

// The code in this file prints the resources that a new node of an instance type will advertise. An autoscaler must
// know them before it launches a node for waiting pods.

// templateTag is the first part of a tag's key. The second part is the name of a resource (Cluster Autoscaler, "Scaling
// a node group to 0" on AWS).
const templateTag = "k8s.io/cluster-autoscaler/node-template/resources/"

// A resourceRow is a resource, and its number on a new node.
type resourceRow struct {
	Resource string `json:"resource"`
	Number   int    `json:"number"`
}

// printResources prints the resources that a new node of the instance type advertises.
func (n podNode) printResources(c *cli.Context, f format) error {
	if n.kind == "" {
		return cli.Misuse(c, "--format %s needs an instance type: add --instance-type TYPE", f.name)
	}
	l, err := n.limits(c)
	if err != nil {
		return err
	}
	rows, err := n.resourceRows(c, l)
	if err != nil {
		return fmt.Errorf("%s: %w", n.path, err)
	}
	return cli.Answer(c, rows, func(w io.Writer) { f.resources(w, n.kind, rows) })
}

// resourceRows returns a row for each pool, with the number of addresses that the pool can have if the other pools have
// no addresses.
func (n podNode) resourceRows(c *cli.Context, l aws.Limits) ([]resourceRow, error) {
	rows := []resourceRow{}
	for _, p := range n.pools {
		name, ok := resourceOf(p.Pool)
		if !ok {
			slog.Warn("Kubernetes allows no resource of this name: rename the pool", "pool", p.Pool, "resource", name)
			continue
		}
		one := n
		one.pools = []lease.Policy{p}
		number, err := one.podsWithAddrs(c, l)
		if err != nil {
			return nil, err
		}
		rows = append(rows, resourceRow{name, number})
	}
	if len(rows) == 0 {
		return nil, errors.New("no pool has a name that Kubernetes allows in a resource")
	}
	return rows, nil
}

// printOverlay prints a NodeOverlay of Karpenter (concepts, "NodeOverlays").
func printOverlay(w io.Writer, kind string, all []resourceRow) {
	fmt.Fprintf(w, `apiVersion: karpenter.sh/v1alpha1
kind: NodeOverlay
metadata:
  name: cni-ipvlan-vpc-k8s.%[1]s
spec:
  requirements:
    - key: node.kubernetes.io/instance-type
      operator: In
      values: [%[1]s]
  capacity:
`, kind)
	for _, r := range all {
		fmt.Fprintf(w, "    %s: %d\n", r.Resource, r.Number)
	}
}

func printTags(w io.Writer, _ string, all []resourceRow) {
	for _, r := range all {
		fmt.Fprintf(w, "Key=%s%s,Value=%d\n", templateTag, r.Resource, r.Number)
	}
}
