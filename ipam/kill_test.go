// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/less"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest/trace"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin/nic"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/history"
)

// A victim is a command that the tests kill at each of its calls.
type victim struct {
	name    string
	prepare func(*node)           // makes the state that the command finds
	command func(*node) *exec.Cmd // a command about a pod is about the pod "victim"
}

func addVictim(n *node) *exec.Cmd { return n.cni("ADD", "victim", nil) }

const delChosen = "DEL of a chosen address"

var victims = []victim{
	{"ADD warm", func(n *node) { n.acquire(4, "old") }, addVictim},
	{"ADD assign", func(n *node) { n.acquire(1, "old") }, addVictim},
	{"ADD prefix", func(n *node) {
		n.acquire(1, "old")
		n.conf["prefixDelegation"] = true
	}, addVictim},
	{"ADD new ENI", func(n *node) {
		n.acquire(0, names("old", 10)...) // all addresses of one ENI
	}, addVictim},
	{"ADD first", func(*node) {}, addVictim},
	{"ADD passing over", func(n *node) { // it passes over the fullest ENI, whose link has vanished
		n.acquire(0, names("old", 10)...)
		n.end("old9")
		n.Age(time.Hour)
		n.add("seen")
		first := n.newest()
		n.acquire(0, "other")
		n.end("old8")
		n.Age(time.Hour)
		n.unplug(first)
	}, addVictim},
	{"ADD asks for an address", func(n *node) {
		n.acquire(1, "old")
		n.asks(`[{"ip": "100.113.0.77"}]`)
	}, addVictim},
	{"ADD asks for a group", func(n *node) {
		n.acquire(1, "old")
		n.asks(`[{"securityGroups": ["sg-2"], "ip": "100.113.0.77"}]`)
	}, addVictim},
	{"ADD asks for a whole ENI", func(n *node) {
		n.acquire(1, "old")
		n.asks(`[{"exclusive": true}]`)
	}, addVictim},
	{"ADD asks for an ENI", func(n *node) {
		n.acquire(1, "old")
		n.give()
	}, addVictim},
	{"ADD asks for two interfaces", func(n *node) {
		n.acquire(1, "old")
		n.asks(`[{}, {"securityGroups": ["sg-2"], "ip": "100.113.0.77"}]`)
	}, addVictim},
	{"registry-gc detach", func(n *node) {
		n.acquire(1, "old")
		n.give()
		n.add("asked")
		n.end("asked")
		n.Age(time.Hour)
	}, (*node).gc},
	{"DEL", func(n *node) {
		n.acquire(4, "old", "victim")
	}, func(n *node) *exec.Cmd { return n.cni("DEL", "victim", nil) }},
	{"GC", func(n *node) { n.acquire(4, "old", "gone1", "gone2") }, func(n *node) *exec.Cmd {
		n.lost("gone1", "gone2")
		return n.cni("GC", "",
			map[string]any{"cni.dev/valid-attachments": []map[string]string{{"containerID": "old", "ifname": "eth0"}}})
	}},
	{"ADD with a lease log", func(n *node) { n.acquire(4, "old"); n.logs() }, addVictim},
	{"DEL with a lease log", func(n *node) { n.acquire(4, "old", "victim"); n.logs(); n.add("other") },
		func(n *node) *exec.Cmd { return n.cni("DEL", "victim", nil) }},
	{delChosen, func(n *node) { n.acquire(1, "old"); n.choose("victim") },
		func(n *node) *exec.Cmd { return n.cni("DEL", "victim", nil) }},
	{"release", func(n *node) {
		n.acquire(1, "old")
		n.choose("chooses")
		n.run(n.cni("DEL", "chooses", nil))
		n.lost("chooses")
		n.unmarked()
	}, (*node).release},
	{"registry-gc unassign", func(n *node) {
		n.acquire(1, "old")
		n.acquire(5, names("gone", 5)...)
		n.end(names("gone", 5)...)
		n.Age(time.Hour)
	}, (*node).gc},
	{"registry-gc delete", func(n *node) {
		n.acquire(0, names("old", 11)...)
		n.end("old10")
		n.Age(time.Hour)
	}, (*node).gc},
}

func names(prefix string, n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprint(prefix, i))
	}
	return all
}

// logs gives the node a lease log.
func (n *node) logs() {
	n.conf["leaseLog"] = map[string]any{"file": n.logFile()}
}

// logFile returns the path of the lease log, which is in a directory whose changes the tests also see.
func (n *node) logFile() string { return filepath.Join(n.Dir, "log", "leases.log") }

