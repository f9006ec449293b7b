// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package doctor looks for faults that break the network of pods, on a node or in the image of a node. Each check has a
// file of its own, and returns findings. A finding says what is wrong, what the consequences are, and what to do. If a
// repair can do no harm, the finding has a fix.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/conf"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/view"
)

// How bad a finding is.
const (
	severe  = "error"   // the fault breaks pods now or soon
	warning = "warning" // the fault may break pods
	note    = "note"    // the finding only informs the operator
)

// A Finding says what is wrong with a node.
type Finding struct {
	Check    string `json:"check"`
	Severity string `json:"severity"`
	About    string `json:"about"` // a file, a link, an address, an action
	Means    string `json:"means"`
	Do       string `json:"do"`
	Fixed    string `json:"fixed"` // what doctor has done about the finding; "": nothing

	fix    func(context.Context) (did string, err error) // nil: doctor cannot repair the fault, but an operator can
	partly bool                                          // fix does only the first step of Do
}

// A Check looks for findings of one kind. If run returns an error, the check could not be made.
type Check struct {
	Name, About string
	run         func(*Node, context.Context) ([]Finding, error)
	scope       scope
}

// A scope says what a check needs.
type scope int

const (
	ofFiles scope = iota // the files of a system
	ofNode               // also the kernel and the processes of this node
	ofEC2                // also EC2: each call counts against the limits of the account
)

var checks = []Check{
	{"config", "mistakes in the conflist, and files that runtimes read instead of it", (*Node).checkConfig, ofFiles},
	{"plugins", "the plugins: whether they are installed, their versions, and their answers to STATUS",
		(*Node).checkPlugins, ofFiles},
	{"networkd", "systemd-networkd, which removes routes and rules of pods", (*Node).checkNetworkd, ofFiles},
	{"netutils", "amazon-ec2-net-utils, which gives pods' addresses to the node", (*Node).checkNetUtils, ofFiles},
	{"cloudinit", "cloud-init, which gives pods' addresses to the node", (*Node).checkCloudInit, ofFiles},
	{"cloudsetup", "nm-cloud-setup, which gives pods' addresses to the node", (*Node).checkCloudSetup, ofFiles},
	{"ifupdown", "cloud-ifupdown-helper, which starts DHCP on the ENIs of pods", (*Node).checkIfupdown, ofFiles},
	{"nodeadm", "nodeadm of EKS, which starts DHCP on the ENIs of pods", (*Node).checkNodeadm, ofFiles},
	{"manager", "NetworkManager, which configures the ENIs of pods", (*Node).checkManager, ofFiles},
	{"timers", "the units of systemd that run collections and refill pools", (*Node).checkTimers, ofFiles},
	{"kernel", "whether the kernel supports ipvlan and nftables", (*Node).checkKernel, ofNode},
	{"runtime", "releases of containerd that may end a pod without a DEL", (*Node).checkRuntime, ofNode},
	{"neighbors", "the limits of the neighbour table, which all pods share", (*Node).checkNeighbors, ofNode},
	{"conntrack", "the limit of tracked connections", (*Node).checkConntrack, ofNode},
	{"sysctl", "forwarding and the reverse path filter", (*Node).checkSysctls, ofNode},
	{"links", "the state and the MTU of the ENIs' links, and the families of the boot ENI", (*Node).checkLinks, ofNode},
	{"others", "attached ENIs whose addresses no new pod gets", (*Node).checkOthers, ofNode},
	{"addresses", "addresses that are for pods, but that links of the node have", (*Node).checkAddresses, ofNode},
	{"rules", "rules of other programs that catch packets of pods", (*Node).checkRules, ofNode},
	{"leftovers", "objects that ended pods have left behind, and objects that the node or a running pod has lost",
		(*Node).checkLeftovers, ofNode},
	{"answers", "rules that lead the node's packets to pods away from the pods' veths",
		(*Node).checkAnswers, ofNode},
	{"firewall", "filters of other programs that may drop packets that the node forwards for pods",
		(*Node).checkFirewall, ofNode},
	{"policy", "engines for NetworkPolicy that do not restrict some pods of the node", (*Node).checkPolicy, ofNode},
	{"proxy", "the mode of kube-proxy, and the routes to its Services", (*Node).checkProxy, ofNode},
	{"state", "the registry (its file, directory and lock) and the lease log", (*Node).checkState, ofNode},
	{"refusals", "EC2 calls of this node that were refused", (*Node).checkRefusals, ofNode},
	{"agreement", "differences between registry, kernel, metadata and EC2", (*Node).checkAgreement, ofEC2},
	{"endpoint", "the environment variables of runtime, units and doctor that choose how they ask EC2",
		(*Node).checkEndpoint, ofEC2},
	{"iam", "permissions of the role, by dry runs", (*Node).checkIAM, ofEC2},
	{"subnets", "free addresses of the subnets", (*Node).checkSubnets, ofEC2},
	{"egress", "tunnels, routers and clients of egresses", (*Node).checkEgress, ofNode},
	{"tracking", "how long EC2 tracks idle connections of the ENIs", (*Node).checkTracking, ofEC2},
}

