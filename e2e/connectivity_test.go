// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/kubeproxy"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/paths"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/vpcsim"
)

// tryModes has a mode for each data path. The type of the instances allows one ENI more than the pods need.
var tryModes = []mode{
	{"ipvlan", forTries(asShipped), tryOptions},
	{byPair, forTries(routed), tryOptions},
}

var tryOptions = paths.Options{Families: dual.Families, Type: "m5.xlarge"}

// forTries allows a test to add many pods, one after the other. It also adds a pool that has no ENI.
func forTries(change func(ipam, ptp map[string]any)) func(ipam, ptp map[string]any) {
	return func(ipam, ptp map[string]any) {
		change(ipam, ptp)
		ipam["reuseIPWait"] = 0
		ipam["pools"].(map[string]any)["empty"] = map[string]any{"namespaces": []string{"empty"}}
	}
}

// A tryWorld has two nodes with pods, Services and a DNS server. connectivity-test runs on the first node. Its peer
// runs on the second node.
type tryWorld struct {
	*paths.Scene
	node     *paths.Node
	fabric   *nl.NS
	dir      string // the directory of the conflist and of the plugins
	conflist []byte
	args     []string
}

// newTryWorld makes a tryWorld. Its conflist has one more plugin: the script faultPlugin, which makes faults.
func newTryWorld(t *testing.T, m mode) *tryWorld {
	t.Helper()
	m.need(t)
	w := &tryWorld{Scene: m.scene(t), dir: t.TempDir()}
	w.node = w.Nodes[0]
	addPod(t, w.Nodes[1], "default", "further") // kube-proxy's rules need three pods on each node
	addPod(t, w.Nodes[1], "cousins", "last")
	stop, err := w.Serve(kubeproxy.NFTables)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
	if w.fabric, err = nl.Open("fabric", strings.TrimSuffix(w.node.Path, "node1")+"vpc"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.fabric.Close() })
	w.install(t, m)
	dns := w.Hosts()["host"]
	host, err := nl.Open("host", strings.TrimSuffix(w.node.Path, "node1")+"host")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { host.Close() })
	answerDNS(t, host)
	i := slices.IndexFunc(kubeproxy.Services(), func(s kubeproxy.Service) bool { return s.Name == "remote" })
	service := kubeproxy.Services()[i]
	w.args = []string{"--service", netip.AddrPortFrom(service.ClusterIP.V4, service.Port).String(), "--dns",
		dns.String(),
		"--internet", netip.AddrPortFrom(vpcsim.InternetAddr, paths.Port).String(), "--peer",
		w.Nodes[1].Addr().String()}
	w.serve(t)
	return w
}

// faultPlugin is a plugin that runs after our plugins. On ADD, it runs the commands in $FAULT, and returns the result
// of our plugins.
const faultPlugin = `#!/bin/sh
conf=$(cat)
if [ "$CNI_COMMAND" = VERSION ]; then
	echo '{"cniVersion": "1.0.0", "supportedVersions": ["0.4.0", "1.0.0", "1.1.0"]}'
elif [ "$CNI_COMMAND" = ADD ]; then
	addr=$(echo "$conf" | jq -r '.prevResult.ips[0].address' | cut -d/ -f1)
	veth=$(ip -o link | grep " $CNI_CONTAINERID " | sed 's/^[0-9]*: \([^@:]*\).*/\1/')
	eval "$FAULT" >&2
	echo "$conf" | jq .prevResult
fi
`

// install writes the conflist and faultPlugin to a directory, and makes symlinks to our plugins there.
func (w *tryWorld) install(t *testing.T, m mode) {
	t.Helper()
	text, err := m.conflist()
	if err != nil {
		t.Fatal(err)
	}
	var list map[string]any
	if err := json.Unmarshal(text, &list); err != nil {
		t.Fatal(err)
	}
	list["plugins"] = append(list["plugins"].([]any), map[string]any{"type": "fault"})
	if w.conflist, err = json.Marshal(list); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(w.dir, "10.conflist"), w.conflist, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(w.dir, "fault"), []byte(faultPlugin), 0o755); err != nil {
		t.Fatal(err)
	}
	ours, err := filepath.Glob(filepath.Join(programs(t), "cni-*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, program := range ours {
		if err := os.Symlink(program, filepath.Join(w.dir, filepath.Base(program))); err != nil {
			t.Fatal(err)
		}
	}
}

