// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package chain

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest/trace"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin/ipvlan"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	ptp "github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/unnumbered-ptp"
)

var (
	mostPoints = flag.Int("orders.points", 3, "at how many system calls of each command TestOrders stops it; 0: at all")
	orderSeed  = flag.Uint64("orders.seed", 1, "which of them")
)

// partOf is an environment variable: it says which of the three plugins the test binary is.
const partOf = "CHAIN_TEST_PART"

// asPart runs one of the three plugins.
func asPart(part string) {
	switch part {
	case "ipam":
		plugin.Main("cni-ipvlan-vpc-k8s-ipam", lease.Commands())
	case "ipvlan":
		plugin.Main("cni-ipvlan-vpc-k8s-ipvlan", lease.NotesUse(ipvlan.Commands(lease.LinkName)))
	case "ptp":
		plugin.Main("cni-ipvlan-vpc-k8s-unnumbered-ptp", ptp.Commands())
	}
}

// kinds maps each kind of configuration to its plugins, in the order of an ADD.
var kinds = map[string][]string{"one plugin": {""}, "three plugins": {"ipam", "ipvlan", "ptp"}}

// A pod has the data that a runtime has about a pod.
type pod struct {
	name    string // name of the Kubernetes pod
	id      string
	ns      *nl.NS
	path    string
	bare    string           // dump of the namespace before any ADD
	result  *types100.Result // of the last ADD that succeeded
	running bool             // an ADD has succeeded, and no DEL has begun since
	ended   int              // number of DELs that have begun
}

func (p *pod) end() { p.running, p.ended = false, p.ended+1 }

// A stage is a node with pods, on which commands run at the same time.
type stage struct {
	node
	parts []string
	keys  string // further keys of the configuration
	pods  []*pod
	// The first command is a GC of three plugins: see mayLose.
	losesPairs bool
}

// empty returns the stage without pods, for a subtest.
func (s *stage) empty(t *testing.T) *stage {
	return &stage{node: s.node.within(t), parts: s.parts, keys: s.keys}
}

// An order has a first command that waits at a system call, while other commands run to their end.
type order struct {
	name    string
	prepare func(*stage)
	first   func(*stage) call
	second  func(*stage)
}

// A call is a command about a pod, or a GC.
type call struct {
	verb  string
	pod   *pod
	valid []*pod // for a GC: the pods whose attachments are valid
}

var orders = []order{
	{"ADD, DEL of it", nil, addOf("web"), func(s *stage) { s.del("web") }},
	{"ADD, DEL of it, ADD of another", nil, addOf("web"), func(s *stage) { s.del("web"); s.add("other") }},
	{"ADD, the same ADD", nil, addOf("web"), func(s *stage) { s.add("web") }},
	{"ADD, ADD of another", nil, addOf("web"), func(s *stage) { s.add("other") }},
	{"ADD, GC with it", nil, addOf("web"), func(s *stage) { s.gc("bystander", "web") }},
	{"ADD, GC without it", nil, addOf("web"), func(s *stage) { s.gc("bystander"); s.pod("web").end() }},
	{"DEL, ADD of the same name", func(s *stage) { s.add("web") }, delOf("web"),
		func(s *stage) { s.again("web"); s.add("web") }},
	{"DEL, the same DEL, ADD of another", func(s *stage) { s.add("web") }, delOf("web"),
		func(s *stage) { s.del("web"); s.add("other") }},
	{"DEL, ADD of the same attachment", func(s *stage) { s.add("web") }, delOf("web"),
		func(s *stage) { s.add("web"); s.pod("web").end() }},
	{"DEL, GC, ADD of another", func(s *stage) { s.add("web") }, delOf("web"),
		func(s *stage) { s.gc("bystander"); s.add("other") }},
	{"GC, ADD", func(s *stage) { s.add("lost"); s.remove("lost") }, gcOf("bystander"), func(s *stage) { s.add("web") }},
	{"GC, DEL, ADD of another", func(s *stage) { s.add("web") }, gcOf("bystander", "web"),
		func(s *stage) { s.del("web"); s.add("other") }},
	{"GC, the same GC, ADD", func(s *stage) { s.add("lost"); s.remove("lost") }, gcOf("bystander"),
		func(s *stage) { s.gc("bystander"); s.add("web") }},
}

func addOf(name string) func(*stage) call {
	return func(s *stage) call { return call{verb: "ADD", pod: s.pod(name)} }
}
func delOf(name string) func(*stage) call {
	return func(s *stage) call { return call{verb: "DEL", pod: s.pod(name)} }
}
func gcOf(valid ...string) func(*stage) call {
	return func(s *stage) call { return call{verb: "GC", valid: s.all(valid...)} }
}

