// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package e2e

import (
	"bufio"
	_ "embed"
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
)

const faultsPage = "docs/faults.md"

//go:embed testdata/faults.sh
var faultsPrelude string

const replaced = "delete the pod"

var allFaults = flag.Bool("faults", false, "make all faults; TestFaults writes the page, too; without, some of them")

// TestFaults makes each fault on a node with two pods, and runs the programs. doctor must find each fault, and report
// nothing else, except where the page explains it. The commands that doctor or the runbook quotes must end the fault,
// exactly as they are quoted. If doctor offers --fix, --fix must end the fault, too. docs/faults.md has the results.
// Without -faults, the test makes only some faults, and compares the results with the page.
func TestFaults(t *testing.T) {
	nltest.Need(t, "root", "ipvlan", "nftables")
	page, err := os.ReadFile(faultsPage)
	if err != nil {
		t.Fatal(err)
	}
	if !*allFaults {
		n := newFaultNode(t)
		for _, part := range faults {
			for _, f := range part.faults {
				if f.often && !strings.Contains(string(page), n.row(f)) {
					t.Errorf("%s has other answers to %q: make test-faults writes those of now", faultsPage, f.name)
				}
			}
		}
		return
	}
	for _, part := range faults {
		t.Run(part.heading, func(t *testing.T) {
			n, rows := newFaultNode(t), ""
			for _, f := range part.faults {
				rows += n.row(f)
			}
			writeFaults(t, part.heading, faultsHead+rows)
		})
	}
}

func writeFaults(t *testing.T, heading, rows string) {
	t.Helper()
	page, err := os.ReadFile(faultsPage)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(page), "\n## "+heading+"\n")
	_, after, more := strings.Cut(rest, "\n## ")
	if !found {
		t.Fatalf("%s has no part %q", faultsPage, heading)
	}
	if more {
		after = "\n## " + after
	}
	if err := os.WriteFile(faultsPage, []byte(before+"\n## "+heading+"\n\n"+rows+after), 0o644); err != nil {
		t.Fatal(err)
	}
}

const faultsHead = "| fault | does not work | `doctor` | `status` | `repair` | CHECK | what ends it " +
	"|\n|---|---|---|---|---|---|---|\n"

// A faultNode is the shell of make sim on a node with the pods cart and till.
type faultNode struct {
	t       *testing.T
	in      io.Writer
	out     *bufio.Scanner
	runbook string
	healthy string // the beginning of the output of status on the healthy node
}

func newFaultNode(t *testing.T) *faultNode {
	t.Helper()
	c := sim(t, "")
	c.Stdin = nil
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	runbook, err := os.ReadFile(runbookPage)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatalf("%v: run make build and make %s/cnitool", err, peers)
	}
	t.Cleanup(func() {
		in.Close()
		_ = c.Wait()
	})
	n := &faultNode{t: t, in: in, out: bufio.NewScanner(out), runbook: oneSpace(string(runbook))}
	n.out.Buffer(nil, 1<<20)
	io.WriteString(in, faultsPrelude)
	n.run("renew cart; renew till")
	if said := n.doctor(""); len(said) > 0 {
		t.Fatalf("the node is not healthy before any fault: %v", said)
	}
	n.healthy = n.head()
	return n
}

// run runs commands in the shell. It returns their standard output, and their exit status.
func (n *faultNode) run(commands string) (out string, status int) {
	n.t.Helper()
	return n.answer("{\n" + commands + "\n} 2>/root/messages </dev/null")
}

// answer returns what the shell prints for commands, and their exit status.
func (n *faultNode) answer(commands string) (out string, status int) {
	n.t.Helper()
	fmt.Fprintf(n.in, "%s\nprintf '\\n\\001%%d\\n' $?\n", commands)
	var b strings.Builder
	for n.out.Scan() {
		if code, ends := strings.CutPrefix(n.out.Text(), "\001"); ends {
			if _, err := fmt.Sscan(code, &status); err != nil {
				n.t.Fatal(err)
			}
			return strings.TrimSpace(b.String()), status
		}
		b.WriteString(n.out.Text() + "\n")
	}
	n.t.Fatalf("the shell has ended at %q: %s", commands, &b)
	return "", 0
}

// messages returns what the last call of run has written to standard error, without the trace of the shell.
func (n *faultNode) messages() string {
	n.t.Helper()
	out, _ := n.answer(`sed '/^+/d; s/.*\r//; s/\x1b\[K//g' /root/messages`)
	return out
}

