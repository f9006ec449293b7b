// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package e2e

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
)

const playground = "docs/playground.md"

var (
	simTranscript = regexp.MustCompile(`(?s)\n\$ make sim\n(.*?)\n` + "```")
	simCommand    = regexp.MustCompile(`(?m)^node1# (.*)\n`)
	// bash prints these lines if it has no terminal, as in this test.
	simShell = regexp.MustCompile(`(?m)^bash: (cannot set terminal process group|no job control).*\n`)
	blanks   = regexp.MustCompile(`(?m) +$`)
)

// TestSim types the commands of the transcript of make sim in docs/playground.md, and compares their output with the
// page. With UPDATE=1, the test writes the output into the page.
func TestSim(t *testing.T) {
	nltest.Need(t, "root", "ipvlan", "nftables")
	text, err := os.ReadFile(playground)
	if err != nil {
		t.Fatal(err)
	}
	at := simTranscript.FindSubmatchIndex(text)
	if at == nil {
		t.Fatal(playground + " has no transcript of make sim")
	}
	want := string(text[at[2]:at[3]]) + "\n"
	var commands []string
	for _, m := range simCommand.FindAllStringSubmatch(want, -1) {
		commands = append(commands, m[1])
	}
	got := playSim(t, commands)
	if os.Getenv("UPDATE") != "" {
		text = []byte(string(text[:at[2]]) + strings.TrimSuffix(got, "\n") + string(text[at[3]:]))
		if err := os.WriteFile(playground, text, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(sameEachTime(want), sameEachTime(got)); diff != "" {
		t.Errorf("%s shows another transcript (-want +got); UPDATE=1 writes this one:\n%s", playground, diff)
	}
}

// sim returns the command that make sim executes. This command runs in its own mount namespace, because it mounts over
// directories.
func sim(t *testing.T, script string, args ...string) *exec.Cmd {
	t.Helper()
	c := exec.CommandContext(t.Context(), "bin/shell", args...)
	c.Env = append(os.Environ(), "TERM=dumb")
	c.Stdin = strings.NewReader(script)
	c.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	return c
}

// playSim runs the given commands in the shell of make sim. It returns the output up to the prompt after the last
// command.
func playSim(t *testing.T, commands []string) string {
	t.Helper()
	c := sim(t, strings.Join(commands, "\n")+"\n", "-i")
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	if err := c.Run(); err != nil {
		t.Fatalf("%v: %s: run make build and make %s/cnitool", err, &out, peers)
	}
	shown := simShell.ReplaceAllString(out.String(), "")
	return blanks.ReplaceAllString(shown[:max(strings.LastIndex(shown, "node1# "), 0)], "")
}

// TestSimScript pipes a script to make sim, which must exit with the script's status. On a healthy node with pods,
// doctor and status --diff must find nothing, although other instances and the simulator run beside the node. If the
// node loses a part of a young pod's network, doctor must report the loss, and repair must restore the part. If the
// registry is deleted and rebuilt, status must still show the pods by name. doctor must also report a route that the
// pod itself has lost.
func TestSimScript(t *testing.T) {
	nltest.Need(t, "root", "ipvlan", "nftables")
	const script = `set -ex
pod add cart
pod add till
cni-tool doctor
cni-tool status --diff
test "$(ls /run/netns | xargs)" = "cart till"
test "$(readlink /proc/1/ns/net)" = "$(readlink /proc/self/ns/net)"
if grep -s -e vpcsim -e bin/shell /proc/mounts /proc/[0-9]*/cmdline; then exit 1; fi
veth=$(ip -o link show group 72 | sed -n '1s/^[0-9]*: \([^@:]*\).*/\1/p')
for lose in "ip route del 100.64.32.5" "ip rule del iif $veth" "ip route flush dev $veth table all" "ip link set $veth down" "ip link del $veth"; do
	$lose
	if cni-tool doctor --check leftovers; then exit 1; fi
	cni-tool repair
	cni-tool doctor
done
rm /run/cni-ipvlan-vpc-k8s/registry.json
cni-tool registry-gc --free-after=15m
cni-tool status | grep -w default/cart
ip netns exec cart ip route del default
if cni-tool doctor --check leftovers; then exit 1; fi
exit 3
`
	out, err := sim(t, script).CombinedOutput()
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 3 {
		t.Fatalf("got %v, want the script's exit status 3 (without programs, run make build and make %s/cnitool): %s",
			err, peers, out)
	}
	if strings.Contains(string(out), "node1#") {
		t.Errorf("got a prompt, want none without a terminal: %s", out)
	}
}

// TestRepoSimPipe pipes a script to make sim. On a kernel without ipvlan, make sim must pass the script to the VM.
func TestRepoSimPipe(t *testing.T) {
	nltest.Need(t, "root")
	if os.Getenv("VM_KIND") != "uml" {
		t.Skip("make test runs it in user-mode Linux (VM_KIND=uml): QEMU takes too long here")
	}
	for script, want := range map[string]string{
		"cni-tool eniif | grep -o subnet-nodes\n":        "subnet-nodes\n",
		"read -r line\nEOF \\ 'a\necho \"$line\"\nfalse": "EOF \\ 'a\n",
	} {
		c := exec.CommandContext(t.Context(), "make", "-s", "sim")
		c.Env = append(os.Environ(), "MAKEFLAGS=") // the flags of make test must not reach this make
		c.Stdin = strings.NewReader(script)
		out, err := c.Output()
		if failed := strings.HasSuffix(script, "false"); string(out) != want || (err != nil) != failed {
			t.Errorf("%q: got %q and %v, want %q, and failed is %v", script, out, err, want, failed)
		}
	}
}

// sameEachTime replaces times and request numbers, and removes lines that appear only for a while.
func sameEachTime(s string) string {
	s = regexp.MustCompile(`(?m)^EC2 call unfinished for .*\n`).ReplaceAllString(s, "")
	s = regexp.MustCompile(`request=\S+`).ReplaceAllString(s, "REQUEST")
	s = regexp.MustCompile(`time=[0-9.]+ ms|time [0-9]+ms|= [0-9./]+ ms`).ReplaceAllString(s, "TIME")
	// The number of checks does not matter here: TestDocsChecks of tool compares it with the docs.
	s = regexp.MustCompile(`ok \(\d+ checks\)`).ReplaceAllString(s, "ok (ALL checks)")
	return regexp.MustCompile(`(?m) +[0-9]+s$`).ReplaceAllString(s, " AGE")
}
