// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package tool is cni-ipvlan-vpc-k8s-tool: what people, cloud-init and systemd timers
// use where the plugins do their work by themselves.
//
//	new-interface             make an ENI before the first pod needs it (cloud-init)
//	remove-interface          detach ENIs and delete them
//	allocate-first-available  get more addresses for an ENI that has room
//	deallocate                give addresses back
//	registry-gc               give back what has been free for long (cni-gc.timer)
//
//	registry-list             the free addresses
//	free-ips                  the addresses that nobody has, as metadata and the kernel say
//	addr                      the addresses that somebody has, on the node and in its pods
//	eniif                     the ENIs of this instance
//	subnets                   where new ENIs could be
//	limits, maxpods           what the instance type can have
//	vpccidr, vpcpeercidr      what pods are routed to by their ENI
//	bugs                      whether metadata can be believed here
//
// The names, flags, tables and exit codes are those of the original tool, so that
// scripts and units go on working. A command writes what it was asked for, and
// nothing else, to standard output. All else goes to standard error behind the name of
// the program: "error:" and what failed, "hint:" and what can be done about it, warnings,
// and a line with the request ID for each change made in EC2. The exit status
// is 0, 1 after an error, or 3 for a command that there is none of. Help and the
// version need neither root nor EC2; commands that look into pods or at the registry in
// /run need root, the others need only metadata and the instance's role.
//
// # JSON
//
// Every command has --output json (-o json). Lists are arrays of objects, [] if there is
// nothing, and a field keeps its name and type from release to release. In a table's
// objects the fields are the columns, with these names:
//
//	addr         iface ip netns (path of the pod's namespace, "" on the node)
//	bugs         bug afflicted
//	eniif        iface mac id index card subnet subnet_cidr secgrps vpc ips
//	free-ips     adapter ip
//	limits       adapters ipv4 ipv6 (an object: there is one instance)
//	registry-list ip released_on (null: never used) eni
//	subnets      id cidr default addresses_available tags
//	vpccidr      iface metadata_cidr aws_api_cidr
//	vpcpeercidr  iface peer_cidr
//
// The others answer with one object, of what they have found or done:
//
//	allocate-first-available  iface id ips
//	deallocate                deallocated
//	maxpods                   max_pods
//	new-interface             what eniif says of it, and vpc_cidrs
//	registry-gc               ended unassigned deleted
//	remove-interface          removed
package tool

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"
)

// Name is the name under which the program is installed.
const Name = "cni-ipvlan-vpc-k8s-tool"

// patience is how long a command may take. EC2 may throttle an account for a minute,
// and a link needs seconds to appear.
const patience = 2 * time.Minute

// Main runs the command line of the process, and exits.
func Main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	slog.SetDefault(slog.New(messages{w: os.Stderr}))
	err := New(os.Stdout).RunContext(ctx, os.Args)
	os.Exit(report(os.Stderr, err))
}

// New returns the command line, which answers to stdout. Its Run returns every error,
// and writes none.
func New(stdout io.Writer) *cli.App {
	commands := []*cli.Command{
		newInterface(), removeInterface(), deallocate(), allocate(),
		freeIPs(), eniif(), addr(), subnets(), limits(), maxPods(),
		bugs(), vpcCIDR(), vpcPeerCIDR(), registryList(), registryGC(),
	}
	for _, c := range commands {
		complete(c)
	}
	return &cli.App{
		Name:           Name,
		Usage:          "Interface with ENI adapters and CNI bindings for those",
		Version:        version(),
		Commands:       commands,
		Writer:         stdout,
		ErrWriter:      io.Discard,
		OnUsageError:   misused,
		ExitErrHandler: func(*cli.Context, error) {}, // Main is the one who exits
	}
}

// complete gives a command what all of them have: the output flag, a limit of time,
// and a look at its arguments, of which it takes none unless it has an ArgsUsage.
func complete(c *cli.Command) {
	c.HideHelpCommand = true
	c.OnUsageError = misused
	c.UsageText = strings.TrimSpace(Name + " " + c.Name + " [options] " + c.ArgsUsage)
	c.Flags = append(c.Flags, &cli.StringFlag{Name: "output", Aliases: []string{"o"}, Value: "text", Usage: "answer in `FORMAT` text or json"})
	action := c.Action
	c.Action = func(c *cli.Context) error {
		if err := checkArgs(c); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(c.Context, patience)
		defer cancel()
		c.Context = ctx
		return action(c)
	}
}

// checkArgs refuses what the command would not look at. Flags end at the first
// argument: one that comes later would be taken for an ENI, or for an address.
func checkArgs(c *cli.Context) error {
	if f := c.String("output"); f != "text" && f != "json" {
		return misuse(c, "--output: %q: want text or json", f)
	}
	for _, arg := range c.Args().Slice() {
		if strings.HasPrefix(arg, "-") {
			return misuse(c, "%s stands behind an argument: flags come first", arg)
		}
	}
	if c.Command.ArgsUsage == "" && c.Args().Present() {
		return misuse(c, "%s: this command takes no arguments", c.Args().First())
	}
	return nil
}

// misused is misuse for what the library finds.
func misused(c *cli.Context, err error, _ bool) error { return misuse(c, "%w", err) }

// misuse is an error in the command line.
func misuse(c *cli.Context, format string, args ...any) error {
	return hinted{fmt.Errorf(format, args...), "see " + strings.TrimSpace(c.Command.HelpName) + " --help"}
}

// version is the version of the module that the program was built from.
func version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}
