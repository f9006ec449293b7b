// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package doctor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/conf"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/view"
)

// A Record is the state of a node at one moment. Except for the checks in onNode and partOnNode, a check finds the same
// faults in a Record as on the node.
type Record struct {
	Made      time.Time
	State     *registry.State
	Conflists *conf.Conflists
	Kernel    *Snapshot
	Cloud     *Answers
	Observed  *view.Observation // nil: registry, kernel, metadata and EC2 were not compared
}

// The reasons why a check cannot be made on a record.
const (
	itsFiles    = "the check reads files of the system, which a bundle does not have"
	itsPods     = "the check looks into the namespaces of pods, or tries operations that only the node can try"
	itsEnv      = "the check reads the environments of processes, which a bundle does not have"
	itsDisk     = "the check looks at the disk and the locks of the node"
	itsLegacy   = "the check reads the tables of iptables-legacy"
	itsOthers   = "the check looks for chains and BPF objects of NetworkPolicy engines, which a bundle does not have"
	itsPrograms = "the check looks at the processes of the node, and executes a program of the node"
)

// onNode has the checks that cannot be made on a record. The value is the reason.
var onNode = map[string]string{"config": itsFiles, "plugins": itsFiles, "networkd": itsFiles, "netutils": itsFiles,
	"cloudinit": itsFiles, "cloudsetup": itsFiles, "ifupdown": itsFiles, "nodeadm": itsFiles, "manager": itsFiles,
	"timers": itsFiles, "kernel": itsPods, "runtime": itsPrograms, "policy": itsOthers, "state": itsDisk,
	"endpoint": itsEnv, "iam": itsPods, "egress": itsPods}

// partOnNode has the checks that can be made only in part on a record. The value is the reason.
var partOnNode = map[string]string{"links": itsPods, "leftovers": itsPods, "firewall": itsLegacy}

// An Unmade is a check that could not be made, or that could be made only in part.
type Unmade struct {
	Check string `json:"check"`
	Why   string `json:"why"`
	Part  bool   `json:"part"` // a part of the check was made
}

// Review makes the checks on a record.
func Review(ctx context.Context, r Record) (Report, []Unmade) {
	n := &Node{conflists: r.Conflists, state: r.State, kernel: r.Kernel, cloud: r.Cloud.recordedCloud(),
		now: func() time.Time { return r.Made }, neighborCount: func(f string) int { return r.Kernel.Neighbours[f] },
		compare: func(context.Context) (*view.Comparison, error) {
			if r.Observed == nil {
				return nil, errors.New("the bundle has no comparison of registry, kernel, metadata and EC2")
			}
			return r.Observed.Compare(r.Conflists.ReuseWait), nil
		}}
	n.ours, _ = n.conflists.All() // the node's own checks have reported mistakes in networks
	n.lists = n.conflists.Networked()
	unmade := []Unmade{}
	report := reportOf(checks, func(c Check) (found []Finding, made bool) {
		if why := onNode[c.Name]; why != "" {
			unmade = append(unmade, Unmade{c.Name, why, false})
			return nil, false
		}
		if why := partOnNode[c.Name]; why != "" {
			unmade = append(unmade, Unmade{c.Name, why, true})
		}
		found, err := n.runSafely(ctx, c)
		if err != nil {
			unmade = append(unmade, Unmade{c.Name, err.Error(), false})
		}
		return found, true
	})
	return report, unmade
}

// runSafely makes a check on the data of a record. On data that no real node has, the check may panic. runSafely turns
// the panic into an error.
func (p *Node) runSafely(ctx context.Context, c Check) (found []Finding, err error) {
	defer func() {
		if r := recover(); r != nil {
			found, err = nil, fmt.Errorf("%w: %v", ErrSenseless, r)
		}
	}()
	return c.run(p, ctx)
}

// ErrSenseless means that a check has failed because of data that no node has.
var ErrSenseless = errors.New("the data makes no sense")

// Record makes the checks store the data that they read, for [Review]. The argument s gets the answers of the kernel.
// The argument a gets the answers of EC2 and metadata. The node must have a pool.
func (p *Node) Record(s *Snapshot, a *Answers) {
	p.kernel = recorder{liveKernel{p.pool.Host}, s}
	p.cloud = a.recordingCloud(p.cloud)
}

// Pool returns the pool of the node, or nil.
func (p *Node) Pool() *ipam.Pool { return p.pool }

// Missing returns the findings that are in the report "other", but not in r.
func (r *Report) Missing(other Report) (added []Finding) {
	for _, f := range other.Findings {
		same := func(o Finding) bool { return o.Check == f.Check && o.About == f.About && o.Severity == f.Severity }
		if !slices.ContainsFunc(r.Findings, same) {
			added = append(added, f)
		}
	}
	return added
}

// A cloud has a function for each question that the checks ask EC2 or metadata. It is no interface: if an interface
// held the AWS SDK's client, the linker would keep all methods of the client (see [Checks]).
type cloud struct {
	instance func(context.Context) (aws.Instance, error)
	attached func(ctx context.Context, instance string) ([]aws.ENI, error)
	limits   func(ctx context.Context, instanceType string) (aws.Limits, error)
	subnets  func(context.Context) (all []aws.Subnet, vpc, zone string, err error) // see view.ZoneSubnets
}