// logged checks that the lease log agrees with the registry.
func (n *node) logged() {
	n.Helper()
	s := n.State()
	if s.Log.File == "" {
		return
	}
	h, _, err := history.Read(n.logFile())
	must(n, err)
	now := time.Now()
	for a, l := range s.Leases.All() {
		if got := h.At(a, now); len(got) != 1 || got[0].Container != l.ContainerID || !h.Sure(a, now, now.Add(1)) {
			n.Errorf("%s is leased by %s, and the log says %+v", a, l.Key, got)
		}
	}
	for a := range s.Free.Keys() {
		if got := h.At(a, now); len(got) > 0 {
			n.Errorf("%s is free, and the log says %+v", a, got)
		}
	}
}

// asks gives all pods this annotation, and allows the requests in it.
func (n *node) asks(annotation string) {
	n.conf["requests"] = []map[string]any{{"namespaces": []string{"*"}, "securityGroups": []string{"sg-2"},
		"enis": map[string]string{"for": "request"}, "ips": true, "exclusive": true, "max": 2}}
	n.conf["runtimeConfig"] =
		map[string]any{"io.kubernetes.cri.pod-annotations": map[string]string{nic.Annotation: annotation}}
}

// chosenByPod is an address for which a pod of a StatefulSet asks.
var chosenByPod = netip.MustParseAddr("100.113.0.77")

// choose adds a pod of a StatefulSet, which asks for the address chosenByPod. Pods that come later ask for the same
// address.
func (n *node) choose(pod string) {
	n.Helper()
	n.asks(fmt.Sprintf(`[{"ip": %q}]`, chosenByPod))
	n.conf["warm"] = map[string]any{"min": 2} // so that no collection releases this address
	cmd := n.cni("ADD", pod, nil)
	cmd.Env = append(cmd.Env, "CNI_ARGS=K8S_POD_NAMESPACE=db;K8S_POD_NAME=db-0")
	n.run(cmd)
	n.got(pod, cmd)
}

// unmarked checks that the DEL of a pod with a chosen address has left the mark lease.Release. It removes the mark.
func (n *node) unmarked() {
	n.Helper()
	must(n, os.Remove(filepath.Join(n.Dir, lease.Release)))
}

// release returns the command of cni-release.service, with the conflist of the node.
func (n *node) release() *exec.Cmd {
	n.Helper()
	conflist, err := json.Marshal(map[string]any{"cniVersion": "1.1.0", "name": "net", "plugins": []any{n.conf}})
	must(n, err)
	path := filepath.Join(n.TempDir(), "net.conflist")
	must(n, os.WriteFile(path, conflist, 0o600))
	return n.command(tool.Name, "release", "--config", path)
}

// released checks that no ENI has the address that a pod of a StatefulSet had chosen.
func (n *node) released() {
	n.Helper()
	for _, e := range n.EC2.ENIs() {
		if slices.Contains(e.Addrs, chosenByPod) {
			n.Errorf("%s still has %s, which a pod had chosen", e.ID, chosenByPod)
		}
	}
}

// give creates an ENI as an operator does, and makes all pods ask for this whole ENI.
func (n *node) give() {
	n.Operate("CreateNetworkInterface", "SubnetId", "subnet-pod",
		"TagSpecification.1.ResourceType", "network-interface",
		"TagSpecification.1.Tag.1.Key", "for", "TagSpecification.1.Tag.1.Value", "request")
	n.given = n.newest().ID
	n.asks(fmt.Sprintf(`[{"eni": %q, "exclusive": true}]`, n.given))
}

// A blow is the point at which a command is killed.
type blow struct {
	where string // ec2, metadata or file
	n     int    // at which call, from 1; 0: nowhere
	after bool   // kill after the call is carried out, and before its answer
}

func (b blow) String() string {
	if b.after {
		return fmt.Sprintf("%s %d after", b.where, b.n)
	}
	return fmt.Sprintf("%s %d before", b.where, b.n)
}

// An ending is what happens to a node after a kill.
type ending bool

const (
	busy ending = true  // more pods come, and then a collection
	idle ending = false // a collection comes first
)

// endings returns the endings to try: busy and idle for a call to EC2, and otherwise one of the two, in turn.
func (b blow) endings() []ending {
	if b.where == "ec2" {
		return []ending{busy, idle}
	}
	return []ending{ending((b.n%2 == 0) != b.after)}
}

