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
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// Need skips a test if this machine lacks one of the features that the test needs. The features are "root", "netns",
// "ipvlan", "nftables", "police", "fib", "fou", "iptables", "owner" and "tcx". If the environment variable CI is set,
// Need makes the test fail instead.
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

// probes has a function for each feature that a test may need. Each function returns an error if this machine lacks the
// feature, and tries only once.
var probes = map[string]func() error{
	"root":     sync.OnceValue(probeRoot),
	"netns":    sync.OnceValue(func() error { return nl.Scratch(func(*nl.NS) error { return nil }) }),
	"ipvlan":   sync.OnceValue(func() error { return nl.Scratch(nl.IPVlan{}.Supported) }),
	"nftables": sync.OnceValue(func() error { return nl.Scratch(probeNFTables) }),
	"police": sync.OnceValue(func() error {
		return nl.Scratch(nl.Limit{Devs: []string{"lo"}, Rate: 1 << 20, Burst: 1 << 20}.Add)
	}),
	"fib": sync.OnceValue(func() error { return nl.Scratch(probeRouteBack) }), // not in Linux 5.10
	"fou": sync.OnceValue(func() error { return nl.Scratch(probeTunnels) }),
	// iptables(8), and the part of the kernel that it needs
	"iptables": sync.OnceValue(func() error { return nl.Scratch(runProbe("iptables", "-w", "-t", "nat", "-S")) }),
	// tables with an owner exist since Linux 5.12
	"owner": sync.OnceValue(func() error { return nl.Scratch(runProbe("nft", "add table probe { flags owner; }")) }),
	"tcx":   sync.OnceValue(probeTCX), // since Linux 6.6
}

func probeRoot() error {
	if uid := os.Geteuid(); uid != 0 {
		return fmt.Errorf("the user is %d", uid)
	}
	return nil
}

// probeNFTables tries the parts of nftables that the plugins need most: NAT and connection tracking.
func probeNFTables(n *nl.NS) error {
	return nl.Table{Family: "inet", Name: "probe", Chains: []nl.Chain{
		{Name: "postrouting", Type: "nat", Hook: "postrouting", Priority: 100,
			Rules: []nl.NFRule{{nl.CTState("new"), nl.Masquerade()}}},
	}}.Add(n)
}

// probeRouteBack tries a rule that contains nl.NoRouteBack. The client pods of an egress need such a rule.
func probeRouteBack(n *nl.NS) error {
	return nl.Table{Family: "inet", Name: "probe", Chains: []nl.Chain{
		{Name: "input", Type: "filter", Hook: "input", Rules: []nl.NFRule{{nl.NoRouteBack(), nl.Drop()}}},
	}}.Add(n)
}

// probeTunnels tries tunnels of both families. The kernel may load the modules of tunnels. These modules make the links
// tunl0 and ip6tnl0 in each new namespace.
func probeTunnels(n *nl.NS) error {
	w := nl.Wiring{{NS: n, Object: nl.Up{Dev: "lo"}}}
	for _, local := range []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()} {
		w = append(w, nl.Step{NS: n, Object: nl.FOU{Local: local, Port: 5555}},
			nl.Step{NS: n, Object: nl.Tunnel{Name: "probe" + fmt.Sprint(nl.FamilyOf(local)), Local: local, Port: 5555,
				MTU: 1280}})
	}
	return w.Add()
}

// probeTCX tries to list the programs of tcx at lo.
func probeTCX() error {
	const loopback, tcxIngress = 1, 46 // linux/bpf.h
	query := [16]uint32{loopback, tcxIngress}
	if _, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_QUERY, uintptr(unsafe.Pointer(&query)),
		unsafe.Sizeof(query)); errno != 0 {
		return errno
	}
	return nil
}

// runProbe returns a function for nl.Scratch that executes a program. The error of this function contains the program's
// output.
func runProbe(name string, args ...string) func(*nl.NS) error {
	return func(*nl.NS) error {
		out, err := exec.Command(name, args...).CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
		return err
	}
}
