// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package kubeproxy

import (
	"embed"
	"fmt"
	"path"
	"strings"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

//go:embed testdata
var testdata embed.FS

func readRecorded(m Mode, file string) string {
	b, err := testdata.ReadFile(path.Join("testdata", string(m), file))
	if err != nil {
		panic(err) // the file is compiled in
	}
	return string(b)
}

// commandPair returns the commands that load and remove the rules of a family.
func (m Mode) commandPair(f family, rules string) (load, unload command) {
	if m == NFTables {
		return command{[]string{"nft", "-f", "-"}, rules},
			command{[]string{"nft", "delete", "table", f.nft, "kube-proxy"}, ""}
	}
	restore := []string{f.iptables + "-restore", "--noflush"}
	return command{restore, jumpsFirst(rules)}, command{restore, removal(rules)}
}

// jumpsFirst converts the output of iptables-save to input for iptables-restore. Like kube-proxy, this input inserts
// the jumps to kube-proxy's chains before all other rules of a chain.
func jumpsFirst(save string) string {
	var b strings.Builder
	jumps := map[string]int{} // number of jumps in this table, by chain
	for line := range strings.Lines(save) {
		chain, rest, ok := parseJump(line)
		switch {
		case ok:
			jumps[chain]++
			fmt.Fprintf(&b, "-I %s %d %s", chain, jumps[chain], rest)
			continue
		case line == "COMMIT\n":
			clear(jumps)
		}
		b.WriteString(line)
	}
	return b.String()
}

// removal converts the output of iptables-save to input for iptables-restore that deletes kube-proxy's jumps and
// chains. At a line ":CHAIN", iptables-restore first empties the chain.
func removal(save string) string {
	var b, chains strings.Builder
	for line := range strings.Lines(save) {
		chain, rest, isJump := parseJump(line)
		name, isChain := strings.CutPrefix(line, ":")
		switch {
		case isJump:
			fmt.Fprintf(&b, "-D %s %s", chain, rest)
		case isChain:
			name, _, _ = strings.Cut(name, " ")
			fmt.Fprintf(&chains, "-X %s\n", name)
			b.WriteString(line)
		case line == "COMMIT\n":
			b.WriteString(chains.String() + line)
			chains.Reset()
		case strings.HasPrefix(line, "*"):
			b.WriteString(line)
		}
	}
	return b.String()
}

// parseJump parses a line of iptables-save that has a rule of a built-in chain. Such a rule is always a jump to one of
// kube-proxy's chains. For any other line, ok is false.
func parseJump(line string) (chain, rest string, ok bool) {
	rule, ok := strings.CutPrefix(line, "-A ")
	if !ok || strings.HasPrefix(rule, "KUBE-") {
		return "", "", false
	}
	return strings.Cut(rule, " ")
}

// sysctls returns the sysctls that kube-proxy changes, with kube-proxy's values.
func (m Mode) sysctls(n *nl.NS) (w nl.Wiring) {
	for line := range strings.Lines(readRecorded(m, "sysctls")) {
		if key, value, ok := strings.Cut(line, " = "); ok {
			w = append(w, nl.Step{NS: n, Object: nl.Sysctl{Key: key, Value: strings.TrimSpace(value)}})
		}
	}
	return w
}
