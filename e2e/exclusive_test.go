// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package e2e

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
)

// onNode reports whether the node has a link with this MAC address.
func (w *world) onNode(t *testing.T, mac string) bool {
	t.Helper()
	_, err := w.node.FindMAC(mac)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return err == nil
}

// newExclusive starts a node whose pods may ask for whole ENIs. The argument keys has further keys of the
// configuration.
func newExclusive(t *testing.T, x example, keys string) (*world, *libcni.NetworkConfigList) {
	t.Helper()
	nltest.Need(t, "root", "ipvlan", "nftables")
	text, err := os.ReadFile("conflist-examples/requests.conflist")
	if err != nil {
		t.Fatal(err)
	}
	changed := strings.Replace(string(text), `"requests": [`, `"reuseIPWait": 0, `+keys+`"requests": [`, 1)
	list, err := libcni.ConfListFromBytes([]byte(strings.Replace(changed, `"capabilities": {`,
		`"capabilities": {"bandwidth": true, `, 1)))
	if err != nil {
		t.Fatal(err)
	}
	x.instance, x.kubernetes = "m5.xlarge", "vm-1"
	return exampleVPC(t).launch(t, x), list
}

// added adds a pod, and returns its addresses with their ENIs.
func (w *world) added(
	t *testing.T, list *libcni.NetworkConfigList, pod string,
) (addrs []netip.Addr, enis []ec2sim.ENI) {
	t.Helper()
	answer, err := w.call(list, "ADD", pod)
	if err != nil {
		t.Fatal(err)
	}
	result, err := types100.NewResultFromResult(answer)
	if err != nil {
		t.Fatal(err)
	}
	for _, ip := range result.IPs {
		a, _ := netip.AddrFromSlice(ip.Address.IP)
		a = a.Unmap()
		all := w.node.ENIs()
		i := slices.IndexFunc(all, func(e ec2sim.ENI) bool {
			return slices.Contains(e.Addrs, a) || slices.ContainsFunc(e.IPv6Prefixes,
				func(c netip.Prefix) bool { return c.Contains(a) })
		})
		if i < 0 {
			t.Fatalf("%s is on no ENI of the node", a)
		}
		addrs, enis = append(addrs, a), append(enis, all[i])
	}
	return addrs, enis
}

func (w *world) verb(t *testing.T, list *libcni.NetworkConfigList, verb, pod string) {
	t.Helper()
	if _, err := w.call(list, verb, pod); err != nil {
		t.Errorf("%s %s: %v", verb, pod, err)
	}
}

// called checks that a host of the VPC reaches an address. If the argument node is true, the node must reach the
// address, too.
func (w *world) called(t *testing.T, a netip.Addr, node bool) {
	t.Helper()
	if _, err := w.host.Call("tcp", netip.AddrPortFrom(a, examplePort)); err != nil {
		t.Errorf("a host calls %s: %v", a, err)
	}
	if !node {
		return
	}
	if _, err := w.node.Call("tcp", netip.AddrPortFrom(a, examplePort)); err != nil {
		t.Errorf("the node calls %s: %v", a, err)
	}
}

func (w *world) tool(t *testing.T, args ...string) string {
	t.Helper()
	out, err := w.tries(args...)
	if err != nil {
		t.Errorf("%v: %v\n%s", args, err, out)
	}
	return out
}

// tries runs the tool on the node. The tool may fail.
func (w *world) tries(args ...string) (string, error) {
	return w.node.Run(context.Background(), filepath.Join(w.path, "cni-ipvlan-vpc-k8s-tool"), args...)
}

// diff returns what status --diff finds about ENIs. diff ignores the exit status of the command: the command fails,
// because it also sees the namespaces of other instances.
func (w *world) diff(t *testing.T) string {
	t.Helper()
	out, _ := w.tries("status", "--diff")
	found, _, _ := strings.Cut(out, "ip  ")
	return found
}

func (w *world) returns(t *testing.T, mac string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := w.node.LinkByMAC(ctx, mac); err != nil {
		t.Fatal(err)
	}
}

