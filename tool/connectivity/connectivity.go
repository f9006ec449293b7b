// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package connectivity makes pods, sends packets on each path of pods, and says where a packet has stopped. Like a
// container runtime, it calls the plugins of a conflist for two pods on this node. The network namespaces of the pods
// have no names in the file system, so the namespaces end with this process. If the process is killed, leases and
// routing rules stay until a run of registry-gc or a CNI GC removes them.
//
// If a path fails, the test sends its packets again, and observes them. It opens taps at links (see [nl.Tap]), and
// makes netfilter report which rules drop packets. The taps and these reports are only about the addresses of this
// test, and end with the process.
package connectivity

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/conf"
)

// Least is the default and the minimum of [Test.Within].
const Least = 30 * time.Second

// pathTimeout is how long one attempt on a path may take. An attempt with small and large packets may take twice as
// long.
const pathTimeout = 2 * time.Second

// Each of these functions returns a time limit for one part of a test. The parts are two ADDs, the call to the node of
// the test's peer (see askPeer), the paths, and two DELs. All parts together take less than [Test.Within]. Two limits
// count from the start of the test. After nextUntil, the second ADD does not begin. At lookUntil, unfinished ADDs and
// paths fail.

func (t Test) addWithin() time.Duration { return t.Within * 9 / 30 } // for each ADD
func (t Test) nextUntil() time.Duration { return t.Within * 6 / 30 }
func (t Test) askWithin() time.Duration { return t.Within * 2 / 30 }
func (t Test) lookUntil() time.Duration { return t.Within * 19 / 30 }
func (t Test) delWithin() time.Duration { return t.Within * 3 / 30 } // for each DEL

// A Test is the configuration of a connectivity test.
type Test struct {
	Network   conf.Network
	BinDir    string // directory of the plugins
	Namespace string // the pods' namespace in Kubernetes
	Peer      netip.Addr
	Port      uint16
	Service   netip.AddrPort // zero value: use the API server's Service, if kube-proxy has rules for it
	DNS       netip.Addr     // zero value: there is no DNS server to test
	Name      string         // the name that the test looks up at the DNS server
	Internet  string         // "": no host
	Explicit  bool           // an operator has named the host in Internet
	Within    time.Duration  // [Least] or more
}

// The states of a path.
const (
	Works   = "works"
	Fails   = "fails"
	Skipped = "skipped"
)

// A Row is the outcome of one path.
type Row struct {
	Path    string  `json:"path"`
	Family  string  `json:"family"`
	From    string  `json:"from"`
	To      string  `json:"to"`
	State   string  `json:"state"`
	Took    float64 `json:"took_ms"`
	Stopped string  `json:"stopped"` // where the packet stopped
	Cause   string  `json:"cause"`   // why the path fails or was skipped, or a note about a path that works
	Do      string  `json:"do"`
}

// A Pod is a pod of the test. If Addrs is empty, the test could not make the pod.
type Pod struct {
	Name  string       `json:"name"`
	Addrs []netip.Addr `json:"ips"`
	ENI   string       `json:"iface"` // the name of the link of the pod's ENI on the node
}

// A Report is what a test has found.
type Report struct {
	Network string  `json:"network"`
	Failed  int     `json:"failed"`
	Took    float64 `json:"took_ms"`
	Pods    []Pod   `json:"pods"`
	Paths   []Row   `json:"paths"`
}

// Print writes a line for each path. Below a path that fails, it writes where the packet stopped, why, and what to do.
func (r Report) Print(w io.Writer) {
	for _, row := range r.Paths {
		fmt.Fprintf(w, "%-7s  %-28s  %-4s  %s", row.State, row.Path, row.Family, row.To)
		if row.State == Works {
			fmt.Fprintf(w, "  %.1f ms", row.Took)
		}
		if row.State != Fails && row.Cause != "" {
			fmt.Fprintf(w, "  (%s)", row.Cause)
		}
		fmt.Fprintln(w)
		for _, text := range []string{row.Stopped, row.Cause, row.Do} {
			if row.State == Fails && text != "" {
				fmt.Fprintf(w, "    %s\n", text)
			}
		}
	}
	fmt.Fprintf(w, "%s, %d fail, in %.1f s\n", cli.Count(len(r.Paths), "path"), r.Failed, r.Took/1000)
}