// A faultFinding is a finding of doctor.
type faultFinding struct{ severity, check, text, do string }

func (f faultFinding) String() string { return f.severity + ": " + f.check + ": " + f.text }

// doctor returns the findings of doctor. The argument checks names the checks to run; "": all.
func (n *faultNode) doctor(checks string) (all []faultFinding) {
	n.t.Helper()
	if checks != "" {
		checks = " --check " + checks
	}
	out, _ := n.run("cni-tool doctor" + checks)
	for line := range strings.Lines(out) {
		do, indented := strings.CutPrefix(line, "    ")
		if indented && len(all) > 0 {
			all[len(all)-1].do += do
			continue
		}
		if m := faultLine.FindStringSubmatch(line); m != nil {
			all = append(all, faultFinding{severity: m[1], check: m[2], text: m[3]})
		}
	}
	return all
}

var faultLine = regexp.MustCompile(`^(error|warning|note): (\w+): (.*)\n?$`)

func (n *faultNode) head() string {
	n.t.Helper()
	out, status := n.run("cni-tool status")
	if status != 0 {
		return n.messages()
	}
	head, _, _ := strings.Cut(out, "\n\n")
	return head
}

// row makes a fault, and returns the row for the page.
func (n *faultNode) row(f fault) string {
	n.t.Helper()
	n.run(f.inject)
	fails := n.fails(f)
	found := n.doctor("")
	status := without(n.head(), n.healthy)
	_, checked := n.run("pod check cart")
	check := "passes"
	if checked != 0 {
		check = firstPart(strings.TrimPrefix(n.messages(), "Error: "))
	}
	n.judge(f, fails, found)
	repair := "–"
	if len(found) > 0 || len(fails) > 0 {
		out, _ := n.run("cni-tool repair")
		if out += n.messages(); strings.Contains(out, "error:") {
			repair = firstPart(out[strings.Index(out, "error:"):])
		}
		if n.heals(f, found) {
			repair = "puts it back"
		}
	}
	ends := n.ends(f, found, repair)
	if f.undo != "" {
		n.run(f.undo)
	}
	if f.undo != "" && !n.heals(fault{}, found) {
		n.t.Errorf("%s: the node does not work after what ends it: %v", f.name, n.doctor(""))
	}
	says := "–"
	if len(found) > 0 {
		says = "**" + found[0].severity + "** " + firstPart(found[0].text)
	}
	cells := []string{f.name + ": " + code(f.inject), strings.Join(fails, ", "), says, firstPart(status), repair,
		check, ends}
	for i, c := range cells {
		if cells[i] = strings.ReplaceAll(sameFault(c), "|", `\|`); c == "" {
			cells[i] = "–"
		}
	}
	return "| " + strings.Join(cells, " | ") + " |\n"
}

// fails returns the names of the things that fail in each of three tries. One failure is not enough, because a busy
// machine may be slow.
func (n *faultNode) fails(f fault) (fails []string) {
	n.t.Helper()
	for try := range 3 {
		out, _ := n.run("works")
		now := slices.Sorted(slices.Values(strings.Fields(out)))
		if try == 0 {
			fails = now
		}
		fails = slices.DeleteFunc(fails, func(at string) bool { return !slices.Contains(now, at) })
		if len(fails) == 0 {
			break
		}
	}
	if !f.pods {
		return fails
	}
	if _, failed := n.run("pod add new"); failed != 0 {
		fails = append(fails, "new pods (“"+strings.TrimPrefix(strings.SplitN(n.messages(), "\n", 2)[0],
			"Error: ")+"”)")
	}
	n.run("pod del new")
	return fails
}

// judge compares doctor's findings with the findings that the fault's entry expects.
func (n *faultNode) judge(f fault, fails []string, found []faultFinding) {
	n.t.Helper()
	if f.want == "" && len(fails) > 0 && f.why == "" {
		n.t.Errorf("%s: doctor finds nothing, and %v do not work", f.name, fails)
	}
	if f.want != "" && len(found) == 0 {
		n.t.Errorf("%s: doctor finds nothing, want %s", f.name, f.want)
	}
	for _, finding := range found {
		if f.want == "" || !regexp.MustCompile(f.want).MatchString(finding.String()) {
			n.t.Errorf("%s: doctor says what the table does not expect here: %s\n%s", f.name, finding, finding.do)
		}
	}
}

