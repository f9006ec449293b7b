// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package cluster_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/cluster"
)

// kubectlPlugin runs "kubectl ipvlan" as an operator does, with the real kubectl and its debug pods. One of the three
// nodes has a lease log. Each command must remove its debug pods. This also holds if a node does not answer, and after
// an interrupt.
func (w *world) kubectlPlugin(t *testing.T) {
	logging := w.join(t, "logging", cluster.NodeOptions{Conflist: edited(t, "portmap",
		object{"leaseLog": object{"file": "/var/log/cni-ipvlan-vpc-k8s/leases.log"}})})
	w.apply(t, podOn("here", "node1", server()), podOn("there", "node2", server()),
		podOn("logged", logging.Name, server()))
	here, logged := w.ready(t, "here", 1)[0], w.ready(t, "logged", 1)[0]
	w.ready(t, "there", 1)
	p := &plugin{w, t.TempDir()}

	summary := p.answer(t, "--parallel=2", "status") // two nodes, and then the third
	for _, n := range w.Nodes {
		wants(t, summary, fmt.Sprintf("(?m)^%s: %s, m5.xlarge, us-east-1a: . ENIs of 4$", n.Name, n.ID))
	}
	wants(t, p.answer(t, "status", "node1"), `(?m)^node1:$`, address(here, "(reserved|bound)", "default/here"))
	p.top(t)

	wants(t, p.answer(t, "whois", here.addr.String()), `(?m)^node1:$`,
		address(here, "(reserved|bound)", "default/here"))
	p.wantsHistory(t, logged, "-")
	w.remove(t, "pod", "logged")
	p.wantsHistory(t, logged, `\S+Z`) // Kubernetes does not know the pod any more
	if out, _, err := p.run(t, "whois", "100.64.15.200"); err == nil {
		t.Errorf("an address that no node has: %s", out)
	}

	p.bundle(t, w.node("node1"))
	wants(t, p.answer(t, "connectivity", "node1", "node2", "--internet", "none"),
		`(?m)^works +pod to pod `, `(?m)^works +pod to peer's pod `, `(?m)^works +peer's pod to pod `, ` 0 fail, `)
	p.silentNode(t, logging)
	p.interrupted(t)
}

// A plugin runs "kubectl ipvlan" in the directory dir.
type plugin struct {
	*world
	dir string
}

// command returns a command that runs the plugin on the master. The debug pods get an image that the nodes have, and
// the address of the simulated EC2.
func (p *plugin) command(ctx context.Context, args ...string) *exec.Cmd {
	c := p.Master.Command(ctx, "sh", append([]string{"-c", `cd "$0" && exec kubectl ipvlan "$@"`, p.dir}, args...)...)
	script := must(filepath.Abs("../../packaging/kubectl"))
	flags := []string{"KUBECTL_IPVLAN_FLAGS=--image-pull-policy=IfNotPresent"}
	for _, e := range p.Master.Environ() {
		if path, ok := strings.CutPrefix(e, "PATH="); ok {
			c.Env = append(c.Env, "PATH="+path+":"+script)
		}
		if strings.HasPrefix(e, "AWS_") {
			flags = append(flags, "--env="+e)
		}
	}
	c.Env = append(c.Env, "KUBECONFIG="+p.Kubeconfig(), "KUBECTL_IPVLAN_IMAGE="+cluster.Agnhost,
		strings.Join(flags, " "))
	return c
}

// run runs the plugin, and checks that no debug pod is left. Its timeout is long, because all nodes share this machine.
func (p *plugin) run(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	c := p.command(t.Context(), append([]string{"--timeout=300"}, args...)...)
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	err = c.Run()
	check(t, p.noDebugPods(t.Context()))
	return out.String(), errs.String(), err
}

// answer runs a command of the plugin that must succeed.
func (p *plugin) answer(t *testing.T, args ...string) string {
	t.Helper()
	out, errs, err := p.run(t, args...)
	if err != nil {
		t.Fatalf("kubectl ipvlan %q: %v\n%s%s", args, err, errs, out)
	}
	return out
}

func (p *plugin) noDebugPods(ctx context.Context) error {
	out, err := p.Kubectl(ctx, "get", "pods", "-A", "-o", "name")
	if err == nil && strings.Contains(out, "node-debugger") {
		err = fmt.Errorf("debug pods are left:\n%s", out)
	}
	return err
}

