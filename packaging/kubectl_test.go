// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package packaging

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

// plugin is the path of the kubectl plugin. TestScripts checks it with shellcheck, and sim/cluster runs it against
// nodes.
const plugin = "kubectl/kubectl-ipvlan"

// TestKubectlUsage: the command line is wrong. The plugin must say what is wrong, must not run kubectl, and must leave
// no file.
func TestKubectlUsage(t *testing.T) {
	need(t, "bash")
	for args, want := range map[string]string{
		"":                            "want a command",
		"statis":                      "there is no command statis",
		"--selektor a=b status":       "there is no option --selektor",
		"status --image=busybox":      "status: --image=busybox: want names of nodes",
		"--timeout":                   "the option --timeout needs a value",
		"--timeout 5s status":         "'5s': want a number, at least 1",
		"--parallel=0 status":         "'0': want a number, at least 1",
		"whois":                       "whois: '': want an address, for example 10.0.97.30",
		"whois node1":                 "whois: 'node1': want an address, for example 10.0.97.30",
		"bundle":                      "bundle: want names of nodes",
		"connectivity node1":          "connectivity: want two nodes",
		"connectivity node1 node1":    "connectivity: want two nodes",
		"connectivity node1 --peer a": "connectivity: want two nodes",
	} {
		dir := t.TempDir()
		c := exec.Command(plugin, strings.Fields(args)...)
		c.Env = append(os.Environ(), "TMPDIR="+dir, "KUBECONFIG=/dev/null")
		out, err := c.CombinedOutput()
		if got := string(out); c.ProcessState.ExitCode() != 2 ||
			got != "kubectl ipvlan: "+want+"; see kubectl ipvlan --help\n" {
			t.Errorf("kubectl ipvlan %s: %v: %s", args, err, got)
		}
		if left, _ := filepath.Glob(dir + "/*"); len(left) > 0 {
			t.Errorf("kubectl ipvlan %s leaves %q", args, left)
		}
	}
}

// TestKubectlHelp: the help has exactly the commands and options of the script, and the docs show its commands.
func TestKubectlHelp(t *testing.T) {
	script, help := read(t, plugin), command(t, plugin, "--help")
	for _, pattern := range []string{`(?m)^(?:\t| *)(\w+)\)$`, `(?m)^\t(?:-\w \| )?(--\w+)(?: \| --\w+)?\) .*\$2`} {
		all := regexp.MustCompile(pattern).FindAllStringSubmatch(script, -1)
		if len(all) < 4 {
			t.Errorf("the script has only %q", all)
		}
		for _, m := range all {
			if !strings.Contains(help, m[1]) && m[1] != "--namespace" && m[1] != "--selector" {
				t.Errorf("the help does not have %s", m[1])
			}
		}
	}
	_, usage, _ := strings.Cut(help, "\nusage: ")
	usage, _, _ = strings.Cut(usage, "\noptions:\n")
	if page := read(t, "../docs/operations.md"); usage == "" || !strings.Contains(page, usage+"\n```\n") {
		t.Errorf("docs/operations.md does not have the commands of the help:\n%s", usage)
	}
}

// calls matches a call of cni-tool in the script: the command and its arguments.
var calls = regexp.MustCompile(`"\$(?:tool|careful|history)" (?:"\$\w+" )?([a-z-]+)([^;\n]*)`)

// TestKubectlFlags checks that the tool has each command and each flag that the script uses.
func TestKubectlFlags(t *testing.T) {
	found := map[string]int{}
	for _, call := range calls.FindAllStringSubmatch(read(t, plugin), -1) {
		help := command(t, "../bin/cni-ipvlan-vpc-k8s-tool", call[1], "--help")
		for _, flag := range regexp.MustCompile(`--[a-z-]+`).FindAllString(call[2], -1) {
			if !regexp.MustCompile(`(?m)^ +` + flag + `\b`).MatchString(help) {
				t.Errorf("cni-tool %s has no %s:\n%s", call[1], flag, help)
			}
			found[call[1]+" "+flag]++
		}
		found[call[1]]++
	}
	want := map[string]int{"status": 3, "whois": 2, "support-bundle": 1, "support-bundle --output": 1,
		"connectivity-test": 2, "connectivity-test --serve": 1, "connectivity-test --for": 1,
		"connectivity-test --peer": 1}
	if d := cmp.Diff(want, found); d != "" {
		t.Errorf("calls of cni-tool (-want +got):\n%s", d)
	}
}

// krew checks the files for krew. The manifest must have the fields that krew requires, and the checksum of the
// archive.
func krew(t *testing.T, dir string) {
	var m struct {
		APIVersion, Kind string
		Metadata         struct{ Name string }
		Spec             struct {
			Version, Homepage, ShortDescription, Description, Caveats string
			Platforms                                                 []struct {
				Selector         map[string]any
				URI, SHA256, Bin string
			}
		}
	}
	if err := yaml.UnmarshalStrict([]byte(read(t, filepath.Join(dir, "ipvlan.yaml"))), &m); err != nil {
		t.Fatal(err)
	}
	s := m.Spec
	if m.APIVersion != "krew.googlecontainertools.github.com/v1alpha2" || m.Kind != "Plugin" ||
		m.Metadata.Name != "ipvlan" || s.ShortDescription == "" || len(s.ShortDescription) > 50 ||
		!regexp.MustCompile(`^v\d+\.\d+\.\d+`).MatchString(s.Version) || len(s.Platforms) != 1 {
		t.Fatalf("the manifest is %+v", m)
	}
	p := s.Platforms[0]
	archive := filepath.Join(dir, filepath.Base(p.URI))
	want := s.Homepage + "/releases/download/" + s.Version + "/kubectl-ipvlan-" + s.Version + ".tar.gz"
	if p.URI != want {
		t.Errorf("its URI is %s, want %s", p.URI, want)
	}
	if sum := fmt.Sprintf("%x", sha256.Sum256([]byte(read(t, archive)))); p.SHA256 != sum {
		t.Errorf("its sum is %s, and that of the archive %s", p.SHA256, sum)
	}
	unpacked := t.TempDir()
	command(t, "tar", "-C", unpacked, "-xzf", archive)
	if d := cmp.Diff([]string{"/LICENSE", "/" + p.Bin}, files(t, unpacked)); d != "" {
		t.Errorf("the archive has other files (-want +got):\n%s", d)
	}
	if read(t, filepath.Join(unpacked, p.Bin)) != read(t, plugin) {
		t.Error("the archive has another script")
	}
}