// TestOrders stops the first command of each order at its system calls. The other commands run to their end, or until
// they wait for a lock that the first command holds. Then the first command continues. Afterwards no address has two
// pods, no pod has two addresses, and each running pod has its whole network. A DEL, or a GC after the end of the
// namespace, leaves nothing.
//
// A runtime must not run GC at the same time as ADD and DEL, nor two commands for one container (CNI specification,
// section 4). But if a runtime is killed, the command that it has started still runs. When the runtime is back, it may
// start another command. Then the later command decides. A pod may lose its network if a GC does not name the pod, or
// if its DEL runs together with its ADD. As long as a pod has an address, no other pod gets this address.
//
// By default, the first command waits only at some of the system calls that may leave something changed. With -args
// -orders.points 0, it waits at each of these system calls.
func TestOrders(t *testing.T) { newNode(t).orders("") }

// TestOrdersRouted is TestOrders with routed pods whose pairs have names for engines of NetworkPolicy. Two sandboxes of
// one pod then need the same name.
func TestOrdersRouted(t *testing.T) { newNodeWithout(t).orders(byName) }

func (n node) orders(keys string) {
	t := n.T
	table := []string{fmt.Sprintf("%-14s %-36s %6s %6s %10s", "configuration", "order", "calls", "points",
		"violations")}
	for _, kind := range []string{"one plugin", "three plugins"} {
		for _, o := range orders {
			calls, points, bad := 0, 0, 0
			t.Run(kind+"/"+o.name, func(t *testing.T) {
				s := &stage{node: n.within(t), parts: kinds[kind], keys: keys}
				calls, points, bad = s.everywhere(o)
			})
			table = append(table, fmt.Sprintf("%-14s %-36s %6d %6d %10d", kind, o.name, calls, points, bad))
		}
	}
	t.Logf("\n%s", strings.Join(table, "\n"))
}

// everywhere plays an order several times. Each time, the first command waits at another call.
func (s *stage) everywhere(o order) (calls, points, bad int) {
	t := s.T
	t.Run("alone", func(t *testing.T) { calls = s.empty(t).play(o, 0) })
	at := rand.New(rand.NewPCG(*orderSeed, uint64(len(o.name)))).Perm(calls)
	if *mostPoints > 0 {
		at = at[:min(*mostPoints, calls)]
	}
	slices.Sort(at)
	for _, i := range at {
		points++
		if !t.Run(fmt.Sprint(i+1), func(t *testing.T) { s.empty(t).play(o, i+1) }) {
			bad++
		}
	}
	return calls, points, bad
}

// play plays an order once. The first command waits at the call with the number at, counted from 1. If at is 0, the
// command does not wait, and the other commands do not run. play returns how many calls the command has made.
func (s *stage) play(o order, at int) (calls int) {
	s.pods = nil
	s.add("bystander")
	base := nltest.Dump(s.T, s.ns)
	if o.prepare != nil {
		o.prepare(s)
	}
	first, met, done := o.first(s), false, make(chan struct{})
	s.losesPairs = first.verb == "GC" && len(s.parts) > 1
	if first.verb == "DEL" {
		first.pod.end()
	}
	ended := 0
	if first.pod != nil {
		ended = first.pod.ended
	}
	seen, result := s.run(first, at, func() {
		met = true
		go func() {
			defer close(done)
			o.second(s)
		}()
		if !s.locked() {
			<-done
		}
	})
	if met {
		<-done
	}
	if result != nil && first.pod.ended == ended { // no DEL of the pod has begun since the first command began
		first.pod.result, first.pod.running = result, true
	}
	if s.losesPairs {
		s.mayLose()
	}
	if s.whole(); s.Failed() && met {
		s.Logf("the first command waited after the last of\n\t%s", strings.Join(seen[:at], "\n\t"))
	}
	s.leave(at%2 == 0)
	s.clean(base)
	return len(seen)
}

// mayLose marks pods that may have lost their network. The GC of unnumbered-ptp does not read the registry. So this GC
// may delete the pair of a pod whose ADD runs at the same time. On a busy machine, the GC may delete the pair while the
// ADD still needs it. Then the ADD fails, and the runtime repeats the ADD.
func (s *stage) mayLose() {
	for _, p := range s.pods {
		if p.name != "bystander" {
			p.running = false
		}
	}
}

// locked reports whether the first command holds a lock.
func (s *stage) locked() bool {
	f, err := os.Open(registry.Dir())
	if err != nil {
		return false
	}
	defer f.Close()
	return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil
}

// pod returns the pod with this name. If there is none, it makes the pod.
func (s *stage) pod(name string) *pod {
	i := slices.IndexFunc(s.pods, func(p *pod) bool { return p.name == name })
	if i >= 0 {
		return s.pods[i]
	}
	p := &pod{name: name, id: name}
	s.begin(p)
	return p
}