// back checks that the link of an ENI is on the node again, that it is down, and that it has this name.
func (w *world) back(t *testing.T, e ec2sim.ENI, name string) {
	t.Helper()
	if l, err := w.node.FindMAC(e.MAC); err != nil || l.Up || l.Group != 0 || l.Name != name {
		t.Errorf("%s is back, and its link is %+v, %v: want %s", e.ID, l, err, name)
	}
}

// before returns the name that an ENI's link has on the node until a pod gets the link.
func before(e ec2sim.ENI) string { return fmt.Sprint("eth", e.Index) }

// TestExclusive: two pods get whole ENIs, and a third pod gets an address of another ENI. No collection may take a
// whole ENI from a running pod. This must be true even with a new registry, and even after a pod has removed its own
// addresses.
func TestExclusive(t *testing.T) {
	w, list := newExclusive(t, example{}, "")
	for _, name := range []string{"second", "shared"} {
		w.pod(t, name)
	}
	w.asks(`[{"exclusive": true}]`)
	first, on := w.added(t, list, "pod")
	second, onOther := w.added(t, list, "second")
	if on[0].ID == onOther[0].ID {
		t.Errorf("both have %s", on[0].ID)
	}
	w.asks(`[{}]`)
	shared, onShared := w.added(t, list, "shared")
	if id := onShared[0].ID; id == on[0].ID || id == onOther[0].ID {
		t.Errorf("%s of a pod that did not ask is on %s", shared[0], id)
	}
	tries := func(what string) {
		t.Helper()
		for i, a := range []netip.Addr{first[0], second[0], shared[0]} {
			w.called(t, a, true)
			if mac := [][]ec2sim.ENI{on, onOther, onShared}[i][0].MAC; w.onNode(t, mac) != (i == 2) {
				t.Errorf("%s: the link of %s is in the wrong place", what, a)
			}
		}
		if seen, err := w.pods["pod"].Call("tcp", netip.AddrPortFrom(shared[0], examplePort)); err != nil ||
			seen.Addr() != first[0] {
			t.Errorf("%s: %s calls %s: seen as %v, %v", what, first[0], shared[0], seen, err)
		}
		if seen, err := w.pods["shared"].Call("tcp", netip.AddrPortFrom(second[0], examplePort)); err != nil ||
			seen.Addr() != shared[0] {
			t.Errorf("%s: %s calls %s: seen as %v, %v", what, shared[0], second[0], seen, err)
		}
	}
	tries("after ADD")
	w.asks(`[{"exclusive": true}]`)
	w.verb(t, list, "CHECK", "pod")
	w.tool(t, "registry-gc", "--free-after=1ns")
	if out := w.tool(t, "status", "--output=json"); strings.Count(out, `"exclusive"`) != 2 {
		t.Errorf("status:\n%s", out)
	}
	if out := w.tool(t, "metrics"); !strings.Contains(out,
		`cni_ipvlan_vpc_enis{pool="default/exclusive",state="exclusive"} 2`) {
		t.Errorf("metrics:\n%s", out)
	}
	if out := w.diff(t); strings.Contains(out, "eni-") {
		t.Errorf("status --diff:\n%s", out)
	}
	tries("after a collection")

	// A pod removes its addresses, and then the registry is lost.
	if err := w.pods["second"].Do(func() error {
		return exec.Command("ip", "addr", "flush", "dev", "eth0").Run()
	}); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(w.node.StateDir); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		w.tool(t, "registry-gc", "--free-after=1ns")
	}
	if out := w.tool(t, "status", "--output=json"); strings.Count(out, `"exclusive"`) != 2 {
		t.Errorf("status with a new registry:\n%s", out)
	}
	if !slices.ContainsFunc(w.node.ENIs(), func(e ec2sim.ENI) bool { return e.ID == onOther[0].ID }) {
		t.Errorf("%s was detached while a pod has its link", onOther[0].ID)
	}
	w.called(t, first[0], true)

	for pod, e := range map[string]ec2sim.ENI{"pod": on[0], "second": onOther[0]} {
		w.verb(t, list, "DEL", pod)
		w.verb(t, list, "DEL", pod)
		w.back(t, e, "enx"+strings.ReplaceAll(e.MAC, ":", "")) // the registry was lost: no process knows the old name
	}
	// The link is down, which doctor must not report.
	w.tool(t, "doctor", "--check=links", "--config=conflist-examples/requests.conflist")
	w.called(t, shared[0], true)
}

