// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package install

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/conf"
)

// listOf returns a conflist with plugins of these types.
func listOf(types ...string) []byte {
	text := `{"cniVersion": "1.0.0", "name": "pods", "plugins": [`
	for i, typ := range types {
		if i > 0 {
			text += ", "
		}
		text += `{"type": "` + typ + `", "of": "` + typ + `"}`
	}
	return []byte(text + `]}` + "\n")
}

// withAppended does what istio-cni does: it reads the whole list, appends a plugin, and writes the list in the format
// of istio-cni.
func withAppended(t *testing.T, file, typ string) {
	t.Helper()
	text, err := os.ReadFile(file)
	var list map[string]any
	if err == nil {
		err = json.Unmarshal(text, &list)
	}
	if err != nil {
		t.Fatal(err)
	}
	list["plugins"] = append(list["plugins"].([]any), map[string]any{"type": typ, "kubernetes": map[string]any{"k": 1}})
	if text, err = json.MarshalIndent(list, "", "\t"); err == nil {
		err = os.WriteFile(file, text, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestKeep checks that an installation keeps the plugins that other programs have appended. It must not keep plugins
// that an earlier conflist of ours had.
func TestKeep(t *testing.T) {
	const ours, istio, linkerd, portmap, tuning = conf.TypeAll, "istio-cni", "linkerd-cni", "portmap", "tuning"
	for name, tt := range map[string]struct {
		steps []any // []string: install a list of these types; string: another program appends a plugin of this type
		want  []string
	}{
		"nothing else": {[]any{[]string{ours}, []string{ours}}, []string{ours}},
		"one":          {[]any{[]string{ours}, istio, []string{ours}}, []string{ours, istio}},
		"two, and again": {[]any{[]string{ours}, istio, linkerd, []string{ours}, []string{ours}},
			[]string{ours, istio, linkerd}},
		"after a change of ours": {[]any{[]string{conf.TypeIPAM, conf.TypeIPVlan, conf.TypePTP}, istio,
			[]string{ours, portmap}}, []string{ours, portmap, istio}},
		"what we have shipped goes": {[]any{[]string{ours, portmap, tuning}, istio, []string{ours, tuning},
			[]string{ours}}, []string{ours, istio}},
		"it came before ours had it": {[]any{[]string{ours}, tuning, []string{ours, tuning}, []string{ours}},
			[]string{ours}},
		"it came after ours had it": {[]any{[]string{ours, tuning}, []string{ours}, tuning, []string{ours}},
			[]string{ours, tuning}},
	} {
		t.Run(name, func(t *testing.T) {
			i := &Installation{Place: Place{ConfDir: t.TempDir()}}
			target := filepath.Join(i.ConfDir, "10-pods.conflist")
			for n, step := range tt.steps {
				if typ, ok := step.(string); ok {
					withAppended(t, target, typ)
					continue
				}
				i.Conflist = &Conflist{"10-pods.conflist", listOf(step.([]string)...)}
				if err := i.putConflist(); err != nil {
					t.Fatal(err)
				}
				before := len(i.changes)
				if err := i.putConflist(); err != nil || len(i.changes) != before {
					t.Fatalf("step %d: a second run changes %v, %v", n, i.changes[before:], err)
				}
			}
			file := conf.Load(target).Files[0]
			if file.Failed != nil {
				t.Fatal(file.Failed)
			}
			lists := file.Lists
			if got := pluginTypes(lists[0].Plugins); !slices.Equal(got, tt.want) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
			for _, m := range lists[0].Plugins {
				if (m.Type == istio || m.Type == linkerd) && !strings.Contains(string(m.Raw), `"k":`) {
					t.Errorf("%s has lost its keys: %s", m.Type, m.Raw)
				}
			}
		})
	}
}

// TestKeepOfOlderRelease: an earlier release has not recorded which plugins it installed, so install keeps all plugins
// of other projects.
func TestKeepOfOlderRelease(t *testing.T) {
	c := &Conflist{"10-pods.conflist", listOf(conf.TypeAll)}
	for has, want := range map[string][]string{
		string(listOf(conf.TypeAll, "portmap", "istio-cni")): {"portmap", "istio-cni"},
		string(listOf("bridge", "istio-cni")):                nil, // install replaces a list without a plugin of ours
		"":                                                   nil, "{": nil, `{"plugins": 1}`: nil,
	} {
		if _, kept, err := c.textWithAdded([]byte(has)); err != nil || !slices.Equal(kept, want) {
			t.Errorf("%s: kept %v, %v, want %v", has, kept, err, want)
		}
	}
	if text, _, err := c.textWithAdded(nil); err != nil || string(text) != string(c.Text) {
		t.Errorf("a list with our plugins alone changes: %s, %v", text, err)
	}
}

// TestKeepSame checks that install does not replace a file that means the same as the new conflist.
func TestKeepSame(t *testing.T) {
	i := &Installation{Place: Place{ConfDir: t.TempDir()}, Conflist: &Conflist{"10-pods.conflist",
		listOf(conf.TypeAll, "portmap")}}
	if err := i.putConflist(); err != nil {
		t.Fatal(err)
	}
	withAppended(t, filepath.Join(i.ConfDir, "10-pods.conflist"), "istio-cni")
	i.changes = nil
	if err := i.putConflist(); err != nil || len(i.changes) > 0 {
		t.Errorf("%v, %v", i.changes, err)
	}
}