// answerDNS starts a DNS server over UDP that answers NXDOMAIN for each name.
func answerDNS(t *testing.T, n *nl.NS) {
	t.Helper()
	var c *net.UDPConn
	if err := n.Do(func() (err error) {
		c, err = net.ListenUDP("udp4", &net.UDPAddr{Port: paths.DNS})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	go func() {
		for b := make([]byte, 512); ; {
			size, from, err := c.ReadFromUDPAddrPort(b)
			if err != nil {
				return
			}
			b[2], b[3] = 0x81, 0x83 // flags: a response with the code NXDOMAIN (RFC 1035, section 4.1.1)
			_, _ = c.WriteToUDPAddrPort(b[:size], from)
		}
	}()
}

func (w *tryWorld) command(t *testing.T, node *paths.Node, fault string, args ...string) *exec.Cmd {
	t.Helper()
	// Do not use the test's context: it ends before the cleanup, in which connectivity-test --serve removes its pod.
	c := exec.Command(filepath.Join(w.dir, "cni-ipvlan-vpc-k8s-tool"), append([]string{"connectivity-test",
		"--within=5m", "--config", filepath.Join(w.dir, "10.conflist"), "--bin-dir", w.dir}, args...)...)
	c.Env = append(append(os.Environ(), node.Env()...), "FAULT="+fault, "DIR="+w.dir)
	return c
}

// serve runs the peer of connectivity-test on the second node.
func (w *tryWorld) serve(t *testing.T) {
	t.Helper()
	c := w.command(t, w.Nodes[1], "", "--serve")
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var messages bytes.Buffer
	c.Stderr = &messages
	if err := w.Nodes[1].Do(c.Start); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Process.Signal(syscall.SIGTERM)
		if err := c.Wait(); err != nil {
			t.Errorf("--serve: %v: %s", err, &messages)
		}
	})
	if n, err := out.Read(make([]byte, 1)); n == 0 {
		t.Fatalf("--serve: %v: %s", err, &messages)
	}
}

// A tryRow is a path in the JSON output of connectivity-test.
type tryRow struct {
	Path, Family, To, State, Stopped, Cause, Do string
	Took                                        float64 `json:"took_ms"`
}

func (r tryRow) String() string {
	return fmt.Sprintf("%s %s %s to %s: %s: %s: %s", r.State, r.Path, r.Family, r.To, r.Stopped, r.Cause, r.Do)
}

// try runs connectivity-test. It returns the paths that failed, and all paths.
func (w *tryWorld) try(t *testing.T, fault string, args ...string) (failed, all []tryRow) {
	t.Helper()
	c := w.command(t, w.node, fault, slices.Concat(w.args, []string{"--output", "json"}, args)...)
	var out, messages bytes.Buffer
	c.Stdout, c.Stderr = &out, &messages
	status := w.node.Do(c.Run)
	var r struct {
		Failed int
		Took   float64 `json:"took_ms"`
		Paths  []tryRow
	}
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		t.Fatalf("%v: %v: %s%s", status, err, &out, &messages)
	}
	for _, row := range r.Paths {
		if row.State == "fails" {
			failed = append(failed, row)
		}
	}
	if (status != nil) != (len(failed) > 0) || r.Failed != len(failed) {
		t.Errorf("the status is %v, and %d paths fail: %s", status, len(failed), &messages)
	}
	return failed, r.Paths
}