func wants(t *testing.T, text string, patterns ...string) {
	t.Helper()
	for _, pattern := range patterns {
		if !regexp.MustCompile(pattern).MatchString(text) {
			t.Errorf("there is no %s in\n%s", pattern, text)
		}
	}
}

func address(p pod, columns ...string) string {
	return fmt.Sprintf(`(?m)^%s +%s `, regexp.QuoteMeta(p.addr.String()), strings.Join(columns, " +"))
}

// wantsHistory checks what the lease log tells about an address that only one pod has had. end is a pattern for the
// time when the lease has ended.
func (p *plugin) wantsHistory(t *testing.T, had pod, end string) {
	t.Helper()
	wants(t, p.answer(t, "whois", had.addr.String()),
		fmt.Sprintf(`^%s:\nbegin .*\n\S+Z +%s +default/%s `, had.node, end, had.name))
}

// top checks that the plugin shows the same numbers as the tool shows on each node.
func (p *plugin) top(t *testing.T) {
	t.Helper()
	out := p.answer(t, "top")
	for _, n := range p.Nodes {
		var s struct {
			Pools []struct{ Leased, Free, Cooling int }
		}
		text, err := n.Run(t.Context(), tool, "status", "--output=json")
		check(t, err)
		check(t, json.Unmarshal([]byte(text), &s))
		// a cooling address may become free between the two commands, so check the sum; each pod has one address
		leased, rest := s.Pools[0].Leased, s.Pools[0].Free+s.Pools[0].Cooling
		m := regexp.MustCompile(fmt.Sprintf(`(?m)^%s +%d +%d +(\d+) +(\d+) +./3$`, n.Name, leased,
			leased)).FindStringSubmatch(out)
		if m == nil || number(m[1])+number(m[2]) != rest {
			t.Errorf("%s has %d pods, and %d addresses without one; top says\n%s", n.Name, leased, rest, out)
		}
	}
}

func number(s string) int { return must(strconv.Atoi(s)) }

// bundle checks that a node's bundle arrives whole, with data from the node's own namespaces and from EC2.
func (p *plugin) bundle(t *testing.T, n *cluster.Node) {
	t.Helper()
	wants(t, p.answer(t, "bundle", n.Name), "^"+n.Name+`\.tar\.gz\n$`)
	out, err := p.Master.Run(t.Context(), tool, "support-bundle", "--output=json",
		"--read="+filepath.Join(p.dir, n.Name+".tar.gz"))
	check(t, err)
	var read struct {
		Sources []struct{ Name, State, Why string }
	}
	check(t, json.Unmarshal([]byte(out), &read))
	state := map[string]string{}
	for _, s := range read.Sources {
		state[s.Name] = s.State + s.Why
	}
	for _, name := range []string{"registry", "pods", "status --diff", "answers of EC2"} {
		if state[name] != "whole" {
			t.Errorf("%s of the bundle is %q: %v", name, state[name], state)
		}
	}
}

// silentNode checks a node that drops all TCP packets. The plugin must name this node, and show the other nodes.
func (p *plugin) silentNode(t *testing.T, n *cluster.Node) {
	t.Helper()
	nft := func(ctx context.Context, commands string) {
		_, err := n.Run(ctx, "nft", commands)
		check(t, err)
	}
	nft(t.Context(), "table inet silent { chain input { type filter hook input priority 0; meta l4proto tcp drop; }; }")
	defer nft(context.Background(), "delete table inet silent")
	out, errs, err := p.run(t, "--timeout=60", "status")
	if err == nil {
		t.Error("a node does not answer, and the plugin succeeds")
	}
	wants(t, errs, "(?m)^kubectl ipvlan: "+n.Name+": ")
	wants(t, out, "(?m)^node1: i-", "(?m)^node2: i-")
}

// interrupted checks that an interrupt ends the plugin while it waits for debug pods that cannot start.
func (p *plugin) interrupted(t *testing.T) {
	t.Helper()
	c := p.command(t.Context(), "--timeout=600", "--image=localhost/there-is-none:1", "status")
	c.SysProcAttr.Setpgid = true // as a shell does: the terminal interrupts all processes of a job
	check(t, c.Start())
	await(t, func() error {
		if p.noDebugPods(t.Context()) == nil {
			return fmt.Errorf("no debug pod was made")
		}
		return nil
	})
	check(t, syscall.Kill(-c.Process.Pid, syscall.SIGINT))
	c.Wait() // the process nsenter ends at once, but the plugin first deletes its debug pods
	await(t, func() error { return p.noDebugPods(t.Context()) })
}