// TestKillEverywhere kills each command at each of its calls to EC2 and to metadata, before or after the call is
// carried out. It also kills before each change of a file or a lock. Of many metadata calls or changes, it tries only
// some (see step). Afterwards, no address is lost or given twice, and no ENI is leaked.
func TestKillEverywhere(t *testing.T) {
	nltest.Need(t, "root", "netns")
	start := time.Now()
	var mu sync.Mutex
	tried := map[string]int{}
	t.Run("points", func(t *testing.T) {
		for _, v := range victims {
			t.Run(v.name, func(t *testing.T) {
				t.Parallel()
				for _, b := range v.blows(t) {
					mu.Lock()
					tried[v.name+" "+b.where]++
					mu.Unlock()
					t.Run(b.String(), func(t *testing.T) {
						t.Parallel()
						for _, e := range b.endings() {
							v.strike(t, alone, b, e)
						}
					})
				}
			})
		}
	})
	total := 0
	for _, v := range victims {
		e, m, f := tried[v.name+" ec2"], tried[v.name+" metadata"], tried[v.name+" file"]
		t.Logf("%-22s EC2 %2d  metadata %2d  files and locks %3d", v.name, e, m, f)
		total += e + m + f
	}
	t.Logf("%d points in %v", total, time.Since(start).Round(time.Second))
}

// blows runs the command, and returns the points at which the tests kill it.
func (v victim) blows(t *testing.T) (all []blow) {
	h := &hand{}
	n := newNode(t, "m5.large", ec2sim.Config{}, h.via)
	v.prepare(n)
	tr := v.hit(n, h, blow{where: "file"})
	for i := range h.seen["ec2"] {
		all = append(all, blow{"ec2", i + 1, false}, blow{"ec2", i + 1, true})
	}
	for i := 0; i < h.seen["metadata"]; i += step(h.seen["metadata"]) {
		all = append(all, blow{"metadata", i + 1, false}, blow{"metadata", i + 1, true})
	}
	for i := 0; i < len(tr.Seen); i += step(len(tr.Seen)) {
		all = append(all, blow{"file", i + 1, false})
	}
	return all
}

// step returns the distance between two kills, in calls or changes. It is greater than one for long commands, because
// they make the same calls again and again.
func step(calls int) int {
	if calls > 26 {
		return *trace.Step
	}
	return 1
}

// A hand gets all requests of a node to EC2 and metadata. At the request of the blow, it kills the process that has
// sent the request.
type hand struct {
	mu   sync.Mutex
	blow blow
	seen map[string]int // since begin
	kill func()         // returns when the process has ended
}

func (h *hand) via(service string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.mu.Lock()
		if h.seen != nil {
			h.seen[service]++
		}
		b, hit := h.blow, h.blow.where == service && h.blow.n == h.seen[service]
		h.mu.Unlock()
		if !hit {
			next.ServeHTTP(w, r)
			return
		}
		if b.after {
			next.ServeHTTP(httptest.NewRecorder(), r)
		}
		h.kill()
		panic(http.ErrAbortHandler)
	})
}

// begin gives the hand a blow. From now on, the hand counts calls, and kills at the call of the blow.
func (h *hand) begin(b blow) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.blow, h.seen = b, map[string]int{}
}

// hit runs the command and kills it where the blow says.
func (v victim) hit(n *node, h *hand, b blow) *trace.Trace {
	n.Helper()
	cmd := v.command(n)
	if b.where == "file" {
		h.begin(blow{})
		tr := &trace.Trace{Counts: onFiles(n.Dir), Kill: b.n}
		var status syscall.WaitStatus
		err := n.Host.Do(func() (err error) { status, err = tr.Run(cmd); return err })
		// The order in which threads wake each other differs, so a command may make one call less.
		if err != nil || status.Signaled() != (b.n > 0 && len(tr.Seen) >= b.n) {
			n.Fatalf("%v: status %x, %v\n%s", b, status, err, cmd.Stdout)
		}
		return tr
	}
	started, dead := make(chan struct{}), make(chan struct{})
	h.kill = func() {
		<-started
		cmd.Process.Kill()
		<-dead
	}
	h.begin(b)
	n.start(cmd)
	close(started)
	err := cmd.Wait()
	close(dead)
	h.begin(blow{})
	if !cmd.ProcessState.Sys().(syscall.WaitStatus).Signaled() {
		n.Fatalf("%v: was not killed: %v\n%s%s", b, err, cmd.Stdout, cmd.Stderr)
	}
	return nil
}

// beset starts a process without privileges in a namespace of its own. The lo of this namespace gets the addresses of
// the node's ENIs, and those that EC2 will assign next. These addresses must have no effect on the node.
func (n *node) beset() {
	n.Helper()
	var addrs []netip.Addr
	for _, e := range n.ENIs() {
		addrs = append(addrs, e.Addrs...)
	}
	for a := netip.MustParseAddr("100.113.0.4"); len(addrs) < 40; a = a.Next() {
		if !slices.Contains(addrs, a) {
			addrs = append(addrs, a)
		}
	}
	ns, _ := nltest.Stranger(n)
	for _, a := range addrs {
		must(n, nl.Wiring{{NS: ns, Object: nl.Addr{Prefix: netip.PrefixFrom(a, a.BitLen()), Dev: "lo"}}}.Add())
	}
}