// TestExclusiveGiven: a pod gets a whole ENI that an operator has created. Until this pod has ended, ADD fails for
// other pods that ask for the ENI. If the pod's namespace ends before DEL, the link comes back, and another pod can
// share the ENI.
func TestExclusiveGiven(t *testing.T) {
	w, list := newExclusive(t, example{}, "")
	w.pod(t, "other")
	given := w.give(t)
	whole, share := fmt.Sprintf(`[{}, {"name": "data", "eni": %q, "exclusive": true}]`,
		given), fmt.Sprintf(`[{"eni": %q}]`, given)
	w.asks(whole)
	addrs, on := w.added(t, list, "pod")
	if on[1].ID != given || w.onNode(t, on[1].MAC) {
		t.Errorf("data is on %s, which the node has: %v", on[1].ID, w.onNode(t, on[1].MAC))
	}
	w.called(t, addrs[0], true)
	w.called(t, addrs[1], false)
	w.verb(t, list, "CHECK", "pod")
	for _, ask := range []string{whole, share} {
		w.asks(ask)
		_, err := w.call(list, "ADD", "other")
		if want := given + ", which vm-1/pod uses, and one of the two pods asks for the whole ENI"; err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("ADD of another pod: %v", err)
		}
		w.verb(t, list, "DEL", "other")
	}
	w.called(t, addrs[1], false)

	w.asks(whole)
	if err := w.removePod("pod"); err != nil {
		t.Fatal(err)
	}
	w.returns(t, on[1].MAC)
	w.verb(t, list, "DEL", "pod")
	w.back(t, on[1], before(on[1]))
	w.asks(share)
	if addrs, on := w.added(t, list, "other"); on[0].ID != given || !w.onNode(t, on[0].MAC) {
		t.Errorf("%s is on %s", addrs[0], on[0].ID)
	} else {
		w.called(t, addrs[0], true)
	}
	w.asks(whole)
	w.pod(t, "pod")
	if _, err := w.call(list, "ADD", "pod"); err == nil || !strings.Contains(err.Error(), "vm-1/other uses") {
		t.Errorf("ADD for the whole ENI while a pod shares it: %v", err)
	}
}

// TestExclusiveReboot: the node reboots while two pods have whole ENIs. One of these ENIs is managed, and an operator
// has created the other. After the reboot, the links of both ENIs are on the node. The runtime deletes the old pods,
// whose namespaces are gone. A new pod that asks for a whole ENI must get the same ENI as the old pod with this
// request. A new pod that does not ask for a whole ENI must get neither of the two ENIs.
func TestExclusiveReboot(t *testing.T) {
	w, list := newExclusive(t, example{}, "")
	given := w.give(t)
	asks := map[string]string{"pod": `[{"exclusive": true}]`, "second": fmt.Sprintf(`[{"eni": %q, "exclusive": true}]`,
		given), "shared": `[{}]`}
	order := []string{"pod", "second", "shared"}
	w.pod(t, "second")
	w.pod(t, "shared")
	on := map[string]ec2sim.ENI{}
	add := func(pod string) netip.Addr {
		t.Helper()
		w.asks(asks[pod])
		addrs, enis := w.added(t, list, pod)
		if was, again := on[pod]; again && enis[0].ID != was.ID {
			t.Errorf("%s was on %s, and is on %s", pod, was.ID, enis[0].ID)
		}
		on[pod] = enis[0]
		w.called(t, addrs[0], true)
		if node := w.onNode(t, enis[0].MAC); node != (pod == "shared") {
			t.Errorf("%s is on %s, and the node has the link: %v", pod, enis[0].ID, node)
		}
		return addrs[0]
	}
	for _, pod := range order {
		add(pod)
	}
	for _, pod := range order {
		if err := w.removePod(pod); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.node.Reboot(), os.RemoveAll(w.node.StateDir)); err != nil {
		t.Fatal(err)
	}
	for _, e := range on {
		w.returns(t, e.MAC)
	}
	for _, pod := range order { // DEL of the sandboxes from before the reboot
		w.asks(asks[pod])
		w.verb(t, list, "DEL", pod)
	}
	slices.Reverse(order) // begin with the pod that shares an ENI
	for _, pod := range order {
		w.pod(t, pod)
		add(pod)
	}
	for _, pod := range order {
		w.asks(asks[pod])
		w.verb(t, list, "CHECK", pod)
		w.verb(t, list, "DEL", pod)
	}
	if e := w.fabric.EC2.ENIs()[slices.IndexFunc(w.fabric.EC2.ENIs(), func(e ec2sim.ENI) bool {
		return e.ID == given
	})]; e.Tags["for"] != "pods" || len(e.Tags) != 1 || e.DeleteOnTermination {
		t.Errorf("the ENI that an operator has created is %+v", e)
	}
	w.back(t, on["pod"], before(on["pod"]))
	w.back(t, on["second"], before(on["second"]))
}