// TestConnectivity runs connectivity-test several times on a healthy node. Each path must work, and connectivity-test
// must report no fault. The node and its pods must not change.
func TestConnectivity(t *testing.T) {
	nltest.Need(t, "root", "nftables")
	for _, m := range tryModes {
		t.Run(m.name, func(t *testing.T) {
			w := newTryWorld(t, m)
			w.try(t, "") // the node gets more addresses
			before := w.dump(t)
			const runs = 2
			for range runs {
				failed, all := w.try(t, "")
				if len(failed) > 0 {
					t.Errorf("a healthy node: %v", failed)
				}
				var got []string
				for _, r := range all {
					if r.State == "works" && r.Path != "ADD" && r.Path != "DEL" {
						got = append(got, strings.TrimSpace(r.Family+" "+r.Path))
					}
				}
				slices.Sort(got)
				if d := cmp.Diff(tryPaths(m), got); d != "" {
					t.Errorf("paths (-want +got):\n%s", d)
				}
			}
			if d := cmp.Diff(before, w.dump(t)); d != "" {
				t.Errorf("the node or a pod has changed (-before +after):\n%s", d)
			}
			want := vpcsim.Drops{}
			if m.name != byPair {
				want.NoHost = 1 + runs // the datagrams that make pods ask for the MAC address of the VPC router
			}
			if drops, err := w.Drops(); err != nil || drops != want {
				t.Errorf("the fabric has dropped: %v; %v", drops, err)
			}
		})
	}
}

// tryPaths are the paths that must work in a mode.
func tryPaths(m mode) (all []string) {
	for _, f := range []string{"IPv4", "IPv6"} {
		names := []string{"node to pod", "pod to node", "pod to pod", "pod to metadata", "node to peer's pod",
			"peer's pod to pod",
			"pod to peer's pod"}
		if m.name != byPair {
			names = append(names, "pod to VPC gateway")
		}
		if f == "IPv4" {
			names = append(names, "node to metadata", "pod to DNS", "pod to Service", "pod to internet", "node to "+
				"peer's node",
				"pod to peer's node")
		}
		for _, n := range names {
			all = append(all, f+" "+n)
		}
	}
	slices.Sort(all)
	return all
}

// dump returns the state of the node and its running pods, without packet counters.
func (w *tryWorld) dump(t *testing.T) string {
	t.Helper()
	namespaces := []*nl.NS{w.node.NS}
	for _, p := range w.node.Pods {
		namespaces = append(namespaces, p.NS)
	}
	return regexp.MustCompile(`packets \d+ bytes \d+`).ReplaceAllString(nltest.Dump(t, namespaces...), "")
}

// TestConnectivityKill kills connectivity-test at several points. After two collections, or after a GC, nothing of the
// test's pods may remain, and the running pods must be unchanged. Without -faults, the test uses only the first data
// path.
func TestConnectivityKill(t *testing.T) {
	nltest.Need(t, "root", "nftables")
	modes := tryModes
	if !*allFaults {
		modes = modes[:1]
	}
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) {
			w := newTryWorld(t, m)
			w.try(t, "")
			before, mounts := w.dump(t), namespaces(t)
			leases := w.leases(t)
			for _, at := range []struct {
				pairs int
				then  time.Duration
			}{{0, 0}, {0, 20 * time.Millisecond}, {1, 0}, {1, 30 * time.Millisecond}, {2, 0}, {2,
				300 * time.Millisecond},
				{2, time.Second}} {
				w.kill(t, at.pairs, at.then)
			}
			if got := w.leases(t); got == leases {
				t.Error("no kill has left a lease: there is nothing to collect")
			}
			w.collect(t)
			w.missedLongAgo(t)
			w.collect(t)
			if d := cmp.Diff(leases, w.leases(t)); d != "" {
				t.Errorf("leases (-before +after):\n%s", d)
			}
			if d := cmp.Diff(before, w.dump(t)); d != "" {
				t.Errorf("the node or a pod has changed (-before +after):\n%s", d)
			}
			w.kill(t, 2, 0)
			// A GC does not end the leases of a concurrent ADD, and a plugin of the killed program may still run.
			await(t, "a GC has ended the leases of the killed test", func() bool {
				w.gc(t)
				return w.leases(t) == leases
			})
			if d := cmp.Diff(before, w.dump(t)); d != "" {
				t.Errorf("the node or a pod has changed after a GC (-before +after):\n%s", d)
			}
			if d := cmp.Diff(mounts, namespaces(t)); d != "" {
				t.Errorf("namespaces: %s", d)
			}
		})
	}
}