// strike kills the command on a new node. Then it does what a runtime and a timer do, and checks the node.
func (v victim) strike(t *testing.T, k kind, b blow, e ending) {
	h := &hand{}
	n := newNode(t, "m5.large", ec2sim.Config{}, h.via)
	if k.String() != alone.String() {
		n = whole(t, k, h)
	}
	v.prepare(n)
	if b.n%8 == 0 {
		n.beset()
	}
	tr := v.hit(n, h, b)
	defer func() {
		if !t.Failed() {
			return
		}
		t.Logf("busy %v", e)
		if text, err := os.ReadFile(n.logFile()); err == nil {
			t.Logf("the lease log:\n%s", text)
		}
		if tr != nil {
			t.Logf("killed at the last of\n%s", strings.Join(tr.Seen, "\n"))
		}
	}()
	n.unlocked()
	n.State()
	r := n.runtime()
	if strings.HasPrefix(v.name, "ADD") || strings.HasPrefix(v.name, "DEL") {
		r.del("victim") // the runtime got no answer to the ADD or DEL
		n.lost("victim")
	}
	if v.name == delChosen {
		n.unmarked()
	}
	if v.name == "GC" {
		n.run(v.command(n)) // the runtime repeats the GC
	}
	both := func() {
		n.cool("victim")
		r.add("victim")
		delete(n.conf, "runtimeConfig") // the pod "another" asks for nothing
		r.add("another")
	}
	switch {
	case e == busy:
		both()
	case v.ends():
		r.add("between") // this ADD removes old owners of addresses from the registry
	}
	n.Age(time.Hour)
	r.gc()
	if n.given != "" { // a killed ADD is a waiter until its deadline, so a later collection detaches the ENI
		n.Age(time.Hour)
		r.gc()
	}
	n.intact()
	if e == idle {
		if v.ends() {
			n.released()
		}
		both()
		n.intact()
	}
}

// ends reports whether the command ends the lease of a pod that had chosen its address.
func (v victim) ends() bool { return v.name == "release" || v.name == delChosen }

// cool runs an ADD of a pod that asks for addresses or an ENI. The ADD may fail because addresses cool. Afterwards, all
// addresses have cooled.
func (n *node) cool(pod string) {
	n.Helper()
	if n.ns == nil || n.conf["runtimeConfig"] == nil {
		return
	}
	cmd := n.cni("ADD", pod, nil)
	n.start(cmd)
	if err := cmd.Wait(); err == nil {
		n.got(pod, cmd)
		n.run(n.cni("DEL", pod, nil))
		delete(n.pods, pod)
	} else if out := cmd.Stdout.(*bytes.Buffer).String(); !strings.Contains(out, "cool") {
		n.Errorf("ADD of %s: %v\n%s", pod, err, out)
	}
	n.Age(2 * time.Minute)
}

// A runtime has functions for what happens after a kill: a runtime calls ADD and DEL, and a timer runs a collection.
// For the kind alone, the functions run in the test's process, because to start processes would take most of the time.
type runtime struct {
	add, del func(pod string)
	gc       func()
}

func (n *node) runtime() runtime {
	if n.ns != nil {
		return runtime{n.add, func(pod string) { n.run(n.cni("DEL", pod, nil)) }, func() { n.run(n.gc()) }}
	}
	n.Helper()
	var c lease.Config
	text, err := json.Marshal(n.conf)
	must(n, errors.Join(err, json.Unmarshal(text, &c), c.Validate()))
	p := n.pool(c.Policies()[0])
	p.Shelves = []lease.Shelf{} // these pods have no namespaces
	add := func(pod string) {
		a, _, err := p.Obtain(n.Context(), lease.Owner{Key: podKey(pod), NetNS: n.netns(pod)}, p.Acquire)
		must(n, err)
		n.has(pod, a.Addrs[0])
	}
	del := func(pod string) { must(n, p.End(n.Context(), podKey(pod))) }
	gc := func() {
		_, err := p.Collect(n.Context(), less.Collection{FreeAfter: time.Minute, Max: -1})
		must(n, err)
	}
	return runtime{add, del, gc}
}