// heals reports whether the fault has ended: the checks that found it find nothing new, and everything works.
func (n *faultNode) heals(f fault, found []faultFinding) bool {
	n.t.Helper()
	checks := namedChecks(found)
	if checks != "" && slices.ContainsFunc(n.doctor(checks), func(now faultFinding) bool {
		return now.severity != "note" || slices.Contains(found, now)
	}) {
		return false
	}
	if _, failed := n.run("pod check cart"); failed != 0 {
		return false
	}
	return len(n.fails(fault{})) == 0
}

// ends runs each command of doctor and of the runbook that should end the fault, and checks that it does. ends returns
// a description of these commands for the page.
func (n *faultNode) ends(f fault, found []faultFinding, repair string) string {
	n.t.Helper()
	var do strings.Builder
	for _, finding := range found {
		do.WriteString(finding.text + "\n" + finding.do + "\n")
	}
	var ways []string
	again := repair == "puts it back"
	try := func(name, commands string) {
		n.t.Helper()
		if again {
			n.run(f.inject)
		}
		out, _ := n.run(commands)
		if again = n.heals(f, found); !again {
			n.t.Errorf("%s: %s does not end it: %s\n%s\n%v", f.name, name, out, n.messages(), n.doctor(""))
		}
		ways = append(ways, name)
	}
	if again {
		ways = append(ways, "`cni-tool repair`")
		if !strings.Contains(do.String(), "cni-tool repair") {
			n.t.Errorf("%s: cni-tool repair ends it, and doctor does not say so: %s", f.name, &do)
		}
	}
	if strings.Contains(do.String(), "(--fix does ") && !f.unfixed {
		try("`cni-tool doctor --fix`", "cni-tool doctor --fix --check "+namedChecks(found))
	}
	for cure := range strings.Lines(f.cure) {
		name, commands := n.literal(f, strings.TrimSpace(cure), do.String())
		try(name, commands)
	}
	if f.why != "" {
		ways = append(ways, f.why)
	}
	return strings.Join(ways, "; ")
}

// literal finds the text of the argument cure in the advice of doctor, or in the runbook. If cure begins with ~, the
// rest of cure is a regular expression.
func (n *faultNode) literal(f fault, cure, do string) (name, commands string) {
	n.t.Helper()
	pattern, is := strings.CutPrefix(cure, "~")
	if is {
		if cure = regexp.MustCompile(pattern).FindString(do); cure == "" {
			n.t.Errorf("%s: doctor does not say %s: %s", f.name, pattern, do)
			return pattern, "false"
		}
	}
	said := oneSpace(do)
	for part := range strings.SplitSeq(cure, " && ") {
		if !strings.Contains(said, part) && !strings.Contains(n.runbook, part) {
			n.t.Errorf("%s: neither doctor nor %s says %q: %s", f.name, runbookPage, part, do)
		}
	}
	if cure == replaced {
		return cure, "renew cart"
	}
	return code(cure), cure
}

func namedChecks(found []faultFinding) string {
	var names []string
	for _, f := range found {
		names = append(names, f.check)
	}
	return strings.Join(names, ",")
}

func without(text, other string) string {
	var lines []string
	for line := range strings.Lines(text) {
		if !strings.Contains(other, strings.TrimSpace(line)) {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return strings.Join(lines, " ")
}

// firstPart returns the beginning of a message.
func firstPart(s string) string {
	s, _, _ = strings.Cut(s, "\n")
	for _, end := range []string{". ", "; "} {
		s, _, _ = strings.Cut(s, end)
	}
	return strings.TrimSpace(s)
}

func code(commands string) string {
	return "`" + strings.Join(strings.Split(strings.TrimSpace(commands), "\n"), "; ") + "`"
}

func oneSpace(s string) string { return strings.Join(strings.Fields(s), " ") }

// sameFault replaces parts of a message that differ in each run.
func sameFault(s string) string {
	for from, to := range map[string]string{
		`veth[0-9a-f]{11}`: "veth…", `100\.64\.32\.\d+`: "100.64.32.…", `eni-0\d+`: "eni-…",
		`(lookup|table) 2\d\d`: "$1 …",
		`process \d+`:          "process …", `kill -9 \d+`: "kill -9 …", `\.bad-[0-9T.]+`: ".bad-…",
		`failed \d+s ago`: "failed … ago",
		`request=\S+`:     "request=…", `attach-0\d+`: "attach-…", `\b\d+m?s\b`: "…",
	} {
		s = regexp.MustCompile(from).ReplaceAllString(s, to)
	}
	return s
}