func (s *stage) begin(p *pod) {
	p.ns, p.path = nltest.NS(s.T, p.name)
	p.bare = nltest.Dump(s.T, p.ns)
	s.pods = append([]*pod{p}, s.pods...)
}

func (s *stage) all(names ...string) (all []*pod) {
	for _, name := range names {
		all = append(all, s.pod(name))
	}
	return all
}

// again makes a second container for the Kubernetes pod.
func (s *stage) again(name string) {
	s.begin(&pod{name: name, id: name + "-again"})
}

func (s *stage) requestOf(p *pod) *plugin.Request[Config] {
	r := s.request(p.path, s.keys)
	r.ContainerID, r.Pod = p.id, plugin.Pod{Namespace: "default", Name: p.name}
	return r
}

// add runs an ADD. The ADD may fail while another command about the pod runs.
func (s *stage) add(name string) {
	p := s.pod(name)
	add := s.ADD
	if len(s.parts) > 1 {
		add = s.three
	}
	result, err := add(s.requestOf(p))
	// An address may be in use for a while: the kernel deletes the slaves of a removed namespace later (cleanup_net),
	// and here no address cools. A runtime also repeats an ADD that has failed.
	for end := time.Now().Add(time.Minute); len(s.parts) > 1 && isTaken(err) && time.Now().Before(end); {
		result, err = add(s.requestOf(p))
	}
	switch {
	case err == nil:
		p.result, p.running = result, true
	case name == "web", s.losesPairs && strings.HasSuffix(err.Error(), syscall.ENODEV.Error()):
		s.Logf("ADD of %s: %v", name, err)
	default:
		s.Errorf("ADD of %s: %v", name, err)
	}
}

// isTaken reports whether ADD has failed because another namespace has the address.
func isTaken(err error) bool {
	return err != nil && strings.Contains(err.Error(), syscall.EADDRINUSE.Error())
}

func (s *stage) del(name string) {
	p := s.pod(name)
	p.end()
	if err := s.delete(s.requestOf(p)); err != nil {
		s.Errorf("DEL of %s: %v", name, err)
	}
}

func (s *stage) delete(r *plugin.Request[Config]) error { return s.DEL(r) }

// remove deletes the namespace of a pod without a DEL.
func (s *stage) remove(name string) {
	p := s.pod(name)
	nltest.Remove(s.T, p.path)
	p.running, p.ns = false, nil
}

func (s *stage) gc(valid ...string) {
	r := s.request("", s.keys)
	if err := s.GC(r, attachments(s.all(valid...))...); err != nil {
		s.Errorf("GC: %v", err)
	}
}

func attachments(pods []*pod) (all []plugin.Attachment) {
	for _, p := range pods {
		all = append(all, plugin.Attachment{ContainerID: p.id, IfName: "eth0"})
	}
	return all
}

// run runs the first command as one process, or as three. It returns those calls of the processes that may leave
// something changed, and the result of an ADD. After the call with the number at, the command waits until meets
// returns.
func (s *stage) run(c call, at int, meets func()) (seen []string, result *types100.Result) {
	parts := slices.Clone(s.parts)
	var prev json.RawMessage
	if c.verb == "DEL" {
		slices.Reverse(parts)
		prev, _ = json.Marshal(c.pod.result)
	}
	for _, part := range parts {
		tr := &trace.Trace{Counts: trace.Lasting, After: true}
		if at > len(seen) {
			tr.Kill, tr.Meets = at-len(seen), meets
		}
		out, status := s.exec(part, c, prev, tr)
		seen = append(seen, tr.Seen...)
		if status != 0 {
			var e types.Error
			if err := json.Unmarshal(out, &e); err != nil || c.verb != "ADD" {
				s.Errorf("%s: status %x: %s", c.verb, status, out)
			}
			s.Logf("%s fails: %s", c.verb, e.Msg)
			return seen, nil
		}
		if c.verb == "ADD" {
			prev = out
		}
	}
	if c.verb == "ADD" {
		result = new(types100.Result)
		s.must(json.Unmarshal(prev, result))
	}
	return seen, result
}