// AsksEC2 reports whether the check asks EC2.
func (c Check) AsksEC2() bool { return c.scope == ofEC2 }

// Checks returns all checks of a node, or all checks of an image.
//
// Do not give a Check to a generic function, because the tool would become 29 MB larger. For a type argument, the
// linker assumes that any method of the type may be called through an interface. A Check refers to the AWS SDK's
// client, so the linker would keep all methods of the client.
func Checks(image bool) (all []Check) {
	for _, c := range checks {
		if c.scope == ofFiles || !image {
			all = append(all, c)
		}
	}
	return all
}

// A Node is what the checks examine: this node, the image of a node, or the record of a node.
type Node struct {
	root   string // root directory of an image; "": no image
	file   string // the first conflist; "" if there is none
	binDir string

	conflists *conf.Conflists
	lists     []conf.List // the result of [conf.Conflists.Networked]
	ours      []conf.List // the result of [conf.Conflists.All]

	pool   *ipam.Pool // nil for an image and for a record
	state  *registry.State
	kernel Kernel
	cloud  cloud
	// compares registry, kernel, metadata and EC2
	compare       func(context.Context) (*view.Comparison, error)
	neighborCount func(family string) int // the number of entries in the neighbour table
	now           func() time.Time

	unreached bool // a finding says that this node does not reach EC2
}

// Open reads the data that several checks need. If root is empty, the data is from this node. Otherwise root is the
// root directory of an image. A missing conflist or an unreadable registry is no error, because the checks report it.
func Open(root, config, binDir string) (*Node, error) {
	n := &Node{root: root}
	n.binDir, n.conflists = n.pathOf(binDir), conf.Load(n.pathOf(config))
	n.ours, _ = n.conflists.All() // checkConfig reports mistakes in networks
	n.lists = n.conflists.Networked()
	if files := n.conflists.OurFiles(); len(files) > 0 {
		n.file = files[0].Path
	}
	if n.root != "" {
		return n, nil
	}
	var err error
	if n.pool, err = cli.OpenPool(lease.Policy{}); err != nil {
		return nil, err
	}
	if n.state, err = n.pool.Registry.View(); err != nil {
		n.state = &registry.State{}
	}
	n.kernel, n.cloud, n.neighborCount, n.now = liveKernel{n.pool.Host}, cloudOf(n.pool.Cloud), neighborCount, time.Now
	n.compare = func(ctx context.Context) (*view.Comparison, error) { return view.Compare(ctx, n.pool, n.conflists) }
	return n, nil
}

// A pool is the policy of one pool, with the name of the pool's network.
type pool struct {
	lease.Policy
	network string
}

// poolPolicies returns the pools of all networks.
func (p *Node) poolPolicies() (all []pool) {
	for _, l := range p.ours {
		for _, policy := range l.IPAM.Policies() {
			all = append(all, pool{policy, l.Name})
		}
	}
	return all
}

// Close closes the node's pool, if it has one.
func (p *Node) Close() {
	if p.pool != nil {
		_ = p.pool.Close() // no data can be lost
	}
}

// pathOf returns the path of a file of this node or of the image.
func (p *Node) pathOf(name string) string { return filepath.Join(p.root, name) }

// A Report is the answer of doctor.
type Report struct {
	Errors   int       `json:"errors"` // the number of errors that are not fixed
	Warnings int       `json:"warnings"`
	Checked  []string  `json:"checked"`
	Findings []Finding `json:"findings"`
}

