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
//	mend                      put back what a firewall has flushed (nftables.service)
//	warm                      get what a pool wants to have free (cni-warm.path)
//	eni-gc                    delete what instances that are gone have left behind
//
//	status                    who has which address, and, with --diff, who disagrees
//	metrics                   the same for Prometheus
//	validate                  what is wrong with a conflist
//	doctor                    what on this node works against the pods, and --fix
//	iam-policy                what the role of the node must be allowed
//	launch-template           ENIs and addresses that come with the instance
//	completion, man           for shells, and for readers
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
// Every command has --output json (-o json). Its help says which fields the answer has;
// they keep their names and types from release to release. Errors stay on standard error.
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
	slog.SetDefault(slog.New(messages{t: newTerminal(os.Stderr)}))
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
		status(), warm(), mend(), validate(), eniGC(), metrics(),
		doctor(), iamPolicy(), launchTemplate(), completion(), man(),
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
	if f, ok := fields[c.Name]; ok {
		c.Description = strings.TrimSpace(c.Description + "\n\nWith --output json: " + f)
	}
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
