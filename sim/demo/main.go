// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Command demo shows the main job of the plugins on a simulated VPC. Pods get addresses of the VPC, and reach all
// destinations with the right source address. After the deletion of the pods, EC2 and the nodes are as they were
// before.
//
// Package ec2sim simulates EC2, and package vpcsim simulates the network. The kernel, the packets, the shipped conflist
// and the plugins are real. libcni executes the plugins as a container runtime does. The demo needs root and a kernel
// with ipvlan. The exit status is 1 if a check fails.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	bin := flag.String("bin", "bin", "`directory` of the plugins and the tool")
	conflist := flag.String("conflist", "conflist-examples/10-cni-ipvlan-vpc-k8s.conflist",
		"the network `configuration`")
	dataPath := flag.String("datapath", "", "the pods' data `path`: ipvlan or veth; by default, as in the conflist")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	failures, err := run(ctx, *bin, *conflist, *dataPath)
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
	}
	if err != nil || failures > 0 {
		os.Exit(1)
	}
}

func run(ctx context.Context, bin, conflist, dataPath string) (failures int, err error) {
	out := newOutput(os.Stdout)
	defer out.clearProgress()
	s, err := newScene(bin, conflist, dataPath)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if err := s.validate(ctx); err != nil {
		return 0, err
	}
	before, err := s.nodeStates()
	if err != nil {
		return 0, err
	}

	added, err := s.addPods(ctx, out)
	if err != nil {
		return 0, err
	}
	out.printWorld(s)
	out.printAddTimes(added)
	out.printCalls(s)

	if err := s.checkPaths(ctx, out); err != nil {
		return out.failures, err
	}
	if err := s.deletePods(ctx, out); err != nil {
		return out.failures, err
	}
	return out.failures, s.checkNothingLeft(ctx, out, before)
}