// Examine makes the checks. If fix is true, it also makes the changes that can do no harm. The error is about failed
// changes.
func (p *Node) Examine(ctx context.Context, checks []Check, fix bool) (Report, error) {
	var failed error
	r := reportOf(checks, func(c Check) (found []Finding, made bool) {
		end := cli.Working("check " + c.Name)
		found, err := c.run(p, ctx)
		end()
		if err != nil {
			found = append(found, p.notMade(c, err))
		}
		if fix {
			failed = errors.Join(failed, fixAll(ctx, found))
		}
		return found, true
	})
	return r, failed
}

// reportOf calls makeCheck for each check, and returns the report about the checks that were made.
func reportOf(checks []Check, makeCheck func(Check) (found []Finding, made bool)) Report {
	r := Report{Checked: []string{}, Findings: []Finding{}}
	for _, c := range checks {
		found, made := makeCheck(c)
		if !made {
			continue
		}
		for i := range found {
			found[i].Check = c.Name
		}
		r.Checked = append(r.Checked, c.Name)
		r.Findings = append(r.Findings, found...)
	}
	r.countAndSort()
	return r
}

// notMade returns the finding that a check could not be made. If EC2 refuses the credentials, or if the node does not
// reach EC2, pods that need EC2 will fail. So the finding is an error. Otherwise the finding is a warning. If several
// checks do not reach EC2, only the first of their findings is an error.
func (p *Node) notMade(c Check, err error) Finding {
	f := Finding{Severity: warning, About: c.Name, Means: "this check could not be made: " + err.Error(),
		Do: "correct this error. Then run the check again: " + cli.Name + " doctor --check " + c.Name}
	refused := errors.Is(err, aws.ErrDenied) && !aws.NotAllowed(err) // for example, the credentials have expired
	if refused {
		f.Severity = severe
	}
	if refused || errors.Is(err, aws.ErrNoMetadata) {
		f.Do = aws.Hint(err) + ". Then run the check again: " + cli.Name + " doctor --check " + c.Name
	}
	if !aws.Unreached(err) {
		return f
	}
	if f.Do = `first correct the error "this node does not reach EC2"`; !p.unreached {
		p.unreached = true
		f.Severity, f.Do = severe, aws.Hint(err)
		f.Means = "this node does not reach EC2, so ADDs that find no free address fail, and no address is released. " +
			err.Error()
	}
	return f
}

func fixAll(ctx context.Context, found []Finding) (failed error) {
	for i, f := range found {
		if f.fix == nil {
			continue
		}
		did, err := f.fix(ctx)
		if err == nil {
			found[i].Fixed = did
		}
		failed = errors.Join(failed, err)
	}
	return failed
}

// countAndSort counts the errors and warnings that are not fixed. It sorts the findings by severity, the worst first.
func (r *Report) countAndSort() {
	order := []string{severe, warning, note}
	slices.SortStableFunc(r.Findings, func(a, b Finding) int {
		return slices.Index(order, a.Severity) - slices.Index(order, b.Severity)
	})
	for _, f := range r.Findings {
		switch {
		case f.Fixed != "":
		case f.Severity == severe:
			r.Errors++
		case f.Severity == warning:
			r.Warnings++
		}
	}
}

// Print writes the findings for people.
func (r Report) Print(w io.Writer) {
	for _, f := range r.Findings {
		fmt.Fprintf(w, "%s: %s: %s: %s\n", f.Severity, f.Check, f.About, f.Means)
		if f.Fixed != "" {
			fmt.Fprintf(w, "    fixed: %s\n", f.Fixed)
			continue
		}
		do := f.Do
		switch {
		case f.fix != nil && f.partly:
			do += " (--fix does the first step)"
		case f.fix != nil:
			do += " (--fix does it)"
		}
		fmt.Fprintf(w, "    %s\n", do)
	}
	switch {
	case len(r.Findings) > 0:
	case len(r.Checked) <= fewChecks:
		fmt.Fprintln(w, "nothing is wrong with "+strings.Join(r.Checked, ", "))
	default:
		fmt.Fprintf(w, "ok (%d checks)\n", len(r.Checked))
	}
}

// fewChecks is the maximum number of checks that Print names if there are no findings. If there are more checks, Print
// writes only their number.
const fewChecks = 10