func cloudOf(c *aws.Client) cloud {
	return cloud{
		instance: c.Instance,
		attached: func(ctx context.Context, instance string) ([]aws.ENI, error) {
			return c.DescribeENIs(ctx, aws.ByInstance(instance))
		},
		limits: c.Limits,
		subnets: func(ctx context.Context) ([]aws.Subnet, string, string, error) {
			return view.ZoneSubnets(ctx, c)
		},
	}
}

// ExamineEach makes all checks, each within perCheck, and together within the deadline of the context. It does not wait
// for a check that does not end in time.
func (p *Node) ExamineEach(ctx context.Context, perCheck time.Duration) (Report, []Unmade) {
	unmade := []Unmade{}
	r := reportOf(checks, func(c Check) (found []Finding, made bool) {
		found, made = p.makeWithin(ctx, c, perCheck)
		if !made {
			unmade = append(unmade, Unmade{c.Name, "the check did not end in time", false})
		}
		return found, made
	})
	return r, unmade
}

// makeWithin makes a check, and reports whether it has ended in time. If the check fails, the failure is a finding.
func (p *Node) makeWithin(ctx context.Context, c Check, time time.Duration) (found []Finding, ended bool) {
	ctx, cancel := context.WithTimeout(ctx, time)
	defer cancel()
	if ctx.Err() != nil {
		return nil, false
	}
	type answer struct {
		found []Finding
		err   error
	}
	done := make(chan answer, 1)
	go func() {
		found, err := c.run(p, ctx)
		done <- answer{found, err}
	}()
	select {
	case a := <-done:
		if a.err != nil {
			a.found = append(a.found, p.notMade(c, a.err))
		}
		return a.found, true
	case <-ctx.Done():
		return nil, false
	}
}

// Answers are the answers of EC2 and the metadata service to the questions of the checks. If a question has no answer,
// Failed says why.
type Answers struct {
	Instance aws.Instance `json:"instance"`
	Attached []aws.ENI    `json:"attached"`
	Limits   aws.Limits   `json:"limits"`
	Subnets  []aws.Subnet `json:"subnets"`
	VPC      string       `json:"vpc"`
	Zone     string       `json:"zone"`
	Asked    []string     `json:"asked"`  // what the checks have asked
	Failed   Failures     `json:"failed"` // by question

	mu sync.Mutex // needed because a check that missed its deadline goes on, and may still store answers
}

// Copy returns a copy of the answers so far.
func (a *Answers) Copy() *Answers {
	a.mu.Lock()
	defer a.mu.Unlock()
	return &Answers{Instance: a.Instance, Attached: a.Attached, Limits: a.Limits, Subnets: a.Subnets, VPC: a.VPC,
		Zone: a.Zone, Asked: slices.Clone(a.Asked), Failed: maps.Clone(a.Failed)}
}

// Failures say, for each question without an answer, why it has none.
type Failures map[string]string

// errorOf returns why there is no answer to a question. If there is an answer, it returns nil.
func (a *Answers) errorOf(question string) error {
	if !slices.Contains(a.Asked, question) {
		return errors.New("no check has asked EC2 or metadata for " + question)
	}
	if why := a.Failed[question]; why != "" {
		return errors.New("EC2 or metadata did not return " + question + ": " + why)
	}
	return nil
}

// recordAnswer records that a check has asked a question, and calls set, which stores the answer.
func (a *Answers) recordAnswer(question string, err error, set func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	set()
	if a.Asked = append(a.Asked, question); err != nil {
		if a.Failed == nil {
			a.Failed = Failures{}
		}
		a.Failed[question] = err.Error()
	}
}

const (
	askedInstance = "the properties of the instance"
	askedAttached = "the ENIs of the instance"
	askedLimits   = "the limits of the instance type"
	askedSubnets  = "the subnets"
)

// recordedCloud returns a cloud that answers with the recorded answers.
func (a *Answers) recordedCloud() cloud {
	return cloud{
		instance: func(context.Context) (aws.Instance, error) { return a.Instance, a.errorOf(askedInstance) },
		attached: func(context.Context, string) ([]aws.ENI, error) { return a.Attached, a.errorOf(askedAttached) },
		limits:   func(context.Context, string) (aws.Limits, error) { return a.Limits, a.errorOf(askedLimits) },
		subnets: func(context.Context) ([]aws.Subnet, string, string, error) {
			return a.Subnets, a.VPC, a.Zone, a.errorOf(askedSubnets)
		},
	}
}

// recordingCloud returns a cloud that asks c, and records the answers.
func (a *Answers) recordingCloud(c cloud) cloud {
	return cloud{
		instance: func(ctx context.Context) (i aws.Instance, err error) {
			i, err = c.instance(ctx)
			a.recordAnswer(askedInstance, err, func() { a.Instance = i })
			return i, err
		},
		attached: func(ctx context.Context, instance string) (enis []aws.ENI, err error) {
			enis, err = c.attached(ctx, instance)
			a.recordAnswer(askedAttached, err, func() { a.Attached = enis })
			return enis, err
		},
		limits: func(ctx context.Context, instanceType string) (l aws.Limits, err error) {
			l, err = c.limits(ctx, instanceType)
			a.recordAnswer(askedLimits, err, func() { a.Limits = l })
			return l, err
		},
		subnets: func(ctx context.Context) (all []aws.Subnet, vpc, zone string, err error) {
			all, vpc, zone, err = c.subnets(ctx)
			a.recordAnswer(askedSubnets, err, func() { a.Subnets, a.VPC, a.Zone = all, vpc, zone })
			return all, vpc, zone, err
		},
	}
}
