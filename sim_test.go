// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package vpc

import (
	"bytes"
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
	simShell      = regexp.MustCompile(`(?m)^bash: (cannot set terminal process group|no job control).*\n`) // there is no terminal here
	blanks        = regexp.MustCompile(`(?m) +$`)
)

// TestSim types the commands of the transcript of make sim in docs/playground.md, and wants what it shows. With UPDATE=1 it writes
// what it gets into the file.
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

// playSim is what make sim shows to who types the commands, until the prompt after the last one. It mounts over directories,
// and so has them for itself.
func playSim(t *testing.T, commands []string) string {
	t.Helper()
	c := exec.CommandContext(t.Context(), "bin/shell")
	c.Env = append(os.Environ(), "TERM=dumb")
	c.Stdin = strings.NewReader(strings.Join(commands, "\n") + "\n")
	c.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	if err := c.Run(); err != nil {
		t.Fatalf("%v: %s: run make build and make %s/cnitool", err, &out, peers)
	}
	shown := simShell.ReplaceAllString(out.String(), "")
	return blanks.ReplaceAllString(shown[:max(strings.LastIndex(shown, "node1# "), 0)], "")
}

// sameEachTime replaces times and the numbers of requests, and leaves out what is there for a while only.
func sameEachTime(s string) string {
	s = regexp.MustCompile(`(?m)^unfinished since .*\n`).ReplaceAllString(s, "")
	s = regexp.MustCompile(`request=\S+`).ReplaceAllString(s, "REQUEST")
	s = regexp.MustCompile(`time=[0-9.]+ ms|time [0-9]+ms|= [0-9./]+ ms`).ReplaceAllString(s, "TIME")
	return regexp.MustCompile(`(?m) +[0-9]+s$`).ReplaceAllString(s, " AGE")
}
