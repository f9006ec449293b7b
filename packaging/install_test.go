// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package packaging

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
)

const installPage = "../docs/install.md"

// shown matches an example in a page. Its groups are the command of the tool, the file to which the command redirects
// its output, and the output.
var shown = regexp.MustCompile(`(?m)^    \$ cni-tool ([^>\n]*[^>\n ])(?: >(\S+))?\n((?:    [^$\n].*\n)*)`)

// TestInstallPage runs the commands of the page on an m5.large. The output must be the text that the page shows, or the
// content of the file that the page names. With -update, the test writes these files.
func TestInstallPage(t *testing.T) {
	tool := onInstance(t, "m5.large")
	all := shown.FindAllStringSubmatch(read(t, installPage), -1)
	if len(all) < 4 {
		t.Fatalf("%s has %d commands", installPage, len(all))
	}
	for _, m := range all {
		command, file, want := m[1], m[2], strings.TrimSpace(strings.ReplaceAll("\n"+m[3], "\n    ", "\n"))
		got := tool(strings.Fields(strings.ReplaceAll(command, "conflist-examples/", "../conflist-examples/"))...)
		if file != "" && *update {
			if err := os.WriteFile("../"+file, []byte(got+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if file != "" {
			want = strings.TrimSpace(read(t, "../"+file))
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s (-page +tool):\n%s", command, d)
		}
	}
}

// answer matches a row of the table of questions: the conflist, and the number of pods on an m5.large.
var answer = regexp.MustCompile("(?m)^\\| .* \\| `(\\S+\\.conflist)` \\| (\\d+) \\|$")

// TestInstallQuestions checks each example conflist. It must be the answer to a question of the page, and valid. An
// m5.large must have addresses for the number of pods in the table.
func TestInstallQuestions(t *testing.T) {
	tool := onInstance(t, "m5.large")
	left, err := filepath.Glob("../conflist-examples/*.conflist")
	if err != nil {
		t.Fatal(err)
	}
	page := read(t, installPage)
	for _, m := range answer.FindAllStringSubmatch(page, -1) {
		file := "../conflist-examples/" + m[1]
		left = slices.DeleteFunc(left, func(f string) bool { return f == file })
		tool("validate", "--bin-dir=", file)
		if got := tool("maxpods", "--config="+file, "--instance-type=m5.large", "--max=110"); got != m[2] {
			t.Errorf("%s has %s pods, and the page says %s", m[1], got, m[2])
		}
	}
	if want := []string{"../conflist-examples/original.conflist"}; !slices.Equal(left, want) ||
		!strings.Contains(page, "`original.conflist`") {
		t.Errorf("%s does not name %q", installPage, left)
	}
}

// TestInstallRemove runs the commands of cni-tool that the section "Remove" of the page shows. The pods of the node
// have ended. Afterwards, EC2 must have only the boot ENI.
func TestInstallRemove(t *testing.T) {
	nltest.Need(t, "root", "netns")
	fabric, node := instance(t)
	dir := t.TempDir()
	tool := func(args ...string) {
		t.Helper()
		args = append([]string{"--net=" + node.Path, "../bin/cni-ipvlan-vpc-k8s-tool"}, args...)
		c := exec.Command("nsenter", args...)
		c.Env = append(os.Environ(), node.Env()...)
		if out, err := c.CombinedOutput(); err != nil {
			t.Errorf("%v: %v\n%s", args, err, out)
		}
	}
	conflist := filepath.Join(dir, "10.conflist")
	for _, least := range []string{"2", "0"} { // the last conflist keeps no addresses warm
		text := `{"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "cni-ipvlan-vpc-k8s", "interfaceIndex": 1,
			"secGroupIds": [], "subnetTags": {"kubernetes_kubelet": "true"}, "warm": {"min": ` + least + `}}]}`
		if err := os.WriteFile(conflist, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		tool("warm", "--config="+dir)
	}
	if n := len(fabric.EC2.ENIs()); n != 2 {
		t.Fatalf("EC2 has %d ENIs", n)
	}
	if err := os.Remove(conflist); err != nil {
		t.Fatal(err)
	}
	time.Sleep(2 * time.Second)
	_, section, _ := strings.Cut(read(t, installPage), "\n### Remove\n")
	section, _, _ = strings.Cut(section, "\n#")
	all := regexp.MustCompile("`cni-tool ([a-z-]+)([^`]*)`").FindAllStringSubmatch(section, -1)
	if len(all) < 2 {
		t.Fatalf("the section has the commands %q", all)
	}
	for _, m := range all {
		args := append([]string{m[1]}, strings.Fields(m[2])...)
		if m[1] == "registry-gc" {
			tool(append(args, "--config="+dir)...)
			if all := fabric.EC2.ENIs(); len(all) != 1 {
				t.Errorf("EC2 has %+v", all[1:])
			}
		} else if m[1] == "install" {
			tool(args...)
		}
	}
}

// TestOnlyEC2 checks that the programs contain no client of an AWS service except EC2, as the recipe for a private
// cluster says.
func TestOnlyEC2(t *testing.T) {
	programs, err := filepath.Glob("../bin/cni-ipvlan-vpc-k8s*")
	if err != nil || len(programs) != 7 {
		t.Fatal(programs, err)
	}
	services := map[string]bool{}
	modules := command(t, "go", append([]string{"version", "-m"}, programs...)...)
	for _, m := range regexp.MustCompile(`aws-sdk-go-v2/service/(\S+)`).FindAllStringSubmatch(modules, -1) {
		services[m[1]] = services[m[1]] || !strings.HasPrefix(m[1], "internal/")
	}
	for service, client := range services {
		if client && service != "ec2" {
			t.Errorf("a program can call %s", service)
		}
	}
	if !services["ec2"] {
		t.Errorf("no program can call EC2: %v", services)
	}
}