// Run makes the pods, tries all paths, and removes the pods. A path that fails is no error. The error is about the test
// itself.
func (t Test) Run(ctx context.Context) (r Report, err error) {
	start := time.Now()
	whole, cancel := context.WithDeadline(ctx, start.Add(t.lookUntil()))
	defer cancel()
	s, err := t.open()
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	r = Report{Network: t.Network.Name}
	rows := s.makePods(whole, &r, "a", "b")
	if len(s.pods) > 0 {
		rows = append(rows, s.tryAll(whole, s.allPaths())...)
	}
	if ctx.Err() != nil {
		return r, errors.Join(ctx.Err(), s.deletePods())
	}
	rows = append(rows, s.removePods()...)
	for i := range rows {
		if rows[i].State == Fails {
			r.Failed++
		}
	}
	r.Paths, r.Took = rows, milliseconds(start)
	return r, nil
}

func milliseconds(since time.Time) float64 { return float64(time.Since(since).Microseconds()) / 1000 }

// A scene is the node with the pods of a test.
type scene struct {
	Test
	node    *nl.NS
	cni     runtime
	pods    []*pod
	peer    answer // the answer of the other node
	peerErr error  // why the other node does not answer

	checked map[*pod]error            // the result of CHECK, which the test calls once for a pod
	enis    func() ([]aws.ENI, error) // asks metadata for the ENIs, but only once
	ec2     func() ([]aws.ENI, error) // asks EC2 for the ENIs, but only once
}

func (t Test) open() (*scene, error) {
	node, err := nl.Node()
	if err != nil {
		return nil, err
	}
	s := &scene{Test: t, node: node, checked: map[*pod]error{}, enis: sync.OnceValues(metadataENIs),
		ec2: sync.OnceValues(ec2ENIs)}
	if s.cni, err = newRuntime(t); err != nil {
		return nil, errors.Join(err, node.Close())
	}
	return s, nil
}

// makePods makes pods until an ADD fails, and returns a row for each ADD.
func (s *scene) makePods(ctx context.Context, r *Report, letters ...string) (rows []Row) {
	first := time.Now()
	for _, letter := range letters {
		start := time.Now()
		name := fmt.Sprintf("connectivity-test-%d-%s", os.Getpid(), letter)
		row := Row{Path: "ADD", To: name, State: Skipped, Cause: "the ADD of the first pod took too long"}
		if time.Since(first) > s.nextUntil() {
			return append(rows, row)
		}
		p, err := s.cni.add(ctx, s.node, name)
		row = Row{Path: "ADD", To: name, State: Works, Took: milliseconds(start)}
		if err != nil {
			row.State, row.Stopped, row.Cause = Fails, "the pod could not be made", firstLine(err)
			row.Do = s.addAdvice(err, time.Since(start))
			r.Pods = append(r.Pods, Pod{Name: name, Addrs: []netip.Addr{}})
			return append(rows, row)
		}
		r.Pods = append(r.Pods, Pod{name, p.addrs, p.eni})
		s.pods, rows = append(s.pods, p), append(rows, row)
	}
	return rows
}

// removePods removes the pods, and returns one row for all DELs.
func (s *scene) removePods() (rows []Row) {
	start := time.Now()
	row := Row{Path: "DEL", To: cli.Count(len(s.pods), "pod"), State: Works}
	if len(s.pods) == 0 {
		return nil
	}
	if err := s.deletePods(); err != nil {
		row.State, row.Stopped, row.Cause = Fails, "a pod could not be removed", firstLine(err)
		row.Do = "run " + cli.Name + " registry-gc --free-after=15m twice, a minute apart. The second run ends the " +
			"lease of the pod"
	}
	row.Took = milliseconds(start)
	return []Row{row}
}

// deletePods deletes the pods, even if the context of the test has ended.
func (s *scene) deletePods() (failed error) {
	for _, p := range slices.Backward(s.pods) {
		ctx, cancel := context.WithTimeout(context.Background(), s.delWithin())
		failed = errors.Join(failed, s.cni.del(ctx, p))
		cancel()
	}
	s.pods = nil
	return failed
}

func (s *scene) close() error { return errors.Join(s.deletePods(), s.cni.close(), s.node.Close()) }

// tryAll tries all paths at once. It tries a failed path a second time, because the machine may only have been busy. If
// paths fail again, tryAll finds out why, one path at a time.
func (s *scene) tryAll(ctx context.Context, all []path) []Row {
	rows := make([]Row, len(all))
	for again := range 2 {
		var wg sync.WaitGroup
		for i, p := range all {
			if again == 0 || rows[i].State == Fails {
				wg.Go(func() { rows[i] = p.tryOnce(ctx, pathTimeout) })
			}
		}
		wg.Wait()
	}
	for i, p := range all {
		if rows[i].State == Fails {
			rows[i] = s.explainFailure(ctx, p, rows[i])
		}
	}
	slices.SortStableFunc(rows, func(a, b Row) int { return cmp.Compare(a.Family, b.Family) })
	return rows
}
