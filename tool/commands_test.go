// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool_test

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/simtest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/doctor"
)

// TestTranscripts checks that testdata has transcripts of every command: with good and bad input, as text and as JSON,
// without root, without EC2, and while EC2 throttles.
func TestTranscripts(t *testing.T) {
	// These commands make calls to neither EC2 nor metadata.
	noEC2 := []string{"addr", "registry-list", "repair", "validate", "iam-policy", "egress", "whois", "version"}
	// These commands make calls to metadata, or to neither EC2 nor metadata.
	noCalls := append([]string{"connectivity-test", "eniif", "free-ips", "install"}, noEC2...)
	for _, c := range visible() {
		b := transcripts(t, c.Name)
		asJSON := `(?m)^exec `
		if c.Name == "connectivity-test" {
			asJSON = `(?m)^! exec ` // no packet can reach a pod here; package e2e tests paths that work
		}
		want := []string{
			`exec ` + tool.Name + ` ` + c.Name + `\b`,
			asJSON + tool.Name + ` ` + c.Name + ` .*(-o|--output)[ =]json`,
			`(?m)^fields ` + c.Name + `$`,
			`(?m)^! exec ` + tool.Name + ` ` + c.Name + `.*\n(! stdout .\n)?stderr '\^?.*error:`,
			`exec unshare --user ` + tool.Name + ` ` + c.Name,
		}
		if !slices.Contains(noEC2, c.Name) {
			want = append(want, `env AWS_EC2_METADATA_SERVICE_ENDPOINT=http://127.0.0.1:1`)
		}
		if !slices.Contains(noCalls, c.Name) {
			want = append(want, `RequestLimitExceeded`)
		}
		for _, w := range want {
			if !regexp.MustCompile(w).Match(b) {
				t.Errorf("the transcript of %s has no %s", c.Name, w)
			}
		}
	}
}

// TestDocs checks that docs/tool.md has the text of --help of each command, and names no other command.
func TestDocs(t *testing.T) {
	const file = "../docs/tool.md"
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), "\n```\n")
	got, _, _ := strings.Cut(rest, "```\n")
	want := ""
	app := tool.New(io.Discard)
	app.Setup()
	for _, g := range app.VisibleCategories() {
		if g.Name() == "" {
			continue // the category of urfave/cli's own commands
		}
		want += g.Name() + ":\n"
		for _, c := range g.VisibleCommands() {
			want += fmt.Sprintf("  %-26s %s\n", c.Name, c.Usage)
		}
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("%s: -help +file\n%s", file, d)
	}
}

// TestDocsChecks: docs/playground.md shows the output of doctor on a node without findings. The number of checks in
// this output must be right.
func TestDocsChecks(t *testing.T) {
	const file = "../docs/playground.md"
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	answers := regexp.MustCompile(`(?m)^ok \((\d+) checks\)$`).FindAllStringSubmatch(string(b), -1)
	if len(answers) == 0 {
		t.Errorf("%s shows no healthy node", file)
	}
	for _, a := range answers {
		if want := fmt.Sprint(len(doctor.Checks(false))); a[1] != want {
			t.Errorf("%s: doctor makes %s checks, want %s", file, a[1], want)
		}
	}
}

// visible returns the commands that the help lists.
func visible() []*cli.Command {
	return slices.DeleteFunc(tool.New(io.Discard).Commands, func(c *cli.Command) bool { return c.Hidden })
}

// transcripts returns the transcripts whose names begin with the command's name.
func transcripts(t *testing.T, command string) (all []byte) {
	files, err := filepath.Glob("testdata/" + strings.ReplaceAll(command, "-", "_") + "*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, b...)
	}
	return all
}

// fieldsOf checks that the help of the command names exactly the keys of the JSON on standard output. fieldsOf ignores
// the keys in tags, labels and conditions, because other programs choose these keys.
func fieldsOf(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: fields COMMAND")
	}
	_, doc, ok := strings.Cut(tool.New(io.Discard).Command(args[0]).Description, "With --output json: ")
	if !ok {
		ts.Fatalf("the help of %s names no fields", args[0])
	}
	if ts.Getenv("VARIANT") != "" {
		_, doc, _ = strings.Cut(doc, ts.Getenv("VARIANT")+":")
	}
	doc, _, _ = strings.Cut(doc, "with --")
	want := map[string]bool{}
	doc = regexp.MustCompile(`\([^)]*\)`).ReplaceAllString(doc, "")
	for _, word := range regexp.MustCompile(`[A-Za-z][A-Za-z0-9_]*`).FindAllString(doc, -1) {
		want[word] = true
	}
	var v any
	ts.Check(json.Unmarshal([]byte(ts.ReadFile("stdout")), &v))
	got := map[string]bool{}
	collectKeys(v, got)
	if diff := cmp.Diff(slices.Sorted(maps.Keys(want)), slices.Sorted(maps.Keys(got))); diff != "" {
		ts.Fatalf("-documented +answered\n%s", diff)
	}
}

