// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package legacy removes the objects that the original plugin has left on a node: veth pairs, rules, and chains of
// iptables.
package legacy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strings"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// A Pod has the facts that a DEL knows about a pod.
type Pod struct {
	Network, ContainerID string
	Link                 string           // name of the pod's end of the pair
	Veth                 string           // the name of the node's end in a pair of this release
	Prev                 *types100.Result // prevResult, or nil
}

// Del deletes the objects that the original plugin made for the pod before an upgrade. They are a veth pair with a
// random name, a routing rule for the pair, and rules of iptables.
//
// Del deletes the rules of iptables first. So after a kill, the veth still shows that there may be objects to delete.
// If the rules cannot be deleted, Del still deletes the veth. Rules that stay do no harm: a later pod with the same
// address needs the same masquerade.
func Del(ctx context.Context, node, pod *nl.NS, p Pod) error {
	if p.Prev != nil && !slices.ContainsFunc(p.Prev.Interfaces, p.mayBeNodeEnd) {
		return nil // without this return, Del would list the rules of all pods
	}
	rules, err := node.Rules()
	if err != nil {
		return fmt.Errorf("delete: %w", err)
	}
	veth, err := p.find(node, pod, rules)
	if veth == "" || err != nil {
		return err
	}
	return errors.Join(p.delMasquerade(ctx, node), node.DelPair(nl.Link{Name: veth}))
}

// find returns the node's end of the pair that the original plugin made for the pod, or "". With a prevResult, it
// returns an interface of prevResult whose link has the original plugin's rule, or whose link is gone. The link may
// have ended with the namespace. Without a prevResult, it returns the other end of the pod's link.
func (p Pod) find(node, pod *nl.NS, rules []nl.Rule) (string, error) {
	if p.Prev == nil {
		return nodeEnd(node, pod, p.Link, rules)
	}
	for _, i := range p.Prev.Interfaces {
		if !p.mayBeNodeEnd(i) {
			continue
		}
		ruled := slices.ContainsFunc(rules, func(k nl.Rule) bool { return IsRule(k) && k.IIF == i.Name })
		_, err := node.LinkByName(i.Name)
		switch {
		case ruled || errors.Is(err, fs.ErrNotExist):
			return i.Name, nil
		case err != nil:
			return "", err
		}
	}
	return "", nil
}

// mayBeNodeEnd reports whether an interface of prevResult may be the node's end of the original plugin's pair.
func (p Pod) mayBeNodeEnd(i *types100.Interface) bool {
	return i.Sandbox == "" && strings.HasPrefix(i.Name, "veth") && i.Name != p.Veth
}

// prefPod is the priority of the rule that the original plugin makes for a pod.
const prefPod = 1024

// IsRule reports whether a rule is one that the original plugin makes for a pod. Such a rule has the original plugin's
// priority and no protocol. Its link is a veth with a name in the form of the original plugin's names.
func IsRule(r nl.Rule) bool {
	digits, is := strings.CutPrefix(r.IIF, "veth")
	return is && len(digits) == 8 && strings.Trim(digits, "0123456789abcdef") == "" &&
		r == nl.Rule{Pref: prefPod, Family: nl.IPv4, IIF: r.IIF, Table: r.Table}
}

// nodeEnd returns the other end of the pod's link with this name, or "" if that end does not have the original plugin's
// rule.
func nodeEnd(node, pod *nl.NS, name string, rules []nl.Rule) (string, error) {
	if pod == nil {
		return "", nil
	}
	far, err := pod.LinkByName(name)
	if err != nil {
		return "", nil
	}
	for _, r := range rules {
		if !IsRule(r) {
			continue
		}
		near, err := node.LinkByName(r.IIF)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return "", err
		case node.IsPeer(near, pod, far.Index):
			return near.Name, nil
		}
	}
	return "", nil
}

// delMasquerade deletes the pod's chain of iptables and the rule that jumps to the chain. They are in nftables, or in
// the older engine of iptables. Only for the older engine, delMasquerade executes iptables, which fails if it cannot
// print another program's rule.
func (p Pod) delMasquerade(ctx context.Context, node *nl.NS) error {
	jumps := nl.Jumps{Table: "nat", Chain: "POSTROUTING", Comment: p.comment(), To: "CNI-"}
	err := jumps.Del(node)
	return errors.Join(err, node.Do(func() error { return p.delFromOlderEngine(ctx) }))
}

// comment returns the comment in the original plugin's rules for the pod.
func (p Pod) comment() string { return fmt.Sprintf("name: %q id: %q", p.Network, p.ContainerID) }

// delFromOlderEngine deletes the chain and the rule from the older engine, in the namespace of the current thread. It
// does nothing on most nodes, where the older engine has no table nat.
func (p Pod) delFromOlderEngine(ctx context.Context) error {
	tables, err := os.ReadFile("/proc/thread-self/net/ip_tables_names")
	if errors.Is(err, fs.ErrNotExist) || err == nil && !slices.Contains(strings.Fields(string(tables)), "nat") {
		return nil
	}
	iptables, err := olderProgram(ctx)
	if iptables == "" || err != nil {
		return err
	}
	all, err := outputOf(exec.CommandContext(ctx, iptables, "-w", "-t", "nat", "-S"))
	if err != nil {
		return err
	}
	script := p.deletionScript(string(all))
	if script == "" {
		return nil
	}
	restore := exec.CommandContext(ctx, iptables+"-restore", "-w", "--noflush") // all lines at once, or none
	restore.Stdin = strings.NewReader(script)
	_, err = outputOf(restore)
	return err
}

// olderProgram returns the name of the iptables program with the older engine, or "" if the node has none.
func olderProgram(ctx context.Context) (string, error) {
	for _, prog := range []string{"iptables-legacy", "iptables"} {
		if _, err := exec.LookPath(prog); err != nil {
			continue
		}
		version, err := outputOf(exec.CommandContext(ctx, prog, "--version"))
		if err != nil || !strings.Contains(string(version), "nf_tables") {
			return prog, err
		}
	}
	return "", nil
}

// outputOf runs a command. The returned error contains what the command has written to stderr.
func outputOf(cmd *exec.Cmd) ([]byte, error) {
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return out, err
}

// deletionScript returns an input for iptables-restore(8) that deletes the rules with the pod's comment, and the chains
// to which they jump. all is the list of all rules from iptables(8).
func (p Pod) deletionScript(all string) string {
	comment := `--comment "` + strings.ReplaceAll(p.comment(), `"`, `\"`) + `"`
	var jumps, chains []string
	for line := range strings.Lines(all) {
		rule, appended := strings.CutPrefix(strings.TrimSpace(line), "-A POSTROUTING ")
		_, chain, jump := strings.Cut(rule, " -j ")
		if appended && jump && strings.Contains(rule, comment) && strings.HasPrefix(chain, "CNI-") {
			jumps = append(jumps, "-D POSTROUTING "+rule)
			chains = append(chains, "-F "+chain, "-X "+chain)
		}
	}
	if len(jumps) == 0 {
		return ""
	}
	return "*nat\n" + strings.Join(append(jumps, chains...), "\n") + "\nCOMMIT\n"
}