// TestExclusiveDualStack: a pod with a whole ENI has addresses of both families, limits of the bandwidth, and no access
// to the metadata service.
func TestExclusiveDualStack(t *testing.T) {
	w, list := newExclusive(t, example{ipv6: 1}, `"ipFamilies": ["IPv4", "IPv6"], "blockInstanceMetadata": true, `)
	if err := w.host.Answer(examplePort); err != nil {
		t.Fatal(err)
	}
	w.asks(`[{"exclusive": true}]`)
	w.capabilities["bandwidth"] = map[string]any{"ingressRate": 80_000_000, "ingressBurst": 8_000_000,
		"egressRate": 80_000_000, "egressBurst": 8_000_000}
	addrs, on := w.added(t, list, "pod")
	if len(addrs) != 2 || on[0].ID != on[1].ID || w.onNode(t, on[0].MAC) {
		t.Fatalf("the pod has %v, and the node has the link: %v", addrs, w.onNode(t, on[0].MAC))
	}
	for _, a := range addrs {
		w.called(t, a, true)
		to := netip.AddrPortFrom(w.host.Addr(), examplePort)
		if a.Is6() {
			to = netip.AddrPortFrom(w.host.Addr6(), examplePort)
		}
		if seen, err := w.pods["pod"].Call("tcp", to); err != nil || seen.Addr() != a {
			t.Errorf("the pod calls %s, seen as %v: %v", to, seen, err)
		}
	}
	if err := w.pods["pod"].Silent(netip.MustParseAddr("169.254.169.254")); err != nil {
		t.Error(err)
	}
	w.verb(t, list, "CHECK", "pod")
	w.verb(t, list, "DEL", "pod")
	w.back(t, on[0], before(on[0]))
}

