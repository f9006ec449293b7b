// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package tool is the program cni-ipvlan-vpc-k8s-tool. People, cloud-init and systemd timers use it. The plugins do not
// need it.
//
//	new-interface             make an ENI before the first pod needs it (cloud-init)
//	remove-interface          detach ENIs and delete them
//	allocate-first-available  get more addresses for an ENI that has room
//	deallocate                release addresses
//	drain-interface           give new pods no address of an ENI
//	registry-gc               release addresses that have been free for long (cni-gc.timer)
//	repair                    put back objects that the node has lost (cni-gc.timer, nftables.service)
//	warm                      get the free addresses that a pool wants (cni-warm.path)
//	release                   release at once the addresses that pods had chosen (cni-release.path)
//	advertise                 tell the scheduler how many addresses there are (cni-advertise.timer)
//	install                   put the suite on a node, from its container image, or remove it
//	maintain                  run repair, registry-gc, warm and others at their intervals, on a node without systemd
//	eni-gc                    delete ENIs that terminated instances have left behind
//
//	status                    which pod has which address; --diff compares registry, kernel, metadata and EC2
//	metrics                   the state of the node for Prometheus
//	egress                    clients and routers of egresses, and which traffic their security groups must allow
//	validate                  the mistakes in a conflist
//	doctor                    the faults of the pods' network on this node; --fix repairs some
//	connectivity-test         which paths of pods work, and where packets stop
//	iam-policy                the permissions that the role of the node needs
//	launch-template           ENIs and addresses that come with the instance
//	support-bundle            a file with the state of the node, for other people; or an HTML page from such a file
//	whois                     which pod had an address earlier; adds pods to flow logs
//	registry-list             the free addresses
//	free-ips                  the addresses that neither the node nor a pod has, as metadata and the kernel say
//	addr                      the IPv4 addresses that the node and its pods have
//	eniif                     the ENIs of this instance
//	subnets                   the subnets in which new ENIs can be
//	limits, maxpods           how many ENIs, addresses and pods the instance type can have
//	sizing                    how many addresses and EC2 calls nodes of a type need
//	vpccidr, vpcpeercidr      the CIDRs that pods reach by their ENI
//	bugs                      which known bugs the metadata service has here
//
// The names, flags, tables and exit codes are the same as in the original tool, so scripts and units still work. A
// command writes only its answer to standard output. All other lines go to standard error, and begin with the name of
// the program. After a failure, a line with "error:" has the error, and a line with "hint:" says what an operator can
// do. Warnings also go to standard error. For each change in EC2, the command writes a line with the request ID to
// standard error. The exit status is 0 after a success, 1 after an error, and 3 if the command line names a command
// that does not exist. Help and the version need neither root nor EC2. Commands that read the namespaces of pods or the
// registry in /run need root. The others need only metadata and the instance's role.
//
// # JSON
//
// Every command has --output json (-o json). The help of a command says which fields its answer has. These fields keep
// their names and types from release to release. A command writes its errors to standard error, and never as JSON.
package tool

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/internal/release"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
)

// Name is the name by which the program was called.
var Name = cli.Name

// Main runs the command line of the process, and exits.
func Main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	cli.Log()
	app := New(os.Stdout)
	err := app.RunContext(ctx, cli.Arrange(app, os.Args))
	os.Exit(cli.Report(os.Stderr, err))
}

// New returns the application with all commands. The commands write their answers to stdout. The application's methods
// return errors, and do not print them.
func New(stdout io.Writer) *cli.App {
	var commands []*cli.Command
	for _, g := range groups() {
		for _, c := range g.commands {
			if c.Category = g.title; c.Name == "maintain" || c.Name == "connectivity-test" {
				cli.CompleteEndless(c)
			} else {
				cli.Complete(c)
			}
			commands = append(commands, c)
		}
	}
	return &cli.App{
		Name:                 Name,
		Usage:                "Look at the pods' network of this node, provision it, and repair it",
		Action:               cli.Help,
		Version:              release.Version(),
		Commands:             commands,
		Writer:               stdout,
		ErrWriter:            io.Discard,
		OnUsageError:         cli.Misused,
		EnableBashCompletion: true,                         // also for other shells than bash, see packaging/manual
		ExitErrHandler:       func(*cli.Context, error) {}, // do not exit: Main does
	}
}

// A group is a section of the help: commands for one purpose.
type group struct {
	title    string
	commands []*cli.Command
}

// groups returns all commands. The help sorts the groups by their titles.
func groups() []group {
	return []group{
		{"Inspect", []*cli.Command{status(), doctorCommand(), connectivityTest(), supportBundle(), whois(),
			metrics(), egressCommand(), addr(), freeIPs(), registryList(), eniif(), bugs(), version()}},
		{"Maintain", []*cli.Command{registryGC(), repairNode(), warm(), releaseChosen(), advertise(), maintain()}},
		{"Prepare", []*cli.Command{validate(), installNode(), iamPolicy(), launchTemplate(), limits(), maxPods(),
			sizing(), subnets(), vpcCIDR(), vpcPeerCIDR()}},
		{"Provision", []*cli.Command{newInterface(), drainInterface(), removeInterface(), allocate(), deallocate(),
			eniGC()}},
	}
}
