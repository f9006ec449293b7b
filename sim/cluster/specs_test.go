// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package cluster_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// networkSpecs is a pattern for Kubernetes' own tests of the network. The constant conformance is a pattern for the end
// of the names of conformance tests.
const networkSpecs, conformance = `\[sig-network\]`, `.*\[Conformance\]`

// elsewhere has the networkSpecs that do not run with the default shape of the first two nodes. shape is another shape
// with which they run, if there is one.
var elsewhere = []struct{ names, why, shape string }{
	{`Netpol|NetworkPolicy|Network Policy`, "a scenario of its own", ""},
	{`\[Feature:IPv6DualStack\]`, "they need two nodes with both families", bothFamilies},
	{`\[Feature:LoadBalancer\]`, "they need the load balancer of a cloud", ""},
	{`\[Feature:Networking-(DNS|IPv4|IPv6)\]|Forward PTR lookup`, "they need the internet", ""},
	{`\[Provider:`, "they need another cloud, or its ssh", ""},
	{`restarting (apiserver|kube-proxy)`, "they need ssh to the nodes", ""},
	{`Topology Hints|zone`, "they need three zones", ""},
	{`\[Feature:LocalhostNodePorts\]`, "they need Services at 127.0.0.1, which kube-proxy does not serve here", ""},
	{`\[Feature:KubeProxyNFAcct\]`, "they count packets to the same addresses", ""},
	{`\[Feature:Networking-Performance\]`, "they read another release of iperf than Debian's", ""},
	{`(pod|endpoint)-Service: sctp`, "Services over SCTP need serviceLoop masquerade", bothFamilies},
	{`externalTrafficPolicy=Local for type=NodePort`, "it needs keepCaller", bothFamilies},
	{`TCP CLOSE_WAIT timeout`, "the node does not track connections of pods that have an ipvlan link", ""},
	{`evicted pods`, "they need local storage that the kubelet can measure", ""},
	{`\[Feature:PerformanceDNS\]`, "they measure CoreDNS with 10,000 Services", ""},
}

// network runs Kubernetes' own tests of the network.
func (w *world) network(t *testing.T) {
	var choice, here []string
	for _, e := range elsewhere {
		if e.shape == *shape && *shape != "" {
			here = append(here, e.names)
		} else {
			choice = append(choice, "--ginkgo.skip="+e.names)
		}
	}
	focus := networkSpecs
	if here != nil { // all other specs run with the default shape
		focus += ".*(" + strings.Join(here, "|") + ")"
	}
	ran := w.e2e(t, append(choice, "--ginkgo.focus="+cmp.Or(*specs, focus))...)
	w.figures = append(w.figures, "Kubernetes' tests of the network: "+outcome(ran))
	if *specs == "" && here == nil { // otherwise, a flag has chosen the specs
		w.explain(t, ran["left"])
	}
}

func outcome(ran map[string][]string) string {
	conform := 0
	for _, name := range ran["passed"] {
		if strings.Contains(name, "[Conformance]") {
			conform++
		}
	}
	passed := len(ran["passed"])
	return fmt.Sprintf("%d of %d specs passed, %d of them [Conformance]; %d skip themselves", passed,
		passed+len(ran["failed"]), conform, len(ran["skipped"]))
}

// explain counts the specs that have not run, by the reasons in elsewhere. A spec without a reason is an error.
func (w *world) explain(t *testing.T, left []string) {
	t.Helper()
	count := map[string]int{}
	for _, name := range left {
		why := ""
		for _, e := range elsewhere {
			if why == "" && regexp.MustCompile(e.names).MatchString(name) {
				why = e.why
			}
		}
		if count[why]++; why == "" {
			t.Errorf("%s has not run", name)
		}
	}
	for _, e := range elsewhere {
		w.figures = append(w.figures, fmt.Sprintf("%4d not run: %s", count[e.why], e.why))
	}
}

// e2e runs the chosen specs of Kubernetes' own tests, and returns their names by state. A failed spec is an error.
func (w *world) e2e(t *testing.T, choice ...string) map[string][]string {
	t.Helper()
	dir := t.TempDir()
	report := filepath.Join(dir, "report.json")
	c := w.Master.Command(t.Context(), "e2e.test", append([]string{
		"--kubeconfig=" + w.Kubeconfig(), "--provider=skeleton",
		"--num-nodes=2", "--allowed-not-ready-nodes=0", "--node-os-distro=debian", "--clean-start=false",
		"--report-dir=" + dir, "--ginkgo.no-color", "--ginkgo.timeout=3h", "--ginkgo.json-report=" + report,
		"--ginkgo.poll-progress-after=10m", // a spec that hangs reports where it is
		"--ginkgo.flake-attempts=3",        // a probe waits one second, and a busy machine may need more time
	}, choice...)...)
	output, err := os.OpenFile(filepath.Join(w.logs, "e2e.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	check(t, err)
	defer output.Close()
	c.Stdout, c.Stderr = output, output
	failure := c.Run()
	return readReport(t, report, failure)
}

// readReport logs the report of ginkgo, and returns the names of specs by state. A failed spec is an error.
func readReport(t *testing.T, file string, failure error) map[string][]string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err, failure)
	}
	var suites []struct {
		SpecReports []struct {
			ContainerHierarchyTexts           []string
			LeafNodeText, LeafNodeType, State string
			RunTime                           float64
			NumAttempts                       int
			Failure                           struct{ Message string }
		}
	}
	check(t, json.Unmarshal(b, &suites))
	ran := map[string][]string{}
	for _, s := range suites[0].SpecReports {
		name := strings.Join(append(s.ContainerHierarchyTexts, s.LeafNodeText), " ")
		switch {
		case s.State == "skipped" && s.Failure.Message == "":
			s.State = "left" // not chosen
			if !strings.HasPrefix(name, "[sig-network]") {
				continue
			}
		case s.State == "skipped":
			t.Logf("skips itself: %s: %s", name, s.Failure.Message)
		case s.State != "passed":
			s.State = "failed"
			t.Errorf("%s: %s", name, s.Failure.Message)
		case s.LeafNodeType == "It":
			t.Logf("%4.0f s, try %d  %s", s.RunTime/1e9, s.NumAttempts, name)
		default:
			continue // setup and cleanup of ginkgo
		}
		ran[s.State] = append(ran[s.State], name)
	}
	if failure != nil && len(ran["failed"]) == 0 {
		t.Error(failure)
	}
	return ran
}
