// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"time"
)

// options are the parsed arguments of the command.
type options struct {
	yes, clean, policy bool
	run                string // with -clean: only the objects of this run

	region, subnet, kind string
	image, user          string
	profile              string // the instance profile; if empty, the instances get temporary credentials of the caller
	from                 netip.Prefix
	whoami               string

	root, ends, conflist string // files of this machine
	only                 string
	pause                time.Duration
}

// The parts of a test.
const (
	partCompare = "compare"
	partPods    = "pods"
)

// parseOptions parses the arguments. For -help, it prints the help and returns flag.ErrHelp.
func parseOptions(args []string, out output) (options, error) {
	var o options
	var from string
	f := flag.NewFlagSet("acceptance", flag.ContinueOnError)
	f.SetOutput(io.Discard) // main prints the error
	f.BoolVar(&o.yes, "yes", false,
		"make all objects, and delete them at the end; without -yes, only print what would be made or deleted")
	f.BoolVar(&o.clean, "clean", false,
		"only print the objects that killed runs have left; with -yes, delete these objects")
	f.StringVar(&o.run, "run", "", "with -clean: only the objects of the run with this `ID`")
	f.BoolVar(&o.policy, "policy", false, "only print the IAM policy that the caller needs")
	f.StringVar(&o.region, "region", "", "the `region`; by default the region of the environment or the profile")
	f.StringVar(&o.subnet, "subnet", "",
		"the `ID` of a subnet with a route to an internet gateway; by default a default subnet of the default VPC")
	f.StringVar(&o.kind, "type", "t3.small", "the instance `type`, of x86_64, with three ENIs or more")
	f.StringVar(&o.image, "image", "",
		"the `ID` of a machine image with systemd, cloud-init and iproute2; by default the newest Debian 13")
	f.StringVar(&o.user, "user", "admin", "the `name` of the user for SSH to the instances")
	f.StringVar(&o.profile, "instance-profile", "",
		"the `name` of an instance profile for the instances; by default they get temporary credentials with your "+
			"own permissions")
	f.StringVar(&from, "from", "",
		"the `block` of addresses that may use SSH; by default the address of this machine as the internet sees it")
	f.StringVar(&o.whoami, "whoami", "https://checkip.amazonaws.com",
		"a `URL` that answers with the address of the caller")
	f.StringVar(&o.root, "root", "", "the `directory` with the files of the container image: the output of make files")
	f.StringVar(&o.ends, "ends", "", "the `program` cni-acceptance-ends")
	f.StringVar(&o.conflist, "conflist", "conflist-examples/10-cni-ipvlan-vpc-k8s.conflist",
		"the network configuration")
	f.StringVar(&o.only, "only", "", "do only one `part`: compare or pods")
	f.DurationVar(&o.pause, "pause", 3*time.Second, "how long to wait between two requests while EC2 works")
	err := f.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		out.line("The acceptance test on EC2: see docs/acceptance.md. With make: make test-ec2 ARGS=\"-yes -only " +
			"compare\"")
		f.SetOutput(out.w)
		f.PrintDefaults()
	}
	if err != nil {
		return o, err
	}
	if o.run != "" && !o.clean {
		return o, errors.New("-run is only for -clean, because a run of the test chooses its ID itself")
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("%q: want only flags", strings.Join(f.Args(), " "))
	}
	if o.only != "" && o.only != partCompare && o.only != partPods {
		return o, fmt.Errorf("-only: %q: want %s or %s", o.only, partCompare, partPods)
	}
	if from != "" {
		p, err := netip.ParsePrefix(from)
		if err != nil || !p.Addr().Is4() {
			return o, fmt.Errorf("-from: %q: want an IPv4 block, for example 203.0.113.7/32", from)
		}
		o.from = p.Masked()
	}
	return o, nil
}

func (o options) wantsPart(part string) bool { return o.only == "" || o.only == part }
