// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"slices"
	"strings"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
)

// delOriginal deletes what the original plugin has made for a pod that is deleted
// after an upgrade: a veth of a random name with its rule, and what masquerades.
//
// What masquerades goes first: should we be killed in between, the veth still tells that
// there is such a pod. Where it cannot be deleted the veth goes all the same, and no harm
// is left: the next pod of that address is to be masqueraded, too.
func delOriginal(ctx context.Context, host, pod *nl.NS, r *plugin.Request[Config]) error {
	rules, err := host.Rules()
	if err != nil {
		return fmt.Errorf("delete: %w", err)
	}
	veth, err := originalVeth(host, pod, r, rules)
	if veth == "" || err != nil {
		return err
	}
	return errors.Join(delMasquerade(ctx, host, r), delPair(host, veth))
}

// originalVeth is the host end of the pair that the original plugin made for a pod: that of
// prevResult, if it is there with the original's rule, or has gone with the namespace; or,
// without a prevResult, the other end of the pod's. If there is none it is "".
func originalVeth(host, pod *nl.NS, r *plugin.Request[Config], rules []nl.Rule) (string, error) {
	if r.Prev == nil {
		return nearOf(host, pod, r.Config.ContainerInterface, rules)
	}
	for _, i := range r.Prev.Interfaces {
		if i.Sandbox != "" || !strings.HasPrefix(i.Name, "veth") || i.Name == vethName(r.Network, r.Attachment) {
			continue
		}
		ruled := slices.ContainsFunc(rules, func(k nl.Rule) bool { return originals(k) && k.IIF == i.Name })
		_, err := host.LinkByName(i.Name)
		switch {
		case ruled || errors.Is(err, fs.ErrNotExist):
			return i.Name, nil
		case err != nil:
			return "", err
		}
	}
	return "", nil
}

// originals says whether a rule is one that the original plugin makes for a pod: of its
// place, about a veth of the kind of name that it gives, and of nobody's protocol.
func originals(r nl.Rule) bool {
	digits, is := strings.CutPrefix(r.IIF, "veth")
	return is && len(digits) == 8 && strings.Trim(digits, "0123456789abcdef") == "" &&
		r == nl.Rule{Pref: prefPod, IIF: r.IIF, Table: r.Table}
}

// nearOf is the host end of a pod's pair, if it has the original's rule, and the pod tells its own.
func nearOf(host, pod *nl.NS, name string, rules []nl.Rule) (string, error) {
	if pod == nil {
		return "", nil
	}
	far, err := pod.LinkByName(name)
	if err != nil {
		return "", nil
	}
	for _, r := range rules {
		if !originals(r) {
			continue
		}
		near, err := host.LinkByName(r.IIF)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return "", err
		case host.IsPeer(near, pod, far.Index):
			return near.Name, nil
		}
	}
	return "", nil
}

// delMasquerade deletes the pod's chain of iptables and the rule that jumps there. Only
// iptables itself knows whether it keeps its rules in nftables or where it used to; where
// there is none there are no such rules.
func delMasquerade(ctx context.Context, host *nl.NS, r *plugin.Request[Config]) error {
	if _, err := exec.LookPath("iptables"); err != nil {
		return nil
	}
	return host.Do(func() error {
		all, err := output(exec.CommandContext(ctx, "iptables", "-w", "-t", "nat", "-S"))
		if err != nil {
			return err
		}
		script := removal(string(all), r)
		if script == "" {
			return nil
		}
		restore := exec.CommandContext(ctx, "iptables-restore", "-w", "--noflush") // at once, or nothing
		restore.Stdin = strings.NewReader(script)
		_, err = output(restore)
		return err
	})
}

// output runs a command, whose error says what the command does.
func output(cmd *exec.Cmd) ([]byte, error) {
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return out, err
}

// removal is what iptables-restore(8) takes to delete, of all rules as iptables(8)
// lists them, those with the pod's comment, and the chain they jump to.
func removal(all string, r *plugin.Request[Config]) string {
	comment := fmt.Sprintf(`--comment "name: \"%s\" id: \"%s\""`, r.Network, r.ContainerID)
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