// lost records that these pods have ended, and removes their namespaces.
func (n *node) lost(pods ...string) {
	n.Helper()
	for _, pod := range pods {
		delete(n.pods, pod)
		if n.ns != nil {
			nltest.Remove(n, n.netns(pod))
			delete(n.ns, pod)
		} else if err := os.Remove(n.netns(pod)); err != nil {
			n.Fatal(err)
		}
	}
}

// unlocked checks that no process has a lock.
func (n *node) unlocked() {
	n.Helper()
	locks, _ := filepath.Glob(filepath.Join(n.Dir, "*.lock"))
	for _, path := range append(locks, n.Dir) {
		f, err := os.Open(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue // the command was killed before it made the directory
		}
		must(n, err)
		how := syscall.LOCK_EX | syscall.LOCK_NB
		if n.ns != nil { // programs that a killed process has executed are about to end
			how = syscall.LOCK_EX
		}
		if err := syscall.Flock(int(f.Fd()), how); err != nil {
			n.Errorf("%s: %v", path, err)
		}
		f.Close()
	}
}

// intact checks the node after a collection: EC2 and the registry agree, pods have their addresses, and no call is
// under way.
func (n *node) intact() {
	n.Helper()
	n.unlocked()
	n.tidy()
	n.logged()
	s, attached := n.State(), map[string]ec2sim.ENI{}
	for _, e := range n.EC2.ENIs() {
		switch {
		case e.ID == n.given && !n.uses(e):
			if e.Instance != "" || e.DeleteOnTermination || len(e.Tags) != 1 || len(e.Addrs) != 1 {
				n.Errorf("no pod uses the ENI that an operator has created, and it is %+v", e)
			}
			continue
		case e.Instance != n.ID:
			n.Errorf("%s (%s) is %s", e.ID, e.Description, e.Status)
			continue
		case e.Index > 0 && e.DeleteOnTermination == (e.ID == n.given): // only the given ENI outlives the instance
			n.Errorf("%s: DeleteOnTermination is %v", e.ID, e.DeleteOnTermination)
		}
		attached[e.ID] = e
		known, ok := s.ENIs[e.ID]
		if !ok {
			n.Errorf("the registry does not know %s", e.ID)
		}
		for _, a := range e.Addrs {
			if !slices.Contains(known.Addrs, a) || e.Index > 0 && !s.Free.Has(a) && !s.Leases.Has(a) {
				n.Errorf("%s has %s: the registry does not know it, or whose it is", e.ID, a)
			}
		}
		for _, c := range e.Prefixes {
			if !known.Has(c.Addr()) {
				n.Errorf("%s has %s: the registry does not know it", e.ID, c)
			}
		}
	}
	for a, l := range s.Leases.All() {
		if _, lives := n.pods[l.ContainerID]; !lives || !slices.Contains(n.addrs(l.ContainerID), a) {
			n.Errorf("%s is leased by %s, which has %s", a, l.Key, n.addrs(l.ContainerID))
		}
	}
	for pod := range n.pods {
		for _, a := range n.addrs(pod) {
			l, _ := s.Leases.At(a)
			e := attached[l.ENI]
			if l.Key != podKey(pod) || !slices.Contains(e.Addrs, a) && !delegated(e, a) {
				n.Errorf("%s has %s, which is leased by %q, and %s has %v", pod, a, l.Key, e.ID, e.Addrs)
			}
		}
	}
	for id := range s.ENIs {
		if _, ok := attached[id]; !ok {
			n.Errorf("the registry knows %s, which is not attached", id)
		}
	}
	for _, i := range s.Intents {
		n.Errorf("intent %v", i)
	}
	if len(s.Waiters) > 0 {
		n.Errorf("waiters %v", s.Waiters)
	}
}

// uses reports whether a pod has an address of the ENI.
func (n *node) uses(e ec2sim.ENI) bool {
	for _, a := range n.pods {
		if slices.Contains(e.Addrs, a) {
			return true
		}
	}
	return false
}

func delegated(e ec2sim.ENI, a netip.Addr) bool {
	return slices.ContainsFunc(e.Prefixes, func(c netip.Prefix) bool { return c.Contains(a) })
}

// tidy checks that the registry's directory has only the files that commands leave there.
func (n *node) tidy() {
	n.Helper()
	files, err := os.ReadDir(n.Dir)
	if err != nil {
		n.Fatal(err)
	}
	for _, f := range files {
		name := f.Name()
		known := []string{"registry.json", "registry.json.old", lease.Refill, lease.Release, "collected",
			"gave-back", "log", "commands", "ec2-last-subnets.json"}
		if !slices.Contains(known, name) && !strings.HasSuffix(name, ".lock") {
			n.Errorf("%s is left over", name)
		}
	}
}