func collectKeys(v any, keys map[string]bool) {
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			collectKeys(e, keys)
		}
	case map[string]any:
		for key, e := range v {
			keys[key] = true
			if key != "tags" && key != "labels" && key != "Condition" {
				collectKeys(e, keys)
			}
		}
	}
}

// exposition checks that Prometheus accepts a file. It also checks the rules of Prometheus' naming guide: our prefix, a
// help text, a type, base units, and no duplicate values.
func exposition(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: exposition FILE")
	}
	text := ts.ReadFile(args[0])
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	ts.Check(err)
	if len(families) == 0 {
		ts.Fatalf("there are no metrics")
	}
	for name, f := range families {
		kind := "GAUGE"
		switch {
		case strings.HasSuffix(name, "_total"):
			kind = "COUNTER"
		case name == "cni_ipvlan_vpc_command_seconds":
			kind = "HISTOGRAM"
		}
		if !strings.HasPrefix(name, "cni_ipvlan_vpc_") || f.GetType().String() != kind ||
			!strings.HasSuffix(f.GetHelp(), ".") {
			ts.Fatalf("%s: prefix, type %v or help %q", name, f.GetType(), f.GetHelp())
		}
		if strings.Contains(name, "timestamp") != strings.HasSuffix(name, "_timestamp_seconds") {
			ts.Fatalf("%s: no unit", name)
		}
		seen := map[string]bool{}
		for _, m := range f.GetMetric() {
			key := fmt.Sprint(m.GetLabel())
			if seen[key] {
				ts.Fatalf("%s has %s twice", name, key)
			}
			if seen[key] = true; m.TimestampMs != nil {
				ts.Fatalf("%s has a time of its own, which the textfile collector refuses", name)
			}
		}
	}
}

// callEC2 makes an EC2 call as a person does on the console. The call does not come from the node.
func callEC2(ts *testscript.TestScript, neg bool, args []string) {
	form := url.Values{"Action": {args[0]}, "Version": {"2016-11-15"}}
	for _, arg := range args[1:] {
		key, value, _ := strings.Cut(arg, "=")
		form.Set(key, value)
	}
	resp, err := http.PostForm(ts.Getenv("AWS_ENDPOINT_URL_EC2"), form)
	ts.Check(err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	ts.Check(err)
	if (resp.StatusCode != http.StatusOK) != neg {
		ts.Fatalf("%s: %s\n%s", args[0], resp.Status, body)
	}
}

// leak creates an ENI for an instance, and leaves it unattached. A process leaves such an ENI behind if it is killed
// between the creation and the attachment.
func leak(ts *testscript.TestScript, _ bool, args []string) {
	call := []string{"CreateNetworkInterface", "SubnetId=subnet-b", "TagSpecification.1.ResourceType=network-interface"}
	tags := append([]string{"cni-ipvlan-vpc-k8s/managed=true", "cni-ipvlan-vpc-k8s/instance=" + args[0]}, args[1:]...)
	for i, tag := range tags {
		key, value, _ := strings.Cut(tag, "=")
		n := fmt.Sprintf("TagSpecification.1.Tag.%d.", i+1)
		call = append(call, n+"Key="+key, n+"Value="+value)
	}
	callEC2(ts, false, call)
}

// elsewhere replaces the script's EC2 by another EC2 that does not know the node.
func elsewhere(ts *testscript.TestScript, _ bool, _ []string) {
	ts.Setenv("AWS_ENDPOINT_URL_EC2", simtest.Serve(on(ts), simtest.Sim(on(ts), vpc())))
}

func launch(ts *testscript.TestScript, _ bool, _ []string) {
	i, err := on(ts).EC2.RunInstance(ec2sim.RunInstance{Type: "c5.large", Subnet: "subnet-b",
		SecurityGroups: []string{"sg-node"}})
	ts.Check(err)
	fmt.Fprintln(ts.Stdout(), i.ID)
}

func terminate(ts *testscript.TestScript, _ bool, args []string) {
	ts.Check(on(ts).EC2.TerminateInstance(args[0]))
}

func hide(ts *testscript.TestScript, _ bool, args []string) {
	on(ts).Lie(ec2sim.HideKeys(args[0], args[1]))
}

func freeze(ts *testscript.TestScript, _ bool, args []string) {
	on(ts).Lie(ec2sim.FreezeENI(args[0]), ec2sim.KeepENI(args[0]))
}
