// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package packaging

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestRules runs the tests of the alerts. They are in a separate module, because Prometheus' engine requires 80 other
// modules.
func TestRules(t *testing.T) { command(t, "go", "test", "-C", "rules", "./...") }

// TestMetricNames checks that the tool's source has each metric that the rules and the
// dashboard use.
func TestMetricNames(t *testing.T) {
	sources, err := filepath.Glob("../tool/view/*.go")
	sources = append(sources, "../tool/metrics.go", "../tool/doctor/metrics.go")
	if err != nil {
		t.Fatal(err)
	}
	var written []string
	for _, source := range sources {
		for _, m := range regexp.MustCompile(`Metric\{Name: "(\w+)"`).FindAllStringSubmatch(read(t, source), -1) {
			written = append(written, "cni_ipvlan_vpc_"+m[1])
		}
	}
	for _, file := range []string{"alerts.yaml", "dashboard.json"} {
		read := regexp.MustCompile(`cni_ipvlan_vpc_\w+`).FindAllString(strings.ReplaceAll(read(t, file),
			"cni_ipvlan_vpc.prom", ""), -1)
		if len(read) < 10 {
			t.Errorf("%s looks at %d metrics", file, len(read))
		}
		for _, name := range read {
			if !slices.Contains(written, strings.TrimSuffix(name, "_bucket")) { // a histogram's metric has this suffix
				t.Errorf("%s: there is no metric %s", file, name)
			}
		}
	}
}

// TestMetricsPage checks that the page has each metric with its help text, and each alert at its runbook_url.
func TestMetricsPage(t *testing.T) {
	page := read(t, "../docs/metrics.md")
	source := read(t, "../tool/view/metrics.go") + read(t, "../tool/view/egress.go") + read(t, "../tool/metrics.go") +
		read(t, "../tool/doctor/metrics.go")
	metrics := regexp.MustCompile(
		`Metric\{Name: "(\w+)",\s*Help: ((?:"[^"]*"[\s+]*)+)`).FindAllStringSubmatch(source, -1)
	if n := strings.Count(source, `Metric{Name: "`); len(metrics) != n {
		t.Errorf("the source has %d metrics, and %d with a help", n, len(metrics))
	}
	for _, m := range metrics {
		help := regexp.MustCompile(`"[\s+]*"`).ReplaceAllString(strings.TrimRight(m[2], " +\n\t"), "")
		row := regexp.MustCompile("(?m)^\\| `" + m[1] + "` \\| [^|]*\\| " +
			regexp.QuoteMeta(strings.Trim(help, `"`)) + ` \|$`)
		if !row.MatchString(page) {
			t.Errorf("the page has no row of %s with the help %s", m[1], help)
		}
	}
	const url = "https://github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/blob/main/docs/metrics.md#"
	for _, rule := range strings.Split(read(t, "alerts.yaml"), "- alert: ")[1:] {
		name, _, _ := strings.Cut(rule, "\n")
		if !strings.Contains(rule, "runbook_url: "+url+strings.ToLower(name)+"\n") ||
			!strings.Contains(page, "\n### "+name+"\n") {
			t.Errorf("%s: no runbook_url, or the page does not have it", name)
		}
	}
}

// TestMetricsFile checks that the alert CNIMetricsStale uses the file that the unit, the help and the docs name.
func TestMetricsFile(t *testing.T) {
	alert := regexp.MustCompile(`mtime_seconds\{file=~"(.+)"\}`).FindStringSubmatch(read(t, "alerts.yaml"))
	if alert == nil {
		t.Fatal("alerts.yaml looks at the age of no file")
	}
	watched := regexp.MustCompile("^" + alert[1] + "$")
	for _, file := range []string{"../systemd/system/cni-metrics.service", "../tool/metrics.go",
		"../docs/metrics.md", "chart/values.yaml"} {
		named := regexp.MustCompile(`/\S+\.prom`).FindAllString(read(t, file), -1)
		if len(named) == 0 {
			t.Errorf("%s names no file for metrics", file)
		}
		for _, n := range named {
			if !watched.MatchString(n) {
				t.Errorf("%s names %s, whose age no alert looks at", file, n)
			}
		}
	}
}