// exec runs a plugin as a process.
func (s *stage) exec(part string, c call, prev json.RawMessage, tr *trace.Trace) ([]byte, syscall.WaitStatus) {
	conf := map[string]any{}
	s.must(json.Unmarshal([]byte(config(s.keys)), &conf))
	if prev != nil {
		conf["prevResult"] = prev
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), partOf+"="+part, "CNI_COMMAND="+c.verb, "CNI_PATH=/opt/cni/bin")
	if c.pod != nil {
		cmd.Env = append(cmd.Env, "CNI_CONTAINERID="+c.pod.id, "CNI_IFNAME=eth0", "CNI_NETNS="+c.pod.path,
			"CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME="+c.pod.name)
	} else {
		conf["cni.dev/valid-attachments"] = attachments(c.valid)
		conf["cniVersion"] = "1.1.0"
	}
	stdin, err := json.Marshal(conf)
	s.must(err)
	var out bytes.Buffer
	cmd.Stdin, cmd.Stdout = bytes.NewReader(stdin), &out
	var status syscall.WaitStatus
	s.must(s.ns.Do(func() (err error) { status, err = tr.Run(cmd); return err }))
	return out.Bytes(), status
}

// foreign returns an address that the pod has, but that is leased to another pod.
func foreign(addrs []nl.Addr, p *pod, state *registry.State) netip.Addr {
	for _, a := range addrs {
		if l, ok := state.Leases.At(a.Prefix.Addr()); ok && l.ContainerID != "" && l.ContainerID != p.id {
			return a.Prefix.Addr()
		}
	}
	return netip.Addr{}
}

// pods is the subnet of the pods' addresses.
var pods = netip.MustParsePrefix("10.0.1.0/24")

// whole checks that each running pod has its network, its lease, and an address of its own.
func (s *stage) whole() {
	state, err := s.registry().View()
	s.must(err)
	has := map[netip.Addr]string{}
	for _, p := range s.pods {
		if p.ns == nil {
			continue
		}
		addrs, err := p.ns.Addrs("")
		s.must(err)
		n := 0
		for _, a := range addrs {
			if a := a.Prefix.Addr(); pods.Contains(a) && has[a] != p.id { // the pair's end also has the slave's address
				if n++; has[a] != "" || n > 1 {
					s.Errorf("%s has %s, which %s has; it has %d addresses", p.id, a, has[a], n)
				}
				has[a] = p.id
			}
		}
		if state.Leases.Has(foreign(addrs, p, state)) {
			s.Errorf("%s has an address that another pod leases", p.id)
		}
		if !p.running {
			continue
		}
		if err := s.CHECK(s.requestOf(p), p.result); err != nil {
			s.Errorf("%s is not whole: %v", p.id, err)
		}
		for _, ip := range p.result.IPs {
			a, _ := plugin.Addr(ip.Address.IP)
			if l, _ := state.Leases.At(a); l.ContainerID != p.id || has[a] != p.id {
				s.Errorf("%s has %s, which is leased by %q, and %q has it in the kernel", p.id, a,
					l.ContainerID, has[a])
			}
		}
	}
}

// leave ends all pods except the bystander: by DELs, or by removal of their namespaces and GCs.
func (s *stage) leave(byDel bool) {
	for _, p := range s.pods {
		if p.name == "bystander" {
			continue
		}
		if byDel {
			r := s.requestOf(p)
			if p.ns == nil {
				r.NetNS = ""
			}
			s.must(s.delete(r))
			s.must(s.delete(r))
			if p.ns != nil {
				s.same("DEL left something in "+p.id, p.bare, nltest.Dump(s.T, p.ns))
			}
		} else if p.ns != nil {
			nltest.Remove(s.T, p.path)
		}
	}
	if !byDel {
		s.gc("bystander") // deletes the pairs; then the kernel deletes the routes to the pods
		s.gc("bystander") // now nothing shows that the addresses are in use
	}
}

// clean checks that nothing of the other pods is on the node or in the registry. Leases of addresses that an ADD has
// found in use may remain: a collection would end them.
func (s *stage) clean(base string) {
	keeps := strings.Split(base, "\n")
	for line := range strings.SplitSeq(nltest.Dump(s.T, s.ns), "\n") {
		if !slices.Contains(keeps, line) {
			s.Errorf("left: %s", line)
		}
	}
	s.must(s.registry().Change(s.Context(), func(state *registry.State) {
		for a, l := range state.Leases.All() {
			if l.Key == (registry.Key{}) {
				s.Logf("%s is left to a collection: it was found in %s", a, l.NetNS)
				state.End(a, time.Time{})
			} else if l.ContainerID != "bystander" {
				s.Errorf("%s is still leased by %s", a, l.Key)
				state.End(a, time.Time{})
			}
		}
		if len(state.Waiters) > 0 || state.Free.Len() != 3 {
			s.Errorf("waiters %v, %d free addresses", state.Waiters, state.Free.Len())
		}
	}))
	by := s.pod("bystander")
	if err := s.CHECK(s.requestOf(by), by.result); err != nil {
		s.Errorf("the pod beside them is not whole: %v", err)
	}
	s.must(s.delete(s.requestOf(by)))
}
