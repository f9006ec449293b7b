// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool

import (
	"cmp"
	"fmt"
	"io"
	"slices"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/conf"
)

// The code in this file writes the number of pods as an expression in CEL, for Karpenter and nodeadm. These programs
// launch nodes of many instance types. Both programs know two variables. default_enis is the number of ENIs of the
// default network card. ips_per_eni is the number of IPv4 addresses of an ENI. Karpenter (pkg/cel/environment.go) has
// the functions min and max for two numbers, and refuses a negative result. Nodeadm (nodeadm/doc/examples.md) has only
// the functions of CEL. If a result is not positive, nodeadm uses the number of pods for a node with amazon-vpc-cni-k8s
// instead.

// A format is the output for a program that launches nodes.
type format struct {
	name       string
	number     string   // Printf format for a number of pods
	expression string   // Printf format for an expression
	dialect    *dialect // nil: the program takes only a number

	// resources prints the resources of the command advertise. nil: the format has no resources.
	resources func(w io.Writer, kind string, all []resourceRow)
}

const nodeConfig = "apiVersion: node.eks.aws/v1alpha1\nkind: NodeConfig\nspec:\n  kubelet:\n"

var formats = []format{
	{name: "", number: "%d\n"},
	{name: "karpenter", number: "# of an EC2NodeClass\nspec:\n  kubelet:\n    maxPods: %d\n",
		expression: "# of an EC2NodeClass; with the feature gate NodeClassCEL, in a Karpenter after 1.14\n" +
			"spec:\n  kubelet:\n    maxPods: %q\n", dialect: &dialect{functions: true}},
	{name: "nodeadm", number: nodeConfig + "    config:\n      maxPods: %d\n",
		expression: nodeConfig + "    maxPodsExpression: %q\n", dialect: &dialect{positive: true}},
	{name: "kops", number: "# of an InstanceGroup\nspec:\n  kubelet:\n    maxPods: %d\n"},
	{name: "asg", number: "Key=" + templateTag + "pods,Value=%d\n"},
	{name: "overlay", resources: printOverlay},
	{name: "asg-addresses", resources: printTags},
}

func formatOf(name string) format {
	return formats[slices.IndexFunc(formats, func(f format) bool { return f.name == name })]
}

func formatNames() (names []string) {
	for _, f := range formats[1:] {
		names = append(names, f.name)
	}
	return names
}

// printExpression prints the number of pods for all instance types.
func (n podNode) printExpression(c *cli.Context, f format) error {
	text, err := n.expression(*f.dialect)
	if err != nil {
		return err
	}
	return cli.Answer(c, map[string]string{"expression": text}, func(w io.Writer) {
		fmt.Fprintf(w, f.expression, text)
	})
}

// A dialect says which functions a program adds to CEL, and which results the program accepts.
type dialect struct {
	functions bool // the program has min and max
	positive  bool // the result must not be 0
}

// A term is the sum of a CEL expression and a number. The expression may be "", and the number may be 0.
type term struct {
	cel    string
	number int
}

func number(n int) term { return term{number: n} }

func (t term) String() string {
	switch {
	case t.cel == "":
		return fmt.Sprint(t.number)
	case t.number == 0:
		return t.cel
	case t.number < 0:
		return fmt.Sprintf("%s - %d", t.cel, -t.number)
	}
	return fmt.Sprintf("%s + %d", t.cel, t.number)
}

// operand returns the text of a term for use as an operand. If the text has an operator outside parentheses, operand
// puts the text in parentheses.
func (t term) operand() string {
	text, depth := t.String(), 0
	for _, r := range text {
		switch r {
		case '(':
			depth++
		case ')':
			depth--
		case ' ':
			if depth == 0 {
				return "(" + text + ")"
			}
		}
	}
	return text
}

func plus(a, b term) term {
	sum := term{cmp.Or(a.cel, b.cel), a.number + b.number}
	if a.cel != "" && b.cel != "" {
		sum.cel = a.cel + " + " + b.cel
	}
	return sum
}

func times(a, b term) term {
	switch zero := (term{}); {
	case a == zero || b == zero:
		return zero
	case a.cel == "" && b.cel == "":
		return number(a.number * b.number)
	case a == number(1):
		return b
	}
	return term{cel: a.operand() + " * " + b.operand()}
}

func (d dialect) min(a, b term) term { return d.choose("min", "<", a, b) }

func (d dialect) max(a, b term) term { return d.choose("max", ">", a, b) }

func (d dialect) choose(function, operator string, a, b term) term {
	switch {
	case a.cel == "" && b.cel == "" && (a.number < b.number) == (operator == "<"):
		return a
	case a.cel == "" && b.cel == "":
		return b
	case d.functions:
		return term{cel: fmt.Sprintf("%s(%s, %s)", function, a, b)}
	}
	return term{cel: fmt.Sprintf("(%s %s %s ? %s : %s)", a, operator, b, a, b)}
}

