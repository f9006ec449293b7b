// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package e2e

import (
	"debug/buildinfo"
	"debug/elf"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// held names the tests of each statement of docs/security.md. The key is the beginning of the statement. Statements
// that advise the reader, or that name a limit of the protection, need no test.
var held = map[string]string{
	"No program listens on a port":           "TestListensNowhere",
	"State is in `/run":                      "TestPermissions TestRebuilt",
	"The plugins never pass":                 "TestNeverAsked",
	"Authenticate workloads by TLS":          "advice",
	"Give the role only the permissions":     "TestPolicyIsWhatIsCalled TestPermissions",
	"The DaemonSet that installs":            "TestInstallerHasNoAccount",
	"`provision: none` needs no permission":  "TestExamples TestTagsUnknownNotAllowed TestPeersUnknown",
	"Keep pods from the role.":               "TestForbidPackets TestMetadata TestMetadataHopLimit TestAdversaryWays",
	"It cannot attack its node":              "TestAdversaries TestGuard TestRepairGuard",
	"It can use only its own addresses":      "TestSourceCheck TestForgedSender TestForgedAnswer TestAdversaryWays",
	"With `serviceLoop` `none`":              "TestByVeth",
	"It cannot call the VPC as the node":     "TestClosed TestClosedBesideLoopless TestCollectsSoon",
	"It can send false neighbour messages.":  "limit",
	"It cannot take addresses from the node": "TestStranger TestStrangerLeases TestStrangerChanges",
	"It can do more with `CAP_NET_ADMIN`.":   "TestPodTakesMore TestAddOrNothing TestBootPods",
	"It can fill the memory":                 "TestCrowd",
	"It reaches the pods of its ENI":         "limit",
	"NetworkPolicy does not restrict it.":    "limit",
	"A routed pod sends with its own":        "TestRoutedSender TestRoutedMark TestRoutedNextHop",
	"It cannot choose our names.":            "TestPranks TestFurtherPranks TestPodCannotReachAnother",
	"It cannot act as a router.":             "TestAdvertisement TestNoRA TestBelievingNode TestAdversaries",
	"It can ask for a pool":                  "TestChoosePool TestRequestsRefused",
	"A whole ENI in a pod": "TestExclusiveSettings TestExclusiveAbove TestMovedLinkTCX " +
		"TestSettings TestSettingsCard",
	"It cannot change the lease log.":      "TestLeaseLogProcesses TestNamesOfPods",
	"By its ENI, its veth pair":            "TestAdversaryWays",
	"A router serves each host":            "TestRouterTakesClients TestAdversaryWays",
	"A router forwards only":               "TestRouterForwards TestAdversaryWays TestEgress",
	"A client accepts from the tunnel":     "TestEgress TestClientKnowsRouters",
	"Clients and routers drop an IP":       "TestAdversaryWays",
	"The plugin makes the kernel load":     "TestNoFOU",
	"A client's packets to a destination":  "TestEgressEnds TestKillEgress TestEgressLost",
	"The node's configuration says which":  "TestEgressRefused TestEgressOfPod",
	"It uses the kubelet's credentials":    "TestPatchNode",
	"It sends one request":                 "TestPatchNode",
	"It never** reads":                     "TestPatchNode",
	"It trusts only the authority":         "TestPatchNode TestRedirected TestRefused",
	"If the kubeconfig names a program":    "TestExecEnds",
	"A process that is root on a node can": "limit",
	"With `--feature-file` it calls":       "TestScript",
	"The policy of the chart":              "TestPolicy",
	"Annotations and names of a pod":       "TestSteps TestLimits TestNamesOfPods TestQuote TestJoin TestForeignText",
	"If EC2 answers with an address":       "TestStrangeAnswers",
	"The binaries are static Go":           "TestStatic",
	"They are reproducible":                "TestPackage TestReproducible",
	"The plugins execute two other":        "TestListensNowhere",
}

// TestSecurityHeld checks that each point of docs/security.md that begins with a bold statement has an entry in held.
// The tests of each entry must exist.
func TestSecurityHeld(t *testing.T) {
	text, err := os.ReadFile("docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	tests := testNames(t)
	seen := map[string]bool{}
	for _, point := range regexp.MustCompile(`(?m)^(?:- )?\*\*(.*)`).FindAllStringSubmatch(string(text), -1) {
		found := false
		for begin := range held {
			if strings.HasPrefix(point[1], begin) {
				found, seen[begin] = true, true
			}
		}
		if !found {
			t.Errorf("nothing holds %q", point[1])
		}
	}
	for begin, names := range held {
		if !seen[begin] && !strings.Contains(string(text), begin) {
			t.Errorf("docs/security.md does not say %q", begin)
		}
		for _, name := range strings.Fields(names) {
			if name != "advice" && name != "limit" && !tests[name] {
				t.Errorf("%q: there is no %s", begin, name)
			}
		}
	}
}

func testNames(t *testing.T) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	name := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	err := filepath.WalkDir(".", func(p string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && (p == ".git" || p == ".cache" || p == "bin") {
			return fs.SkipDir
		}
		if err != nil || !strings.HasSuffix(p, "_test.go") {
			return err
		}
		b, err := os.ReadFile(p)
		for _, m := range name.FindAllSubmatch(b, -1) {
			all[string(m[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// onNodes returns the source files of the programs on nodes, and of all packages of this repository that the programs
// import.
func onNodes(t *testing.T) (files []string) {
	t.Helper()
	const programs = "./plugin/... ./ipam/... ./unnumbered-ptp/... ./tool/..."
	var mains []string
	for _, pattern := range strings.Fields(programs) {
		mains = append(mains, list(t, `{{if eq .Name "main"}}{{.ImportPath}}{{end}}`, pattern)...)
	}
	others := func(p string) bool { return !strings.HasPrefix(filepath.Base(p), "cni-ipvlan-vpc-k8s") }
	mains = slices.DeleteFunc(mains, others)
	if len(mains) != 7 {
		t.Fatalf("the programs are %q", mains)
	}
	const sources = `{{if and .Module .Module.Main}}{{$d := .Dir}}{{range .GoFiles}}{{$d}}/{{.}}{{"\n"}}{{end}}{{end}}`
	root, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range list(t, sources, append([]string{"-deps"}, mains...)...) {
		files = append(files, strings.TrimPrefix(f, root+"/"))
	}
	return files
}

// list returns the fields of the output of go list.
func list(t *testing.T, format string, args ...string) []string {
	t.Helper()
	out, err := exec.Command("go", append([]string{"list", "-f", format}, args...)...).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(out))
}

// TestListensNowhere: no program on a node may listen on a socket, except connectivity-test while an operator runs it.
// Outside of the directory tool, only the files in the map executing may execute programs.
func TestListensNowhere(t *testing.T) {
	executing := map[string]bool{"plugin/delegate.go": false, "unnumbered-ptp/legacy/legacy.go": false}
	listens := regexp.MustCompile(
		`\b(net|http|unix|syscall)\.(ListenConfig|Listen\w*|Serve\w*|Accept4?)\(|\.ListenAndServe`)
	files := onNodes(t)
	if len(files) < 200 {
		t.Fatalf("there are only %d files: %q", len(files), files)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for function := range strings.SplitSeq(string(text), "\nfunc ") {
			if found := listens.FindString(function); found != "" &&
				!(f == "tool/connectivity/server.go" && strings.HasPrefix(function, "startServer(")) {
				t.Errorf("%s: %s", f, found)
			}
		}
		if !strings.Contains(string(text), `"os/exec"`) || strings.HasPrefix(f, "tool/") {
			continue
		}
		if _, known := executing[f]; !known {
			t.Errorf("%s executes programs", f)
		}
		executing[f] = true
	}
	for f, does := range executing {
		if !does {
			t.Errorf("%s executes no program", f)
		}
	}
}

// TestNeverAsked: no program asks EC2 to take an address from another ENI, or to turn off the source check of an ENI.
func TestNeverAsked(t *testing.T) {
	set := regexp.MustCompile(`\b(AllowReassignment|SourceDestCheck)"?\s*[:=]`)
	for _, f := range onNodes(t) {
		text, err := os.ReadFile(f)
		if found := set.Find(text); found != nil || err != nil {
			t.Errorf("%s: %s; %v", f, found, err)
		}
	}
}

// TestStatic: the programs in bin must need no shared library of the node, and must contain no path of the build
// machine. make builds the programs before this test.
func TestStatic(t *testing.T) {
	files, err := filepath.Glob("bin/cni-ipvlan-vpc-k8s*")
	if err != nil || len(files) != 7 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		f, err := elf.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if libraries, err := f.ImportedLibraries(); len(libraries) > 0 || err != nil || f.Section(".interp") != nil {
			t.Errorf("%s needs %q; %v", file, libraries, err)
		}
		info, err := buildinfo.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		settings := map[string]string{}
		for _, s := range info.Settings {
			settings[s.Key] = s.Value
		}
		if settings["-trimpath"] != "true" || settings["CGO_ENABLED"] != "0" {
			t.Errorf("%s was built with %v", file, info.Settings)
		}
	}
}

// TestInstallerHasNoAccount: the DaemonSets that install the suite have no access to the API server: neither a service
// account nor a role.
func TestInstallerHasNoAccount(t *testing.T) {
	for _, file := range []string{"packaging/kubernetes/systemd.yaml", "packaging/kubernetes/maintain.yaml",
		"packaging/chart/templates/daemonset.yaml"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(text), "\n      automountServiceAccountToken: false\n") {
			t.Errorf("%s: its pods have an account", file)
		}
	}
	if kinds, err := exec.Command("grep", "-rliE", "kind: *(cluster)?role|kind: *serviceaccount",
		"packaging/kubernetes", "packaging/chart").Output(); len(kinds) > 0 {
		t.Errorf("a role or an account is in %s; %v", kinds, err)
	}
}

// TestCollectsSoon: cni-gc.timer runs repair at least every seven minutes, plus the seconds that systemd may add.
func TestCollectsSoon(t *testing.T) {
	for file, lines := range map[string][]string{
		"systemd/system/cni-gc.timer":   {"OnUnitActiveSec=5min", "RandomizedDelaySec=2min", "AccuracySec=10s"},
		"systemd/system/cni-gc.service": {"repair"},
	} {
		text, err := os.ReadFile(file)
		for _, line := range lines {
			if err != nil || !strings.Contains(string(text), line) {
				t.Errorf("%s has not %q; %v", file, line, err)
			}
		}
	}
}
