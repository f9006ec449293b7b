// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

func doctor() *cli.Command {
	var names strings.Builder
	for _, k := range checkups {
		fmt.Fprintf(&names, "    %-10s %s\n", k.name, k.about)
	}
	return &cli.Command{
		Name:  "doctor",
		Usage: "Find what on this node works against the pods' network, and mend it with --fix",
		Description: `It looks at

` + names.String() + `
and says of each finding what it means and what to do. An "error" breaks pods,
or will; a "warning" may; a "note" is to be known. It changes nothing. With
--fix it does what can do no harm, says so, and what is fixed counts no more.
If an error is left, the exit status is 1. For an image that is not running,
--root looks at its files alone, and needs no EC2.`,
		Flags: []cli.Flag{
			configFlag(),
			&cli.StringFlag{Name: "bin-dir", Value: "/opt/cni/bin", Usage: "look for the plugins in `FOLDER`"},
			&cli.StringSliceFlag{Name: "check", DefaultText: "all", Usage: "look only at `NAME`; again, or with commas, for further ones"},
			&cli.BoolFlag{Name: "fix", Usage: "do what is safe"},
			&cli.StringFlag{Name: "root", Usage: "look at the files of the system in `FOLDER`, an image, and not at this node"},
		},
		Action: func(c *cli.Context) error {
			chosen, err := chosenCheckups(c)
			if err != nil {
				return err
			}
			p, err := admit(c)
			if err != nil {
				return err
			}
			defer p.discharge()
			d, failed := p.examine(c.Context, chosen, c.Bool("fix"))
			err = errors.Join(failed, answer(c, d, d.print))
			if err == nil && d.Errors > 0 {
				err = fmt.Errorf("errors: %d", d.Errors)
			}
			return err
		},
	}
}

// How bad an ailment is.
const (
	severe  = "error"   // it breaks pods, or will
	doubted = "warning" // it may
	noted   = "note"    // it is to be known
)

// An ailment is what is wrong with a node.
type ailment struct {
	Check    string `json:"check"`
	Severity string `json:"severity"`
	About    string `json:"about"` // a file, a link, an address, an action
	Means    string `json:"means"`
	Do       string `json:"do"`
	Fixed    string `json:"fixed"` // what was done about it; "": nothing

	fix func(context.Context) (did string, err error) // nil: it is not for a program to do
}

// A checkup looks for ailments of one kind. Its error means that it could not look.
type checkup struct {
	name, about string
	look        func(*patient, context.Context) ([]ailment, error)
	image       bool // it needs no more than the files of a system
}

var checkups = []checkup{
	{"config", "the conflist: its mistakes, and those who get in before it", (*patient).checkConfig, true},
	{"plugins", "the plugins: versions, and what their STATUS says", (*patient).checkPlugins, true},
	{"networkd", "systemd-networkd, which removes routes and rules of others", (*patient).checkNetworkd, true},
	{"netutils", "amazon-ec2-net-utils, which puts pods' addresses on the node", (*patient).checkNetUtils, true},
	{"manager", "NetworkManager, which takes pods' ENIs for its own", (*patient).checkManager, true},
	{"timers", "the units of systemd that collect and refill", (*patient).checkTimers, true},
	{"kernel", "ipvlan and nftables", (*patient).checkKernel, false},
	{"neighbors", "the limits of the neighbour table, one for all pods", (*patient).checkNeighbors, false},
	{"sysctl", "forwarding and the check of sources", (*patient).checkSysctls, false},
	{"links", "the links of the ENIs: up, and of one MTU", (*patient).checkLinks, false},
	{"addresses", "addresses of pods on the node's links", (*patient).checkAddresses, false},
	{"leftovers", "rules of pods that are gone, and what pods there are have lost", (*patient).checkLeftovers, false},
	{"answers", "rules by which the node does not send to pods by their veths", (*patient).checkAnswers, false},
	{"firewall", "filters of others that drop what the node sends on for pods", (*patient).checkFirewall, false},
	{"proxy", "the mode of kube-proxy", (*patient).checkProxy, false},
	{"state", "the registry, and that it is in memory", (*patient).checkState, false},
	{"refusals", "what EC2 has refused this node", (*patient).checkRefusals, false},
	{"agreement", "registry, kernel, metadata and EC2 side by side", (*patient).checkAgreement, false},
	{"iam", "permissions of the role, tried without effect", (*patient).checkIAM, false},
	{"subnets", "free addresses of the subnets", (*patient).checkSubnets, false},
}