// kill starts connectivity-test, waits until the test's pods have this many pairs, and then waits for the duration in
// the argument then. Afterwards it kills connectivity-test, and waits until the plugins have ended.
func (w *tryWorld) kill(t *testing.T, pairs int, then time.Duration) {
	t.Helper()
	c := w.command(t, w.node, "", w.args...)
	// The plugins have the other end of the pipe, so Wait returns only after they have ended.
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	if err := w.node.Do(c.Start); err != nil {
		t.Fatal(err)
	}
	await(t, fmt.Sprintf("the pods of the test have %d pairs", pairs), func() bool { return w.pairs(t) >= pairs })
	time.Sleep(then) // once the pairs exist, neither output nor state shows what the program does
	_ = c.Process.Kill()
	_ = c.Wait()
}

func (w *tryWorld) pairs(t *testing.T) (count int) {
	t.Helper()
	links, err := w.node.Links()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		if strings.Contains(l.Alias, " connectivity-test-") {
			count++
		}
	}
	return count
}

// leases returns the leases of pods in the output of status.
func (w *tryWorld) leases(t *testing.T) string {
	t.Helper()
	var r struct {
		Addresses []struct{ State, Namespace, Pod, Container string }
	}
	if err := json.Unmarshal(w.tool(t, "status", "--output", "json"), &r); err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, a := range r.Addresses {
		if a.State == "leased" || a.Pod != "" {
			all = append(all, a.Pod+" "+a.Container)
		}
	}
	slices.Sort(all)
	return strings.Join(all, "\n")
}

func (w *tryWorld) collect(t *testing.T) {
	t.Helper()
	w.tool(t, "repair")
	w.tool(t, "registry-gc", "--free-after=15m")
}

// missedLongAgo moves the records of missed pods two minutes into the past. A collection ends the leases of pods that
// have been missed for one minute.
func (w *tryWorld) missedLongAgo(t *testing.T) {
	t.Helper()
	r, err := registry.Open(w.node.StateDir)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Change(t.Context(), func(s *registry.State) {
		for a, l := range maps.Collect(s.Leases.All()) {
			if !l.MissingSince.IsZero() {
				l.MissingSince = l.MissingSince.Add(-2 * time.Minute)
				s.Leases.Set(a, l)
			}
		}
	}); err != nil {
		t.Fatal(err)
	}
}

func (w *tryWorld) tool(t *testing.T, args ...string) []byte {
	t.Helper()
	c := exec.CommandContext(t.Context(), filepath.Join(w.dir, "cni-ipvlan-vpc-k8s-tool"), append(args, "--config",
		filepath.Join(w.dir, "10.conflist"))...)
	c.Env = append(os.Environ(), w.node.Env()...)
	var out, messages bytes.Buffer
	c.Stdout, c.Stderr = &out, &messages
	if err := w.node.Do(c.Run); err != nil {
		t.Errorf("%v: %v: %s", args, err, &messages)
	}
	return out.Bytes()
}

// gc runs GC with the running pods as the valid attachments, as a runtime does.
func (w *tryWorld) gc(t *testing.T) {
	t.Helper()
	var list struct {
		Name    string
		Plugins []map[string]any
	}
	if err := json.Unmarshal(w.conflist, &list); err != nil {
		t.Fatal(err)
	}
	var valid []map[string]string
	for _, p := range w.node.Pods {
		valid = append(valid, map[string]string{"containerID": "container-of-" + p.Name, "ifname": "eth0"})
	}
	conf := list.Plugins[0]
	conf["name"], conf["cniVersion"], conf["cni.dev/valid-attachments"] = list.Name, "1.1.0", valid
	stdin, err := json.Marshal(conf)
	if err != nil {
		t.Fatal(err)
	}
	c := exec.CommandContext(t.Context(), filepath.Join(w.dir, fmt.Sprint(conf["type"])))
	c.Env = append(append(os.Environ(), w.node.Env()...), "CNI_COMMAND=GC", "CNI_PATH="+w.dir)
	c.Stdin = bytes.NewReader(stdin)
	var out []byte
	if err := w.node.Do(func() (err error) { out, err = c.CombinedOutput(); return err }); err != nil {
		t.Errorf("GC: %v: %s", err, out)
	}
}

// namespaces returns the paths of all named namespaces, and of the results of connectivity-test in libcni's cache.
func namespaces(t *testing.T) (all []string) {
	t.Helper()
	for _, pattern := range []string{"/run/netns/*", "/var/lib/cni/results/*connectivity*"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, found...)
	}
	return all
}
