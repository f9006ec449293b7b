// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestExamples wants no mistake in the examples, each alone in its folder, as on a node.
func TestExamples(t *testing.T) {
	examples, err := filepath.Glob("../conflist-examples/*.conflist")
	if err != nil || len(examples) == 0 {
		t.Fatalf("%d examples, %v", len(examples), err)
	}
	for _, example := range examples {
		b, err := os.ReadFile(example)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range mistakesOf(t, b) {
			t.Errorf("%s: %s", example, m)
		}
	}
}

// TestValidateAnything wants a mistake to be found in what is no configuration, however
// little it looks like one, and to be said in the words of the file.
func TestValidateAnything(t *testing.T) {
	for _, text := range []string{
		``, `null`, `5`, `[]`, `{}`, `{"plugins": {}}`, `{"plugins": [1, null, {"type": 2}, {}]}`,
		`{"name": 1, "cniVersion": [], "cniVersions": "1.0.0", "plugins": []}`,
		`{"name": "a", "cniVersion": "1.0.0", "plugins": [{"type": "cni-ipvlan-vpc-k8s-ipam", "pools": {"a": {"warm": []}}}]}`,
		`{"name": "a", "cniVersion": "1.0.0", "plugins": [{"type": "cni-ipvlan-vpc-k8s-ipam", "pools": [], "warm": 1, "secGroupIds": {}}]}`,
		`{"name": "a", "cniVersion": "1.0.0", "plugins": [{"type": "cni-ipvlan-vpc-k8s-unnumbered-ptp", "nodePortMark": -1}]}`,
		`{"name": "a", "cniVersion": "1.0.0", "plugins": [{"type": "cni-ipvlan-vpc-k8s-ipvlan", "dns": {"nameserver": []}}]}`,
	} {
		found := mistakesOf(t, []byte(text))
		if len(found) == 0 {
			t.Errorf("%s: no mistake", text)
		}
		for _, m := range found {
			if strings.Contains(m.Text, "Go ") || strings.Contains(m.Text, "tool.") {
				t.Errorf("%s: %s: in the words of our code", text, m)
			}
		}
	}
}

// mistakesOf lists the mistakes in a file that is alone in its folder.
func mistakesOf(t *testing.T, b []byte) []mistake {
	t.Helper()
	file := filepath.Join(t.TempDir(), "10-example.conflist")
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
	found, err := mistakesIn(file, "")
	if err != nil {
		t.Fatal(err)
	}
	return found
}