// expression returns a CEL expression for the number of pods, for all instance types with one network card.
func (n podNode) expression(d dialect) (string, error) {
	if err := n.checkExpressible(d); err != nil {
		return "", err
	}
	if !slices.Contains(n.pools[0].Families, lease.IPv4) {
		return number(cmp.Or(n.most, conf.KubeletPods)).String(), nil
	}
	pods := plus(n.worstCasePods(d), number(n.host))
	if n.most > 0 {
		pods = d.min(number(n.most), pods)
	}
	if d.positive && (pods.cel == "" || n.except > 0 || n.warmSum() > 0) && n.host == 0 {
		pods = d.max(pods, number(1))
	}
	return pods.String(), nil
}

// checkExpressible returns an error if no expression in this dialect can give the right number for all networks.
func (n podNode) checkExpressible(d dialect) error {
	first := n.pools[0]
	for _, p := range n.pools[1:] {
		switch {
		case p.MaxENIs != first.MaxENIs:
			return n.differError("maxENIs")
		case (p.MinIndex == 0) != (first.MinIndex == 0):
			return n.differError("interfaceIndex")
		case p.Provision != first.Provision:
			return n.differError("provision")
		case slices.Contains(p.Families, lease.IPv4) != slices.Contains(first.Families, lease.IPv4):
			return n.differError("ipFamilies")
		}
	}
	if first.Provision == lease.ProvisionNone && d.functions {
		return cli.Hint(
			fmt.Errorf(`%s: with "provision": "none", no expression fits Karpenter, because the node's addresses `+
				`come from its EC2NodeClass and not from a launch template`, n.path),
			"set kubelet.maxPods of the EC2NodeClass to 16 times ipPrefixCount, or use "+
				`"provision": "full" or "assign"`)
	}
	return nil
}

// differError returns the error that the networks have different values of a key.
func (n podNode) differError(key string) error {
	return cli.Hint(
		fmt.Errorf("%s: its networks have different values of %s, and an expression does not know how many pods each "+
			"network has", n.path, key),
		"give one conflist with --config FILE, or one type with --instance-type TYPE")
}

// warmSum returns how many free addresses the pools keep for their own pods. With only one pool, it returns 0, because
// all pods can get the pool's addresses.
func (n podNode) warmSum() (sum int) {
	if len(n.pools) > 1 {
		for _, p := range n.pools {
			sum += p.Warm.Min
		}
	}
	return sum
}

// worstCasePods returns how many pods get an address if the pods are distributed over the pools in the worst way (see
// [more.Pods]). It does not count free addresses that pools keep for their own pods.
func (n podNode) worstCasePods(d dialect) term {
	pools := n.pools
	if pools[0].Provision == lease.ProvisionNone {
		pools = pools[:1] // all ENIs of a launch template belong to one pool
	}
	others := len(pools) - 1
	pods := n.podsBesideBoot(d, pools, others)
	isDefault := func(p lease.Policy) bool { return p.Pool == "" }
	if i := slices.IndexFunc(pools, isDefault); i >= 0 && pools[0].MinIndex == 0 {
		pods = plus(n.podsOnBootENI(pools[i]), pods)
		if others > 0 { // a worse case: no pod uses the default pool, so the boot ENI serves no pod
			pods = d.min(pods, n.podsBesideBoot(d, slices.Delete(slices.Clone(pools), i, i+1), others-1))
		}
	}
	if w := n.warmSum(); w > 0 {
		pods = d.max(plus(pods, number(-w)), number(0))
	}
	return pods
}

// podsBesideBoot returns the number of pods on all ENIs except the boot ENI, in the worst case. In this case, some
// pools have only one pod each, and each of these pools takes a whole ENI. The argument others is the number of these
// pools. All other ENIs belong to the pool whose ENIs serve the fewest pods.
func (n podNode) podsBesideBoot(d dialect, pools []lease.Policy, others int) term {
	enis, each := n.eniCount(d), podsOnENI(pools)
	if others == 0 {
		return times(enis, each)
	}
	rest := d.max(plus(enis, number(-others)), number(0))
	return plus(times(rest, each), d.min(enis, number(others)))
}

// eniCount returns the number of ENIs for pods, without the boot ENI.
func (n podNode) eniCount(d dialect) term {
	all, most := term{cel: "default_enis"}, n.pools[0].MaxENIs
	switch {
	case 0 < most && most <= 1+n.except:
		return number(0)
	case most > 0:
		all = d.min(all, number(most))
	}
	all = plus(all, number(-1-n.except))
	if n.except > 0 {
		all = d.max(all, number(0))
	}
	return all
}

// podsOnENI returns how many pods an ENI serves. If the pools differ, the smallest number counts.
func podsOnENI(pools []lease.Policy) term {
	if slices.ContainsFunc(pools, func(p lease.Policy) bool { return !p.Prefixes }) {
		return term{cel: "ips_per_eni"}
	}
	return term{"(ips_per_eni - 1) * 16", 1}
}

// podsOnBootENI returns how many pods the boot ENI serves. The node itself uses one address. A launch template gives
// this ENI single IPv6 addresses instead of a prefix.
func (n podNode) podsOnBootENI(p lease.Policy) term {
	single := p.Provision == lease.ProvisionNone && slices.Contains(p.Families, lease.IPv6)
	if p.Prefixes && !single {
		return term{cel: "(ips_per_eni - 1) * 16"}
	}
	return term{"ips_per_eni", -1}
}
