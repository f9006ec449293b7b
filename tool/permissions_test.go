// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestPermissionsOfModel: package ipam has recorded the EC2 calls in its random histories, for several configurations.
// For each configuration, iam-policy must print a policy that allows exactly the recorded calls. CreateTags is no call,
// so the test leaves this permission out.
func TestPermissionsOfModel(t *testing.T) {
	b, err := os.ReadFile("../ipam/testdata/permissions.json")
	if err != nil {
		t.Fatal(err)
	}
	var all []struct {
		Name, Actions string
		Config        map[string]any
	}
	if err := json.Unmarshal(b, &all); err != nil || len(all) == 0 {
		t.Fatal(len(all), err)
	}
	for _, c := range all {
		t.Run(c.Name, func(t *testing.T) {
			c.Config["type"] = "cni-ipvlan-vpc-k8s-ipam"
			list, err := json.Marshal(map[string]any{"cniVersion": "1.0.0", "name": "net", "plugins": []any{c.Config}})
			if err != nil {
				t.Fatal(err)
			}
			conflist := filepath.Join(t.TempDir(), "10-pods.conflist")
			if err := os.WriteFile(conflist, list, 0o600); err != nil {
				t.Fatal(err)
			}
			printed := slices.DeleteFunc(allowed(t, "iam-policy", "--config", conflist),
				func(a string) bool { return a == "CreateTags" })
			if diff := cmp.Diff(strings.Fields(c.Actions), printed,
				cmp.Transformer("none", func(s []string) string { return strings.Join(s, " ") })); diff != "" {
				t.Errorf("-of the model +printed\n%s", diff)
			}
		})
	}
}
