// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package e2e

import (
	"cmp"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

const runbookPage = "docs/operations.md"

// TestRunbook checks that the source has each error that docs/operations.md quotes under "Pods do not start". In a
// quotation, "…" stands for a part that varies. Each part between two colons is an error of its own.
func TestRunbook(t *testing.T) {
	page, err := os.ReadFile(runbookPage)
	if err != nil {
		t.Fatal(err)
	}
	source := ourSource(t)
	_, section, _ := strings.Cut(string(page), "\n### Pods do not start\n")
	section, _, _ = strings.Cut(section, "\n### ")
	quoted := regexp.MustCompile(`(?m)^\*\*"(.*)"\*\*$`).FindAllStringSubmatch(section, -1)
	if len(quoted) < 5 {
		t.Fatalf("%d errors are quoted", len(quoted))
	}
	for _, q := range quoted {
		for _, part := range regexp.MustCompile("…|: |cni-ipvlan-vpc-k8s-grow").Split(q[1], -1) {
			if part = strings.Trim(part, " :,"); part != "" && !strings.Contains(source, part) {
				t.Errorf("docs/operations.md quotes %q, and no program writes %q", q[1], part)
			}
		}
	}
}

// runbookCommand matches a command of the page, on a line of its own or in backquotes.
var runbookCommand = regexp.MustCompile("(?m)^    (?:  )?((?:cni-tool|ip|for|sysctl|nft) [^#\n]*)|`((?:cni-tool|" +
	"ip|nft|sysctl|systemctl|journalctl|kubectl|aws|iptables|iptables-legacy|firewall-cmd|tailscale|" +
	"ufw) [^`]*)`")

// runbookStates has the entries of the page that name commands. A key is the beginning of an entry. The value has the
// files with tests that make the state of the entry, and run its commands. A file without a path is a transcript of the
// tool, or a test of this package.
var runbookStates = map[string]string{
	"## Look at a node": "sim_test.go limits.txtar support_bundle.txtar " +
		"connectivity_test.txtar",
	"## All nodes, by kubectl": "sim/cluster/kubectl_test.go " +
		"packaging/kubectl/kubectl-ipvlan",
	"## Which path fails?":                       "connectivity_test.txtar connectivity_test.go",
	"## Who had this address?":                   "whois.txtar",
	"## Upgrade from the original":               "doctor.txtar repair.txtar iam_policy.txtar",
	"## Upgrade between versions":                "repair.txtar",
	"## From three plugins to one":               "validate.txtar",
	"## Migrate from amazon-vpc-cni-k8s":         "doctor_node.txtar",
	"## Runbook":                                 "faults_table_test.go",
	`**"no address is free`:                      "subnets.txtar",
	`**"no subnet for a new ENI`:                 "doctor_subnets.txtar",
	`**"instance is full`:                        "others.txtar",
	`**"… EC2 throttles`:                         "launch_template.txtar",
	`**"this node cannot reach the EC2 endpoint`: "doctor_endpoint.txtar",
	`**"… UnauthorizedOperation`:                 "doctor_iam.txtar",
	`**"… address already in use"`:               "status_diff.txtar",
	"**A running pod has lost its network**": "status_diff.txtar faults_table_test.go " +
		"connectivity_test.txtar",
	"**Pods that started before a new CIDR":   "vpccidr.txtar vpcpeercidr.txtar",
	`**"eni-… is passed over`:                 "faults_table_test.go faults_test.go",
	"**Clients of an egress reach nothing**":  "egress_test.go egress.txtar repair.txtar",
	"**Connections that were idle":            "doctor_tracking.txtar",
	"**All pods of a node have lost Services": "faults_table_test.go faults_test.go",
	"**A node and its pods do not reach":      "faults_table_test.go doctor_node.txtar",
	"**A node does not reach a pod any more":  "faults_table_test.go",
	"**A pod reaches the VPC":                 "faults_table_test.go",
	"### What repair knows of a pod":          "sim_test.go",
	`**"neighbour: arp_cache`:                 "doctor_node.txtar",
	`**"detach eni-…`:                         "doctor_iam.txtar",
	"**ENIs that no instance uses**":          "eni_gc.txtar",
	"### The firewall restarts":               "repair.txtar faults_table_test.go packaging/testdata/tenants",
	"### The firewall drops":                  "nl/dropping_test.go faults_table_test.go packaging/testdata/tenants",
	"### A VPN on the node":                   "packaging/testdata/tenants doctor_node.txtar",
}

// runOtherwise has commands of the page, and the form in which the tests write each of them.
var runOtherwise = map[string]string{
	"cni-tool connectivity-test --p":  `"--peer",`,
	"cni-tool connectivity-test --s":  `"--serve"`,
	"cni-tool doctor --check egress":  `"doctor", "--check=egress"`,
	"cni-tool doctor --fix":           `"cni-tool doctor --fix`,
	"cni-tool validate FILE":          "cni-tool validate good/10-pods.conflist",
	"ip link show group 72":           "ip -o link show group 72",
	"firewall-cmd --permanent":        "firewall-offline-cmd --zone=trusted --add-interface=veth+",
	"iptables -I DOCKER-USER":         "iptables-nft -I DOCKER-USER -i veth+ -j ACCEPT",
	"kubectl get pods -n kube-system": `p.Kubectl(ctx, "get", "pods", "-A"`,
}

// runByNoTest has commands of the page that no test runs, and the reasons.
var runByNoTest = map[string]string{
	"kubectl describe pod":             "it needs a cluster, and changes nothing",
	"kubectl krew install":             "it needs krew; packaging's tests look at the manifest and the archive",
	"journalctl -u cni-gc -u cni-warm": "it needs systemd as process 1, and changes nothing",
	"systemctl ":                       "it needs systemd as process 1; packaging's tests start these units",
	"iptables-legacy -S FORWARD":       "it changes nothing, and doctor's transcript has the note that names it",
	"for id in $(crictl":               "it needs crictl, and the original plugin",
}

// asOperators matches the tool in a transcript, with options for paths. An operator does not need these options,
// because the files are in their usual places.
var asOperators = regexp.MustCompile(`cni-ipvlan-vpc-k8s-tool( [a-z-]+)?(?: --(?:config|root|bin-dir)[ =]\S*)*`)

// TestRunbookCommands checks that a test runs each command of docs/operations.md in the state of its entry.
func TestRunbookCommands(t *testing.T) {
	count := map[string]int{}
	for heading, entry := range runbookEntries(t) {
		ran := ""
		for _, file := range stateOf(heading) {
			ran += asOperators.ReplaceAllString(read(t, file), "cni-tool$1")
		}
		for _, m := range runbookCommand.FindAllStringSubmatch(entry, -1) {
			command := strings.TrimSpace(m[1] + m[2])
			switch {
			case byPrefix(runByNoTest, command) != "":
				count["excused"]++
			case strings.Contains(ran, cmp.Or(byPrefix(runOtherwise, command), command)):
				count["run"]++
			default:
				t.Errorf("%s, %s: no test of %v runs %q", runbookPage, heading, stateOf(heading), command)
			}
		}
	}
	t.Log("commands:", count)
	if count["run"] < 60 {
		t.Errorf("only %v", count)
	}
}

// runbookEntries returns the entries of the page. The key is the beginning of the entry: a heading, or a symptom in
// bold.
func runbookEntries(t *testing.T) map[string]string {
	t.Helper()
	entries, heading := map[string]string{}, ""
	for line := range strings.Lines(read(t, runbookPage)) {
		if strings.HasPrefix(line, "##") || strings.HasPrefix(line, "**") && strings.HasSuffix(line, "**\n") {
			heading = line
		}
		entries[heading] += line
	}
	return entries
}

func stateOf(heading string) (files []string) {
	for _, name := range strings.Fields(byPrefix(runbookStates, heading)) {
		switch {
		case strings.HasSuffix(name, ".txtar"):
			name = "tool/testdata/" + name
		case !strings.Contains(name, "/"):
			name = "e2e/" + name
		}
		files = append(files, name)
	}
	return files
}

func byPrefix(table map[string]string, command string) string {
	for begin, value := range table {
		if strings.HasPrefix(command, begin) {
			return value
		}
	}
	return ""
}

func read(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// ourSource returns the source of all packages whose errors an ADD can return.
func ourSource(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	for _, dir := range []string{"aws", "ipam", "plugin"} {
		err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
			if err != nil || filepath.Ext(p) != ".go" || strings.HasSuffix(p, "_test.go") ||
				strings.Contains(p, "sim") {
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