// TestDashboard checks that the dashboard is JSON, that each panel has its own ID, and that
// no two panels overlap.
func TestDashboard(t *testing.T) {
	var d struct {
		Panels []struct {
			ID      int
			Title   string
			GridPos struct{ X, Y, W, H int }
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal([]byte(read(t, "dashboard.json")), &d); err != nil {
		t.Fatal(err)
	}
	for i, p := range d.Panels {
		if len(p.Targets) == 0 || p.GridPos.X+p.GridPos.W > 24 {
			t.Errorf("panel %q shows nothing, or is not on the page", p.Title)
		}
		for _, q := range d.Panels[:i] {
			a, b := p.GridPos, q.GridPos
			if p.ID == q.ID || a.X < b.X+b.W && b.X < a.X+a.W && a.Y < b.Y+b.H && b.Y < a.Y+a.H {
				t.Errorf("panels %q and %q have one number or place", p.Title, q.Title)
			}
		}
	}
}

// TestCloudInit checks the two files that the user data writes. The tool must accept the conflist. The other file must
// be a valid script.
func TestCloudInit(t *testing.T) {
	files := written(t, "cloud-init.yaml")
	dir := t.TempDir()
	for path, text := range files {
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(path)), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	command(t, "../bin/cni-ipvlan-vpc-k8s-tool", "validate", "--bin-dir", "../bin",
		filepath.Join(dir, "10-cni-ipvlan-vpc-k8s.conflist"))
	command(t, "bash", "-n", filepath.Join(dir, "pod-network"))
	need(t, "shellcheck")
	command(t, "shellcheck", filepath.Join(dir, "pod-network"))
}

// TestCloudInitRefused: EC2 refuses all calls. The script of the user data must still write the conflist and start the
// kubelet. So the node joins the cluster, and its pods wait for EC2.
func TestCloudInitRefused(t *testing.T) {
	dir := t.TempDir()
	for path, text := range written(t, "cloud-init.yaml") {
		put(t, dir+path, strings.ReplaceAll(text, "/etc/", dir+"/etc/"))
	}
	for _, program := range []string{"curl", "dpkg", "apt-get", "systemctl", "cni-tool", "ip"} {
		put(t, dir+"/bin/"+program, refusing)
	}
	t.Setenv("CALLS", dir+"/calls")
	t.Setenv("PATH", dir+"/bin:"+os.Getenv("PATH"))
	command(t, "bash", dir+"/usr/local/sbin/pod-network")
	calls := strings.Split(strings.TrimSpace(read(t, dir+"/calls")), "\n")
	for _, call := range []string{"cni-tool new-interface --subnet_filter=kubernetes_kubelet=true --ip_batch_size=10 " +
		"sg-1234 sg-5678", "systemctl enable cni-warm.service", "systemctl start --no-block cni-warm.service",
		"systemctl enable kubelet.service"} {
		if !slices.Contains(calls, call) {
			t.Errorf("the script has not called: %s", call)
		}
	}
	if last := calls[len(calls)-1]; last != "systemctl restart kubelet.service" {
		t.Errorf("the script ends with: %s", last)
	}
	conflist := read(t, dir+"/etc/cni/net.d/10-cni-ipvlan-vpc-k8s.conflist")
	if !strings.Contains(conflist, `"hostInterface": "ens5"`) {
		t.Errorf("the node has the conflist\n%s", conflist)
	}
	kubelet := read(t, dir+"/etc/systemd/system/kubelet.service.d/pod-network.conf")
	if !strings.Contains(kubelet, "--max-pods=58 --node-ip=10.0.0.4") {
		t.Errorf("the kubelet has\n%s", kubelet)
	}
}

// refusing is the text of each program that the script of the user data calls. The program records its arguments, and
// fails if its work needs EC2. So systemctl also fails if it starts cni-warm.service without --no-block, because it
// then waits for the service.
const refusing = `#!/bin/sh
echo "${0##*/} $*" >>"$CALLS"
case "${0##*/} $*" in
"cni-tool new-interface "*) exit 1 ;;
"systemctl start --no-block "* | "systemctl -q is-active "*) ;;
"systemctl enable --now "*cni-warm.service* | "systemctl start "*cni-warm.service*) exit 1 ;;
"cni-tool eniif"*) printf 'iface mac\nens5 02:00:00:00:00:01\n' ;;
"cni-tool maxpods "*) echo 58 ;;
"ip "*) echo '2: ens5    inet 10.0.0.4/24 metric 100 brd 10.0.0.255 scope global dynamic ens5' ;;
"dpkg "*) echo amd64 ;;
esac
`

// put writes a file with execute permission, and makes its directory.
func put(t *testing.T, path, text string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o755)); err != nil {
		t.Fatal(err)
	}
}

// written returns the files in the list write_files of the user data, as a map from the path to the content. In the
// user data, each content is a literal block, indented by six spaces.
func written(t *testing.T, name string) map[string]string {
	t.Helper()
	files := map[string]string{}
	path, inside := "", false
	for line := range strings.Lines(read(t, name)) {
		if p, ok := strings.CutPrefix(line, "  - path: "); ok {
			path, inside = strings.TrimSpace(p), false
		}
		text, indented := strings.CutPrefix(line, "      ")
		if inside && (indented || line == "\n") {
			files[path] += text
		} else {
			inside = line == "    content: |\n"
		}
	}
	if len(files) != 2 {
		t.Fatalf("%s writes %d files", name, len(files))
	}
	return files
}

func TestScripts(t *testing.T) {
	need(t, "shellcheck")
	scripts := []string{"package", "release", plugin, "testdata/boot", "testdata/story", "testdata/hotplug",
		"testdata/hotplug-story", "../systemd/cni-ipvlan-vpc-k8s-links"}
	for _, pattern := range []string{"*.sh", "../.ci/*", "../nl/nltest/vm/*", "../sim/shell/*.sh"} {
		more, err := filepath.Glob(pattern)
		if err != nil || len(more) == 0 {
			t.Fatalf("%s: %d files, %v", pattern, len(more), err)
		}
		scripts = append(scripts, more...)
	}
	scripts = slices.DeleteFunc(scripts, func(s string) bool { return filepath.Ext(s) == ".config" })
	command(t, "shellcheck", scripts...)
}

func read(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// command runs a program that must succeed, and returns its output.
func command(t *testing.T, name string, arg ...string) string {
	t.Helper()
	var stderr strings.Builder // warnings are not output
	c := exec.Command(name, arg...)
	c.Stderr = &stderr
	out, err := c.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s%s", name, strings.Join(arg, " "), err, out, &stderr)
	}
	return string(out)
}
