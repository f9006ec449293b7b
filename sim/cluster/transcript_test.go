// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package cluster_test

import (
	"bytes"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/cluster"
)

const (
	playground = "../../docs/playground.md"
	prompt     = "cluster# "
)

var (
	transcriptText = regexp.MustCompile("(?s)\n\\$ make cluster\n(.*?)\n```")
	typed          = regexp.MustCompile(`(?m)^` + prompt + `(.*)\n`)
	noTerminal     = regexp.MustCompile(`(?m)^bash: (cannot set terminal process group|no job control).*\n`)
	lineEnd        = regexp.MustCompile(`(?m) +$`)
)

// varying has patterns for the texts that differ between two runs, and the words that replace these texts.
var varying = []struct {
	pattern *regexp.Regexp
	word    string
}{
	{regexp.MustCompile(`\b\d+\.\d+\.\d+\.\d+\b`), "ADDRESS"},
	{regexp.MustCompile(`\beni-[0-9a-f]+`), "ENI"},
	{regexp.MustCompile(`\b(web|coredns)-\w+-\w{5}\b`), "$1"},
	{regexp.MustCompile(`\bcni-[0-9a-f-]{36}\b`), "NAMESPACE"},
	{regexp.MustCompile(`\bveth[0-9a-f]{11}\b`), "VETH"},
	{regexp.MustCompile(`\b[0-9a-f]{12}\b`), "CONTAINER"},
	{regexp.MustCompile(`\b3[012]\d{3}\b`), "PORT"},
	{regexp.MustCompile(`\b(\d+m)?\d+[ms]\b`), "AGE"},
	{regexp.MustCompile(`ok \(\d+ checks\)`), "ok (ALL checks)"}, // tool's TestDocsChecks counts them
	{regexp.MustCompile(` +`), " "},
}

func sameEachTime(s string) string {
	for _, v := range varying {
		s = v.pattern.ReplaceAllString(s, v.word)
	}
	return s
}

// transcript runs the commands in the documented transcript of make cluster, and compares the output with the
// transcript. With UPDATE=1, it writes the output into the file instead.
func (w *world) transcript(t *testing.T) {
	text, err := os.ReadFile(playground)
	check(t, err)
	at := transcriptText.FindSubmatchIndex(text)
	if at == nil {
		t.Fatal(playground + " has no transcript of make cluster")
	}
	want := string(text[at[2]:at[3]])
	var commands []string
	for _, m := range typed.FindAllStringSubmatch(want+"\n", -1) {
		commands = append(commands, m[1])
	}
	got := cluster.Greeting + w.shell(t, strings.Join(commands, "\n")+"\n")
	if os.Getenv("UPDATE") != "" {
		text = []byte(string(text[:at[2]]) + strings.TrimSuffix(got, "\n") + string(text[at[3]:]))
		check(t, os.WriteFile(playground, text, 0o644))
		return
	}
	if diff := cmp.Diff(sameEachTime(want+"\n"), sameEachTime(got)); diff != "" {
		t.Errorf("%s shows another transcript (-want +got); UPDATE=1 writes this one:\n%s", playground, diff)
	}
}

// shell runs a script in the shell of make cluster, and returns the text that a terminal would show.
func (w *world) shell(t *testing.T, script string) string {
	t.Helper()
	s, err := w.NewShell()
	check(t, err)
	defer func() { check(t, s.Close()) }()
	bash := s.Command(t.Context(), "bash", "--norc", "-i")
	bash.Env = append(bash.Env, "TERM=dumb", "COLUMNS=200")
	bash.Stdin = strings.NewReader(script)
	var out bytes.Buffer
	bash.Stdout, bash.Stderr = &out, &out
	err = bash.Run() // the error is about the last command, which may be one that reports a fault
	shown := noTerminal.ReplaceAllString(out.String(), "")
	end := strings.LastIndex(shown, prompt)
	if end < 0 {
		t.Fatalf("the shell has shown no prompt: %v: %s", err, shown)
	}
	return lineEnd.ReplaceAllString(shown[:end], "")
}
