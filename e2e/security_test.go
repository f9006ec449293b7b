// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package e2e

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// held has for each statement of docs/security.md, by its first words, the tests that hold it. An advice, and a limit of what is
// protected, need none.
var held = map[string]string{
	"Authenticate workloads by TLS":          "advice",
	"Give the role only the permissions":     "TestPolicyIsWhatIsCalled TestPermissions",
	"The DaemonSet that installs":            "limit",
	"`provision: none` needs no permission":  "TestExamples",
	"Keep pods from the role.":               "TestForbidPackets TestMetadataHopLimit TestAdversaryWays",
	"It cannot send to its node":             "TestAdversaries TestGuard TestRepairGuard",
	"It can use only its own addresses":      "TestSourceCheck TestForgedSender TestForgedAnswer TestAdversaryWays",
	"With `serviceLoop` `none`":              "TestByVeth",
	"It cannot call the VPC as the node":     "TestClosed TestClosedBesideLoopless",
	"It can send false neighbour messages.":  "limit",
	"It cannot take addresses from the node": "TestStranger TestStrangerLeases TestStrangerChanges",
	"It can do more with `CAP_NET_ADMIN`.":   "TestPodTakesMore",
	"It can fill the memory":                 "limit",
	"It reaches the pods of its ENI":         "limit",
	"NetworkPolicy does not restrict it.":    "limit",
	"It cannot choose our names.":            "TestPranks TestFurtherPranks TestPodCannotReachAnother",
	"It cannot act as a router.":             "TestAdvertisement TestNoRA TestAdversaries",
	"It can ask for a pool":                  "TestChoosePool TestRequestsRefused",
	"A whole ENI in a pod":                   "TestExclusiveSettings TestExclusiveAbove TestMovedLinkTCX TestSettings TestSettingsCard",
	"It cannot change the lease log.":        "TestLeaseLogProcesses TestNamesOfPods",
	"By its ENI, its veth pair":              "TestAdversaryWays",
	"A router serves each host":              "TestRouterTakesClients TestAdversaryWays",
	"A router forwards only":                 "TestRouterForwards TestAdversaryWays TestEgress",
	"A client accepts from the tunnel":       "TestEgress TestClientKnowsRouters",
	"Packets in packets without UDP":         "TestDocs TestEgress",
	"The plugin has the kernel load `fou`":   "TestNoFOU",
	"A client's packets leave by the tunnel": "TestEgressEnds TestKillEgress",
	"Who may use an egress":                  "TestEgressRefused TestEgressOfPod",
	"A pod's text costs its node little.":    "TestSteps TestNamesOfPods TestQuote TestForeignText",
	"If EC2 answers with an address":         "TestStrangeAnswers",
	"They are reproducible":                  "TestReproducible",
}

// TestSecurityHeld checks that each statement of docs/security.md that begins a point names its tests above, and that there are such tests.
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

// testNames are the names of all tests.
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
