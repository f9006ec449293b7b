// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package cluster_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/machine"
)

// conformanceSpecs are all of Kubernetes' conformance tests of the network.
const conformanceSpecs = `\[sig-network\].*\[Conformance\]`

// conformance runs Kubernetes' own tests of the network.
func (w *world) conformance(t *testing.T) {
	ran := w.e2e(t, "--ginkgo.focus="+conformanceSpecs)
	w.figures = append(w.figures, fmt.Sprintf("conformance: %d of %d specs passed", len(ran["passed"]),
		len(ran["passed"])+len(ran["failed"])))
}

// e2e runs the specs of Kubernetes' own tests that the flags choose, and returns their names by their state. Each spec
// that failed is an error.
func (w *world) e2e(t *testing.T, choice ...string) map[string][]string {
	t.Helper()
	dir := t.TempDir()
	report := filepath.Join(dir, "report.json")
	_, failure := machine.Output("master", w.Master.Command(t.Context(), "e2e.test", append([]string{
		"--kubeconfig=" + w.Kubeconfig(), "--provider=skeleton",
		"--num-nodes=2", "--allowed-not-ready-nodes=0", "--node-os-distro=debian", "--clean-start=false",
		"--report-dir=" + dir, "--ginkgo.no-color", "--ginkgo.timeout=2h", "--ginkgo.json-report=" + report,
	}, choice...)...))
	return readReport(t, report, failure)
}

// readReport logs the report of ginkgo, and returns the names of specs by their state. Each spec that failed is an
// error.
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
			Failure                           struct{ Message string }
		}
	}
	check(t, json.Unmarshal(b, &suites))
	ran := map[string][]string{}
	for _, s := range suites[0].SpecReports {
		name := strings.Join(append(s.ContainerHierarchyTexts, s.LeafNodeText), " ")
		switch {
		case s.State == "skipped":
			continue
		case s.State != "passed":
			s.State = "failed"
			t.Errorf("%s: %s", name, s.Failure.Message)
		case s.LeafNodeType == "It":
			t.Logf("%4.0f s  %s", s.RunTime/1e9, name)
		default:
			continue // what ginkgo does before and after
		}
		ran[s.State] = append(ran[s.State], name)
	}
	if failure != nil && len(ran["failed"]) == 0 {
		t.Error(failure)
	}
	return ran
}