// chosenCheckups are those that the command line asks for.
func chosenCheckups(c *cli.Context) ([]checkup, error) {
	wanted := c.StringSlice("check")
	var chosen []checkup
	var names []string
	for _, k := range checkups {
		if !k.image && c.String("root") != "" {
			continue
		}
		names = append(names, k.name)
		if len(wanted) == 0 || slices.Contains(wanted, k.name) {
			chosen = append(chosen, k)
		}
	}
	for _, name := range wanted {
		if !slices.Contains(names, name) {
			return nil, misuse(c, "--check: %q: want one of %s", name, strings.Join(names, ", "))
		}
	}
	return chosen, nil
}

// A patient is a node, or the image of one.
type patient struct {
	root   string // "": this node
	given  string // the folder of conflists, or one
	file   string // the conflist; "" if there is none
	binDir string
	config *lease.Config // nil if there is none that can be read
	list   conflist      // the same

	pool  *ipam.Pool // nil for an image, like all that follows
	state *registry.State
	waits func(string) time.Duration
}

// admit gathers what several checkups look at. That there is no conflist, and no registry
// that can be read, is for them to find.
func admit(c *cli.Context) (*patient, error) {
	p := &patient{root: c.String("root"), waits: reuseWaits(c)}
	p.binDir = p.path(c.String("bin-dir"))
	p.given = p.path(c.String("config"))
	if p.file = firstOurs(p.given); p.file != "" {
		p.list, _ = readConflist(p.file)
		p.config, _ = findConfig(p.file)
	}
	if p.root != "" {
		return p, nil
	}
	var err error
	if p.pool, err = openPool(lease.Policy{}); err != nil {
		return nil, err
	}
	if p.state, err = p.pool.Registry.View(); err != nil {
		p.state = &registry.State{}
	}
	return p, nil
}

func (p *patient) discharge() {
	if p.pool != nil {
		_ = p.pool.Close() // there is nothing to lose
	}
}

// path is where a file of the system is.
func (p *patient) path(name string) string { return filepath.Join(p.root, name) }

// A diagnosis is what doctor answers.
type diagnosis struct {
	Errors   int       `json:"errors"` // that are left
	Warnings int       `json:"warnings"`
	Checked  []string  `json:"checked"`
	Findings []ailment `json:"findings"`
}

// examine looks, and mends what is safe if it is to. Its error is about what it could not mend.
func (p *patient) examine(ctx context.Context, chosen []checkup, mend bool) (diagnosis, error) {
	d := diagnosis{Checked: []string{}, Findings: []ailment{}}
	var failed error
	for _, k := range chosen {
		stop := working("look at " + k.name)
		found, err := k.look(p, ctx)
		stop()
		if err != nil {
			found = append(found, ailment{Severity: doubted, About: k.name, Means: "it could not be looked at: " + err.Error(),
				Do: "run it again: " + Name + " doctor --check " + k.name})
		}
		for i := range found {
			found[i].Check = k.name
			if mend && found[i].fix != nil {
				did, err := found[i].fix(ctx)
				if err == nil {
					found[i].Fixed = did
				}
				failed = errors.Join(failed, err)
			}
		}
		d.Checked = append(d.Checked, k.name)
		d.Findings = append(d.Findings, found...)
	}
	d.count()
	return d, failed
}

// count counts what is not fixed, and puts the worst first.
func (d *diagnosis) count() {
	order := []string{severe, doubted, noted}
	slices.SortStableFunc(d.Findings, func(a, b ailment) int {
		return slices.Index(order, a.Severity) - slices.Index(order, b.Severity)
	})
	for _, a := range d.Findings {
		switch {
		case a.Fixed != "":
		case a.Severity == severe:
			d.Errors++
		case a.Severity == doubted:
			d.Warnings++
		}
	}
}

func (d diagnosis) print(w io.Writer) {
	for _, a := range d.Findings {
		fmt.Fprintf(w, "%s: %s: %s: %s\n", a.Severity, a.Check, a.About, a.Means)
		if a.Fixed != "" {
			fmt.Fprintf(w, "    fixed: %s\n", a.Fixed)
			continue
		}
		do := a.Do
		if a.fix != nil {
			do += " (--fix does it)"
		}
		fmt.Fprintf(w, "    %s\n", do)
	}
	if len(d.Findings) == 0 {
		fmt.Fprintln(w, "nothing is wrong with "+strings.Join(d.Checked, ", "))
	}
}