// settingsOf returns the settings of an ENI's link that a pod can change, in the format of ip-link(8). It omits index,
// name, group and counters.
func settingsOf(t *testing.T, in interface{ Do(func() error) error }, mac string) string {
	t.Helper()
	var out []byte
	err := in.Do(func() (err error) {
		out, err = exec.Command("ip", "-details", "-oneline", "link").Output()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		if fields := strings.Fields(line); slices.Contains(fields, mac) && !strings.Contains(line, "ipvlan") {
			place := []string{fields[0], fields[1], fields[2], "state", "qdisc", "group", "link-netnsid", "link-netns"}
			kept := fields[:0]
			for i, f := range fields {
				if slices.Contains(place, f) || i > 0 && slices.Contains(place[3:], fields[i-1]) {
					continue
				}
				kept = append(kept, f)
			}
			return strings.Join(kept, " ")
		}
	}
	t.Fatalf("no link has %s:\n%s", mac, out)
	return ""
}

// TestExclusiveSettings: a pod changes the settings of its ENI's link. The next pod must find none of the changes. The
// link comes back by DEL, by the end of the namespace, or by the end of the namespace followed by DEL. If the link
// keeps a change, no pod gets the ENI, and doctor reports the change.
func TestExclusiveSettings(t *testing.T) {
	w, list := newExclusive(t, example{}, "")
	w.asks(`[{"exclusive": true}]`)
	changes := []string{"txqueuelen 7 alias left gso_max_size 5000 gso_max_segs 5 gro_max_size 6000",
		"promisc on allmulticast on multicast off",
		"mtu 1400", "mode dormant", "broadcast 00:00:00:00:00:01"}
	change := func(in interface{ Do(func() error) error }, link string) {
		t.Helper()
		for _, c := range changes {
			if err := in.Do(func() error {
				return exec.Command("ip", strings.Fields("link set "+link+" "+c)...).Run()
			}); err != nil {
				t.Fatalf("%s: %v", c, err)
			}
		}
	}
	var fresh string
	var whole ec2sim.ENI
	for _, ends := range []string{"DEL", "its namespace, and DEL", "its namespace", "DEL"} {
		_, on := w.added(t, list, "pod")
		now := settingsOf(t, w.pods["pod"], on[0].MAC)
		if fresh == "" {
			fresh, whole = now, on[0]
		}
		if now != fresh || on[0].ID != whole.ID {
			t.Errorf("the next pod has %s, and\n%s, want %s, and\n%s", on[0].ID, now, whole.ID, fresh)
		}
		change(w.pods["pod"], "eth0")
		if ends != "DEL" {
			if err := w.removePod("pod"); err != nil {
				t.Fatal(err)
			}
			w.returns(t, whole.MAC) // a simulated link is then new; a real one keeps its settings
			l, err := w.node.FindMAC(whole.MAC)
			if err != nil {
				t.Fatal(err)
			}
			change(w.node, l.Name)
			w.pod(t, "pod")
		}
		if strings.Contains(ends, "DEL") {
			w.verb(t, list, "DEL", "pod")
		}
	}
	const doctor = "doctor --check=links --config=conflist-examples/requests.conflist"
	w.tool(t, strings.Fields(doctor)...)

	registry := filepath.Join(w.node.StateDir, "registry.json")
	text, err := os.ReadFile(registry)
	if err != nil {
		t.Fatal(err)
	}
	mac := fmt.Sprintf("%q", whole.MAC)
	text = []byte(strings.Replace(string(text), mac, mac+`,"settings":{"MTU":"2147483647","txqueuelen":"7"}`, 1))
	if err := os.WriteFile(registry, text, 0o600); err != nil {
		t.Fatal(err)
	}
	const changed = " has changed the ENI's link: the MTU of "
	if out, err := w.tries(strings.Fields(doctor)...); err != nil || !strings.Contains(out, changed) ||
		!strings.Contains(out, "the txqueuelen of") {
		t.Errorf("doctor says %v:\n%s", err, out)
	}
	if _, err := w.call(list, "ADD", "pod"); err == nil || !strings.Contains(err.Error(), whole.ID) ||
		!strings.Contains(err.Error(), "put back the MTU of") {
		t.Errorf("ADD: %v", err)
	}
	w.verb(t, list, "DEL", "pod")
	if out, err := w.tries(strings.Fields(doctor)...); err != nil || !strings.Contains(out, changed) ||
		strings.Contains(out, "the txqueuelen of") {
		t.Errorf("after an ADD that failed, doctor says %v:\n%s", err, out)
	}
}

// TestExclusiveAbove: a pod has made a link above its ENI's link. The pod has moved this upper link to a namespace that
// remains after the pod. Until the upper link is deleted, no pod gets the ENI.
func TestExclusiveAbove(t *testing.T) {
	w, list := newExclusive(t, example{}, "")
	w.asks(`[{"exclusive": true}]`)
	w.pod(t, "other")
	_, on := w.added(t, list, "pod")
	other := w.pods["other"]
	makes := func(args string) {
		t.Helper()
		if err := w.pods["pod"].Do(func() error {
			return exec.Command("ip", strings.Fields(args)...).Run()
		}); err != nil {
			t.Fatalf("%s: %v", args, err)
		}
	}
	makes("link add link eth0 name above type macvlan")
	makes("link set above netns " + filepath.Base(other.Path))
	w.verb(t, list, "DEL", "pod")
	_, err := w.call(list, "ADD", "pod")
	if err == nil || !strings.Contains(err.Error(), on[0].ID) || !strings.Contains(err.Error(),
		filepath.Base(other.Path)+" uses the ENI's link") {
		t.Errorf("ADD: %v", err)
	}
	if err := other.Do(func() error { return exec.Command("ip", "link", "del", "above").Run() }); err != nil {
		t.Fatal(err)
	}
	w.verb(t, list, "DEL", "pod")
	w.added(t, list, "pod")
}
