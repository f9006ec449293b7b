// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package vpc

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

const runbookPage = "docs/operations.md"

// TestRunbook checks that the programs can write each error that docs/operations.md quotes, so that an operator finds
// the words of a pod's event there. "…" in a quotation stands for a part that varies. Each part between two colons is
// an error of its own.
func TestRunbook(t *testing.T) {
	page, err := os.ReadFile(runbookPage)
	if err != nil {
		t.Fatal(err)
	}
	source := ourSource(t)
	quoted := regexp.MustCompile(`(?m)^\*\*Pods do not start: "(.*)"\*\*$`).FindAllSubmatch(page, -1)
	if len(quoted) < 5 {
		t.Fatalf("%d errors are quoted", len(quoted))
	}
	for _, q := range quoted {
		for _, part := range regexp.MustCompile("…|: |cni-ipvlan-vpc-k8s-ipam").Split(string(q[1]), -1) {
			if part = strings.Trim(part, " :,"); part != "" && !strings.Contains(source, part) {
				t.Errorf("docs/operations.md quotes %q, and no program writes %q", q[1], part)
			}
		}
	}
}

// runbookCommand matches a command of the page: in a line of its own, or in quotes.
var runbookCommand = regexp.MustCompile("(?m)^    ((?:cni-tool|ip|for|sysctl|nft) [^#\n]*)|`((?:cni-tool|ip|nft|sysctl|systemctl|journalctl|kubectl|aws|iptables|iptables-legacy|firewall-cmd) [^`]*)`")

// runElsewhere are the tests that run commands of the page by other words, by a part of the command: the file, and what it has.
var runElsewhere = map[string][2]string{
	"iptables -I DOCKER-USER":          {"nl/dropping_test.go", "iptables-nft -I DOCKER-USER -i veth+ -j ACCEPT"},
	"ip link show group 72":            {"sim_test.go", "ip -o link show group 72"},
	"ip link set vethd6a04bff483 down": {"sim_test.go", "ip link set $veth down"},
	"ip link del":                      {"sim_test.go", "ip link del $veth"},
	"ip -6 rule add pref 100":          {"tool/testdata/doctor_node.txtar", "exec ip -6 rule add pref 511 iif lo lookup main suppress_prefixlength 127"},
	"cni-tool doctor --check egress":   {"egress_test.go", `"doctor", "--check=egress"`},
	"cni-tool doctor --check plugins":  {"tool/testdata/doctor.txtar", "--check plugins"},
	"cni-tool doctor --check subnets":  {"tool/testdata/doctor_subnets.txtar", "--check subnets"},
	"cni-tool doctor --check iam":      {"tool/testdata/doctor_iam.txtar", "--check iam"},
	"cni-tool doctor --check others":   {"tool/testdata/others.txtar", "--check"},
	"cni-tool metrics --file":          {"tool/testdata/metrics.txtar", "metrics --file"},
	"cni-tool doctor --fix":            {"tool/testdata/doctor_node.txtar", "--fix"},
	"cni-tool validate FILE":           {"tool/testdata/validate.txtar", "cni-ipvlan-vpc-k8s-tool validate "},
}

// runByNobody are commands of the page that no test runs, and why.
var runByNobody = map[string]string{
	"kubectl describe pod":             "it needs a cluster, and changes nothing",
	"journalctl -u cni-gc -u cni-warm": "it needs systemd as process 1, and changes nothing",
	"systemctl ":                       "it needs systemd as process 1, where packaging's tests start these units by others",
	"firewall-cmd":                     "the page says so: from its manual, not tried",
	"iptables-legacy -S FORWARD":       "it changes nothing, and doctor's transcript has the note that names it",
	"aws ec2 modify-":                  "no test has this program; the calls are of EC2's reference",
	"for id in $(crictl":               "it needs crictl, and the original plugin",
	"cni-tool completion":              "gone, as the page says",
	"cni-tool man":                     "gone, as the page says",
}

// TestRunbookCommands checks that a test runs each command of docs/operations.md: the script of make sim does, the table of faults, a
// transcript of the tool, or the test that is named here.
func TestRunbookCommands(t *testing.T) {
	page, err := os.ReadFile(runbookPage)
	if err != nil {
		t.Fatal(err)
	}
	ran := read(t, "sim_test.go") + read(t, "faults_table_test.go")
	transcripts, err := filepath.Glob("tool/testdata/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range transcripts {
		ran += strings.ReplaceAll(read(t, file), "cni-ipvlan-vpc-k8s-tool", "cni-tool")
	}
	count := map[string]int{}
	for _, m := range runbookCommand.FindAllStringSubmatch(string(page), -1) {
		command := strings.TrimSpace(m[1] + m[2])
		by, is := elsewhere(command)
		switch {
		case excused(command):
			count["none"]++
		case is:
			count["another test"]++
			if !strings.Contains(read(t, by[0]), by[1]) {
				t.Errorf("%q: %s does not run it any more: it does not have %q", command, by[0], by[1])
			}
		case strings.Contains(ran, command):
			count["a fault or a transcript"]++
		default:
			t.Errorf("%s: no test runs %q", runbookPage, command)
		}
	}
	t.Log("commands by what runs them:", count)
	if count["a fault or a transcript"] < 40 {
		t.Errorf("only %v", count)
	}
}

func elsewhere(command string) (by [2]string, is bool) {
	for part, by := range runElsewhere {
		if strings.HasPrefix(command, part) {
			return by, true
		}
	}
	return by, false
}

func excused(command string) bool {
	for part := range runByNobody {
		if strings.HasPrefix(command, part) {
			return true
		}
	}
	return false
}

func read(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// ourSource returns the source of everything that can make an ADD fail.
func ourSource(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	for _, dir := range []string{"aws", "ipam", "plugin"} {
		err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
			if err != nil || filepath.Ext(p) != ".go" || strings.HasSuffix(p, "_test.go") || strings.Contains(p, "sim") {
				return err
			}
			b, err := os.ReadFile(p)
			all.Write(b)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	all.WriteString(syscall.EADDRINUSE.Error()) // the kernel's error for ipvlan
	return all.String()
}
