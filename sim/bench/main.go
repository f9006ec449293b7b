// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Command bench measures the cost of ADD and DEL of whole chains: our chains, and chains of other projects. libcni
// executes the real plugins on an instance of package vpcsim. With -traffic it measures the cost of packets instead:
// packets of our pods, and packets of pods whose links are like those of other plugins. With -egress it measures
// packets to a host outside the VPC. With -memory it measures how much memory ADDs take.
//
// All chains take turns in one run, so that other load of the machine affects all of them. The figures depend on the
// machine, so bench also prints their ratios to the chain ptp + host-local, which has no masquerading and no policy
// routing. The registry has a free address for each measured ADD (see warmConflist). So bench fails if a measured ADD
// or DEL calls the simulated EC2 or its metadata service.
//
// Use -icount in a VM whose clock counts instructions (nl/nltest/vm/icount). There, the figures of two runs differ by
// at most three percent, so bench can compare them with those of an earlier run: see -baseline.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
)

type options struct {
	bin, peers, conflist, baseline string

	rounds int
	c      concurrencies
	pods   int
	prefix bool
	cards  bool
	alone  bool
	icount bool

	traffic, egress, memory, status bool
}

// concurrencies lists how many calls run at the same time. bench makes a measurement for each number in the list.
type concurrencies []int

func (c *concurrencies) String() string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(*c), " ", ","), "[]")
}

// Set parses a list such as 1,16.
func (c *concurrencies) Set(text string) error {
	*c = nil
	for word := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(word)
		if err != nil || n < 1 || n > maxConcurrency {
			return fmt.Errorf("%q is not a number from 1 to %d", word, maxConcurrency)
		}
		*c = append(*c, n)
	}
	return nil
}

func parseOptions(args []string) (options, error) {
	o := options{c: concurrencies{1, 16}}
	f := flag.NewFlagSet("bench", flag.ExitOnError)
	f.StringVar(&o.bin, "bin", "bin", "`directory` of our plugins, and of noop")
	f.StringVar(&o.peers, "peers", ".cache/peers", "`directory` of upstream's ptp and host-local")
	f.StringVar(&o.conflist, "conflist", "conflist-examples/10-cni-ipvlan-vpc-k8s.conflist",
		"`file` with our chain; in its directory is three-plugins.conflist, too")
	f.IntVar(&o.rounds, "rounds", 60, "about how often to measure each row of a table")
	f.Var(&o.c, "c", "a `list`: how many calls to make at once")
	f.IntVar(&o.pods, "pods", 0, "instead: on a node with `N` pods, compare the ADD of the last pod with the ADD "+
		"of the first pod on another node")
	f.BoolVar(&o.prefix, "prefixes", false,
		"the pods' addresses are of delegated prefixes; each ENI gets as many prefixes as it can have")
	f.BoolVar(&o.cards, "cards", false, "with -pods: on an instance with several network cards")
	f.BoolVar(&o.alone, "alone", false, "with -pods: only our chain, and no chain to compare it with")
	f.BoolVar(&o.traffic, "traffic", false, "instead: measure what the traffic of pods costs, by layout")
	f.BoolVar(&o.egress, "egress", false,
		"instead: measure what the traffic of pods to a host outside the VPC costs, with an egress and without")
	f.BoolVar(&o.status, "status", false, "instead: measure what STATUS costs")
	f.BoolVar(&o.memory, "memory", false, "instead: measure how much memory ADDs take, one alone and 110 together")
	f.BoolVar(&o.icount, "icount", false,
		"the clock counts instructions: print thousands of instructions, and make one call at a time")
	f.StringVar(&o.baseline, "baseline", "",
		"fail if our chain is 10 % worse than in this `file`, the output of an earlier run")
	_ = f.Parse(args) // it exits on an error
	switch {
	case f.NArg() > 0:
		return o, fmt.Errorf("%q: want no arguments", f.Arg(0))
	case o.rounds < 1:
		return o, fmt.Errorf("-rounds %d: want 1 or more", o.rounds)
	case o.pods < 0 || o.pods > o.nodeSize().podLimit:
		return o, fmt.Errorf("-pods %d: want at most %d, for which a %s has room", o.pods, o.nodeSize().podLimit,
			o.nodeSize().Name)
	case o.pods == 0 && (o.cards || o.alone):
		return o, errors.New("-cards and -alone are for -pods")
	}
	if o.icount {
		o.c = concurrencies{1}
	}
	return o, nil
}

// generateArg is the first argument of a process that generates traffic in a pod.
const generateArg = "generate"

func main() {
	if len(os.Args) > 2 && os.Args[1] == generateArg {
		if err := runGenerator(os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			os.Exit(1)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	o, err := parseOptions(os.Args[1:])
	if err == nil {
		err = run(ctx, o, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options, w io.Writer) error {
	old, err := readBaseline(o.baseline)
	if err != nil {
		return err
	}
	if o.icount {
		// The VM has one CPU, on which several threads would take turns in a different order in each run.
		os.Setenv("GOMAXPROCS", "1")
	}
	// bench has a file open for the namespace of each pod, and process 1 of a VM may have only 4096 files open.
	// Setrlimit may fail in a container: then bench fails only if it opens too many files.
	const files = 1 << 16
	_ = syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: files, Max: files})
	if o.traffic {
		return measureTraffic(ctx, o, w)
	}
	if o.egress {
		return measureEgress(ctx, o, w)
	}
	if o.memory {
		return measureMemory(ctx, o, w)
	}
	r := &report{icount: o.icount, rounds: o.rounds}
	measure := measureChains
	if o.pods > 0 {
		measure = measureByPodCount
	}
	if err := measure(ctx, o, r); err != nil {
		return err
	}
	if err := r.write(w); err != nil {
		return err
	}
	err = errors.Join(old.compare(r.table()), r.checkStatus())
	if r.callCount > 0 {
		err = errors.Join(err, errAsked)
	}
	return err
}
