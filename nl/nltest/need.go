// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nltest

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"sync"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// Need skips a test that cannot do without a feature that is not here: root,
// netns, ipvlan, nftables, iptables, police. Where CI is set in the environment it fails the test
// instead: a test that never runs is worse than none.
func Need(t testing.TB, features ...string) {
	t.Helper()
	for _, f := range features {
		probe, ok := probes[f]
		if !ok {
			t.Fatalf("Need does not know how to look for %q", f)
		}
		err := probe()
		switch {
		case err == nil:
		case os.Getenv("CI") != "" && os.Getenv("CI") != "false":
			t.Fatalf("needs %s, and in CI everything runs: %v", f, err)
		default:
			t.Skipf("needs %s: %v", f, err)
		}
	}
}

// probes ask the kernel, each once, and say what is missing.
var probes = map[string]func() error{
	"root":     sync.OnceValue(root),
	"netns":    sync.OnceValue(func() error { return nl.Scratch(func(*nl.NS) error { return nil }) }),
	"ipvlan":   sync.OnceValue(func() error { return nl.Scratch(nl.IPVlan{}.Supported) }),
	"nftables": sync.OnceValue(func() error { return nl.Scratch(nftables) }),
	"police": sync.OnceValue(func() error {
		return nl.Scratch(nl.Limit{Devs: []string{"lo"}, Rate: 1 << 20, Burst: 1 << 20}.Add)
	}),
	"fib": sync.OnceValue(func() error { return nl.Scratch(routeBack) }), // not Linux 5.10
	"fou": sync.OnceValue(func() error { return nl.Scratch(tunnels) }),
	// takes the kernel its part
	"iptables": sync.OnceValue(func() error { return nl.Scratch(run("iptables", "-w", "-t", "nat", "-S")) }),
	// Linux 5.12
	"owner": sync.OnceValue(func() error { return nl.Scratch(run("nft", "add table probe { flags owner; }")) }),
}

func root() error {
	if uid := os.Geteuid(); uid != 0 {
		return fmt.Errorf("the user is %d", uid)
	}
	return nil
}

// nftables installs what the plugins cannot do without: NAT and connection tracking.
func nftables(n *nl.NS) error {
	return nl.Table{Family: "inet", Name: "probe", Chains: []nl.Chain{
		{Name: "postrouting", Type: "nat", Hook: "postrouting", Priority: 100,
			Rules: []nl.NFRule{{nl.CTState("new"), nl.Masquerade()}}},
	}}.Add(n)
}

// routeBack installs what a client of an egress has: a look at the route back where packets have arrived.
func routeBack(n *nl.NS) error {
	return nl.Table{Family: "inet", Name: "probe", Chains: []nl.Chain{
		{Name: "input", Type: "filter", Hook: "input", Rules: []nl.NFRule{{nl.NoRouteBack(), nl.Drop()}}},
	}}.Add(n)
}

// tunnels makes tunnels of both families. From then on each new namespace has the links tunl0 and ip6tnl0, where they
// are in modules.
func tunnels(n *nl.NS) error {
	w := nl.Wiring{{NS: n, Object: nl.Up{Dev: "lo"}}}
	for _, local := range []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()} {
		w = append(w, nl.Step{NS: n, Object: nl.FOU{Local: local, Port: 5555}},
			nl.Step{NS: n, Object: nl.Tunnel{Name: "probe" + fmt.Sprint(nl.FamilyOf(local)), Local: local, Port: 5555,
				MTU: 1280}})
	}
	return w.Add()
}

// run asks a program.
func run(name string, args ...string) func(*nl.NS) error {
	return func(*nl.NS) error {
		out, err := exec.Command(name, args...).CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
		return err
	}
}
