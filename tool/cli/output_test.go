// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os/exec"
	"strings"
	"testing"
)

// TestForeignText checks that a terminal never obeys control characters in text of pods. It checks tables, sentences,
// errors and warnings. JSON has the unchanged text.
func TestForeignText(t *testing.T) {
	const name = "a\x1b[2J\u202e\u2066\x00\u009b\xffb\r\nforged   row\tx"
	type row struct {
		Pod string   `json:"pod"`
		All []string `json:"all"`
	}
	rows := []row{{name, []string{name}}}
	answer := func(args ...string) string {
		var out bytes.Buffer
		command := &Command{Name: "show", Action: func(c *Context) error {
			return Answer(c, rows, func(w io.Writer) {
				Tabulate(w, rows)
				fmt.Fprintf(w, "%s is here\n", strings.ReplaceAll(name, "\n", ""))
			})
		}}
		Complete(command)
		app := &App{Name: "tool", Writer: &out, Commands: []*Command{command}}
		if err := app.Run(append([]string{"tool", "show"}, args...)); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	var said bytes.Buffer
	Report(&said, fmt.Errorf("pod %s: %w", name, Hint(errors.New("no"), "ask "+name)))
	slog.New(messageHandler{t: &terminal{w: &said}}).Warn("pod "+name, "name", name)
	text := answer()
	for _, shown := range []string{text, said.String()} {
		if strings.ContainsAny(shown, "\x1b\u202e\u2066\x00\u009b\r") || strings.Contains(shown, "\xff") {
			t.Errorf("a terminal obeys %q", shown)
		}
	}
	if n := strings.Count(text, "\n"); n != 3 {
		t.Errorf("%d lines, want the heading, a row and a sentence:\n%s", n, text)
	}
	var back []row
	if err := json.Unmarshal([]byte(answer("-o", "json")), &back); err != nil ||
		back[0].Pod != strings.ToValidUTF8(name, "\ufffd") {
		t.Errorf("JSON has %q, %v", back, err)
	}
}

// TestExitStatus checks the exit status of the tool. An error that wraps the exit status of another program neither
// sets the tool's exit status, nor hides an error that sets it.
func TestExitStatus(t *testing.T) {
	program := exec.Command("false").Run()
	misnamed := unknownCommand("x", &App{})
	for _, tt := range []struct {
		err  error
		want int
	}{
		{nil, 0}, {program, 1}, {misnamed, 3},
		{errors.Join(program, misnamed), 3}, {fmt.Errorf("%w: %w", misnamed, program), 3},
	} {
		if got := Report(io.Discard, tt.err); got != tt.want {
			t.Errorf("%v: exit status %d, want %d", tt.err, got, tt.want)
		}
	}
}
