// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package doctor

import (
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// TestFixesAreWhatIsShipped checks that doctor --fix writes the same files as a package installs.
func TestFixesAreWhatIsShipped(t *testing.T) {
	for file, fix := range map[string]string{
		"../../systemd/networkd.conf.d/cni-ipvlan-vpc-k8s.conf":                         networkdConf,
		"../../systemd/system/policy-routes@.service.d/cni-ipvlan-vpc-k8s.conf":         netUtilsConf,
		"../../systemd/system/refresh-policy-routes@.service.d/cni-ipvlan-vpc-k8s.conf": netUtilsConf,
		"../../systemd/system/nm-cloud-setup.service.d/cni-ipvlan-vpc-k8s.conf":         cloudSetupConf,
		"../../packaging/cloud.cfg.d/99-cni-ipvlan-vpc-k8s.cfg":                         cloudInitConf,
	} {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var settings strings.Builder
		for line := range strings.Lines(string(b)) {
			if !strings.HasPrefix(line, "#") {
				settings.WriteString(line)
			}
		}
		if diff := cmp.Diff(settings.String(), fix); diff != "" {
			t.Errorf("%s: -shipped +fix\n%s", file, diff)
		}
	}
}

func TestEntries(t *testing.T) {
	// These are the statistics of a neighbour table, from a node with two processors and Linux 6.1.
	const stat = `entries  allocs   destroys hash_grows lookups  hits     res_failed rcv_probes_mcast rcv_probes_ucast periodic_gc_runs forced_gc_runs unresolved_discards table_fulls
000003e8 0000002a 00000009 00000000 00000101 00000077 00000000  00000000         00000000         0000021c         00000000       00000000            00000000
000003e8 00000011 00000001 00000000 00000100 00000011 00000000  00000000         00000000         00000000         00000000       00000000            00000000
`
	if got := entryCount(stat); got != 1000 {
		t.Errorf("got %d entries, want 1000", got)
	}
	if got := entryCount(""); got != 0 {
		t.Errorf("got %d entries of nothing", got)
	}
}

// TestNeighbors checks that doctor proposes a higher limit for a full neighbour table. If the table has room and the
// limit is high enough, doctor proposes nothing.
func TestNeighbors(t *testing.T) {
	for _, c := range []struct {
		limit   string
		entries int
		want    string // empty: no finding
	}{
		{"1024", 0, "warning: 4096"},
		{"1024", 1000, "error: 4096"},
		{"4096", 100, ""},
		{"4096", 4000, "error: 8192"},
		{"16384", 14000, ""},
		{"16384", 16000, "error: 32768"},
	} {
		n := &Node{state: &registry.State{}, neighborCount: func(string) int { return c.entries },
			kernel: &Snapshot{Answers: map[string]string{"net/ipv4/neigh/default/gc_thresh3": c.limit,
				"net/ipv6/neigh/default/gc_thresh3": ""}}}
		found, err := n.checkNeighbors(t.Context())
		want(t, err)
		got := ""
		for _, f := range found {
			_, to, _ := strings.Cut(f.Do, "set this sysctl to ")
			to, _, _ = strings.Cut(to, ",")
			got += f.Severity + ": " + to
		}
		if got != c.want {
			t.Errorf("limit %s, %d entries: got %q, want %q", c.limit, c.entries, got, c.want)
		}
	}
}

// TestNeighborsOfPods: a node has more pods than doctor expects by default. Each pod has two leases, one for each
// family. doctor must count the pods, not the leases.
func TestNeighborsOfPods(t *testing.T) {
	s := &registry.State{}
	for i := range 600 {
		s.Leases.Set(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), registry.Lease{})
		s.Leases.Set(netip.AddrFrom16([16]byte{0xfd, 14: byte(i >> 8), 15: byte(i)}), registry.Lease{})
	}
	n := &Node{state: s, neighborCount: func(string) int { return 0 },
		kernel: &Snapshot{Answers: map[string]string{"net/ipv4/neigh/default/gc_thresh3": "16384",
			"net/ipv6/neigh/default/gc_thresh3": "32768"}}}
	found, err := n.checkNeighbors(t.Context())
	want(t, err)
	if len(found) != 1 || !strings.Contains(found[0].Means, "too low for 600 pods") ||
		!strings.Contains(found[0].Do, "set this sysctl to 32768") {
		t.Errorf("got %+v", found)
	}
}

// TestPolicyCommand checks that the command has the option --partition in China and GovCloud, and in no other region.
func TestPolicyCommand(t *testing.T) {
	for region, want := range map[string]string{
		"eu-west-1":     "cni-ipvlan-vpc-k8s-tool iam-policy",
		"cn-north-1":    "cni-ipvlan-vpc-k8s-tool iam-policy --partition aws-cn",
		"us-gov-west-1": "cni-ipvlan-vpc-k8s-tool iam-policy --partition aws-us-gov",
	} {
		if got := policyCommand(region, false); got != want {
			t.Errorf("%s: %s, want %s", region, got, want)
		}
	}
}

// TestOnNode compares the checks with a table in docs/support-bundle.md. The table says which checks work with a
// bundle's data, which work only in part, and which need the node.
func TestOnNode(t *testing.T) {
	var again, part, never []string
	for _, c := range checks {
		switch name := "`" + c.Name + "`"; {
		case onNode[c.Name] != "":
			never = append(never, name)
		case partOnNode[c.Name] != "":
			part = append(part, name)
		default:
			again = append(again, name)
		}
	}
	page, err := os.ReadFile("../../docs/support-bundle.md")
	if err != nil {
		t.Fatal(err)
	}
	for about, names := range map[string][]string{
		"made again": again, "made again in part": part, "only on the node": never,
	} {
		row := "| " + about + " | " + strings.Join(names, ", ") + " |"
		if !strings.Contains(string(page), row) {
			t.Errorf("docs/support-bundle.md has no row %s", row)
		}
	}
}
