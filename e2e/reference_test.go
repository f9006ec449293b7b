// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/internal/codec"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin/chain"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin/egress"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin/ipvlan"
	ptp "github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/unnumbered-ptp"
)

const reference = "docs/configuration.md"

// typeAll is the type of the plugin that combines the three plugins.
const typeAll = "cni-ipvlan-vpc-k8s"

type configuration interface {
	Validate() error
	Describe(*codec.Codec)
}

var configurations = map[string]func() configuration{
	typeAll:                             func() configuration { return &chain.Config{} },
	"cni-ipvlan-vpc-k8s-ipam":           func() configuration { return &lease.Config{} },
	"cni-ipvlan-vpc-k8s-ipvlan":         func() configuration { return &ipvlan.Config{} },
	"cni-ipvlan-vpc-k8s-unnumbered-ptp": func() configuration { return &ptp.Config{} },
	"cni-ipvlan-vpc-k8s-egress":         func() configuration { return &egress.Config{} },
}

// TestRepoReference compares the configuration reference with the code. The reference must have an entry for each key
// in the code, with the key's type, and no other entry. A configuration with the default of an entry must have the same
// effect as one without the key. A configuration with the entry's example must have another effect.
func TestRepoReference(t *testing.T) {
	entries := referenceEntries(t)
	for plugin, empty := range configurations {
		keys := jsonKeys(empty())
		rest := maps.Clone(keys)
		for _, e := range entries[plugin] {
			typ, ok := keys[e.key()]
			if !ok {
				t.Errorf("%s: %s has an entry, but %s has no such key", reference, e.path, plugin)
				continue
			}
			delete(rest, e.key())
			if want := jsonKind(typ); e.kind != want {
				t.Errorf("%s: %s: the type is %s, want %s", reference, e.path, e.kind, want)
			}
			if e.since != "original" && e.since != "new" {
				t.Errorf("%s: %s: since %q, want original or new", reference, e.path, e.since)
			}
		}
		for key := range rest {
			t.Errorf("%s: %s of %s has no entry", reference, key, plugin)
		}
		d := defaults{t, empty, entries[plugin]}
		for _, e := range entries[plugin] {
			d.check(e)
		}
	}
}

// An entry is a line in a table of the reference.
type entry struct{ path, kind, otherwise, example, since string }

// inPool is the prefix of the path of keys that exist only in the values of "pools".
const inPool = "pools.<name>."

func (e entry) key() string { return strings.TrimPrefix(e.path, inPool) }

// with returns a copy of config to which it has added the key with a JSON value. If value is empty, with adds only the
// parents of the key.
func (e entry) with(config map[string]any, value string) map[string]any {
	config = maps.Clone(config)
	at := config
	if strings.HasPrefix(e.path, inPool) {
		at = map[string]any{}
		config["pools"] = map[string]any{"a": at}
	}
	if value != "" {
		at[e.key()] = json.RawMessage(value)
	}
	return config
}

var (
	entryLine = regexp.MustCompile("^\\| `([^`]+)` \\| ([a-z ]+) \\| (?:`([^`]*)`|required) \\| (?:`([^`]*)`)? *\\| " +
		"([a-z]+) \\| .* \\|$")
	heading = regexp.MustCompile(`^## (.*)$`)
)

// referenceEntries returns the entries of each plugin. The heading above a plugin's entries is the type of the plugin.
// The combined plugin has the entries of the three plugins.
func referenceEntries(t *testing.T) map[string][]entry {
	t.Helper()
	text, err := os.ReadFile(reference)
	if err != nil {
		t.Fatal(err)
	}
	entries, section := map[string][]entry{}, ""
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSuffix(line, "\n")
		if m := heading.FindStringSubmatch(line); m != nil {
			section = m[1]
		}
		if configurations[section] == nil || !strings.HasPrefix(line, "| `") {
			continue
		}
		m := entryLine.FindStringSubmatch(line)
		if m == nil {
			t.Errorf("%s: this is no entry: key, type, default, example, since, text:\n%s", reference, line)
			continue
		}
		e := entry{m[1], m[2], m[3], m[4], m[5]}
		entries[section], entries[typeAll] = append(entries[section], e), append(entries[typeAll], e)
	}
	return entries
}

// structs returns the structs into which a configuration is decoded.
func structs(c configuration) []reflect.Value {
	all, ok := c.(*chain.Config)
	if !ok {
		return []reflect.Value{reflect.ValueOf(c).Elem()}
	}
	var values []reflect.Value
	for _, section := range all.Sections() {
		values = append(values, reflect.ValueOf(section).Elem())
	}
	return values
}

// jsonFields returns the fields of a struct by key.
func jsonFields(t reflect.Type) map[string]reflect.StructField {
	fields := map[string]reflect.StructField{}
	for _, f := range reflect.VisibleFields(t) {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" {
			fields[name] = f
		}
	}
	return fields
}

func jsonKeys(c configuration) map[string]reflect.Type {
	keys := map[string]reflect.Type{}
	for _, s := range structs(c) {
		for key, f := range jsonFields(s.Type()) {
			keys[key] = f.Type
		}
	}
	return keys
}

// jsonKind returns JSON's name of a type.
func jsonKind(t reflect.Type) string {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch t.Kind() {
	case reflect.Bool:
		return "boolean"
	case reflect.String:
		return "string"
	case reflect.Slice:
		return "array of " + jsonKind(t.Elem()) + "s"
	case reflect.Map, reflect.Struct:
		return "object"
	}
	return "number"
}

// A defaults checks the entries of a plugin, by comparison of configurations.
type defaults struct {
	t       *testing.T
	empty   func() configuration
	entries []entry
}

// minimal returns a configuration with the required keys.
func (d defaults) minimal() map[string]any {
	config := map[string]any{}
	for _, e := range d.entries {
		if e.otherwise == "" {
			config[e.path] = json.RawMessage(e.example)
		}
	}
	return config
}

// check compares a configuration without the entry's key with two others: with the key's default, and with its example.
func (d defaults) check(e entry) {
	if e.otherwise == "" {
		d.checkRequired(e)
		return
	}
	var configs []configuration
	for _, value := range []string{"", e.otherwise, e.example} {
		c := d.empty()
		if err := d.decode(e.with(d.minimal(), value), c); err != nil {
			d.t.Errorf("%s: %s: %s: %v", reference, e.path, value, err)
			return
		}
		configs = append(configs, c)
	}
	if !cmp.Equal(configs[0], configs[1], exactly...) {
		// Without the key, the key's field is empty. So empty this field in all configurations, and compare what
		// Validate has computed.
		for _, c := range configs {
			clearKey(c, e.path)
		}
	}
	if diff := cmp.Diff(configs[0], configs[1], exactly...); diff != "" {
		d.t.Errorf("%s: %s: the default is not %s:\n%s", reference, e.path, e.otherwise, diff)
	}
	if e.example != "" && cmp.Equal(configs[0], configs[2], exactly...) {
		d.t.Errorf("%s: %s: %s comes to the same as nothing", reference, e.path, e.example)
	}
}

func (d defaults) checkRequired(e entry) {
	config := d.minimal()
	delete(config, e.path)
	if err := d.decode(config, d.empty()); err == nil || !strings.Contains(err.Error(), e.path+" must be specified") {
		d.t.Errorf("%s: %s is required, but without it Validate says: %v", reference, e.path, err)
	}
}

// exactly compares all fields of a configuration, including those that Validate has computed.
var exactly = cmp.Options{
	cmp.Exporter(func(reflect.Type) bool { return true }),
	cmpopts.EquateEmpty(),
	cmpopts.EquateComparable(netip.Prefix{}, netip.Addr{}),
}

// decode decodes a configuration strictly, and validates it.
func (d defaults) decode(config map[string]any, into configuration) error {
	b, err := json.Marshal(config)
	if err != nil {
		return err
	}
	decoder := json.NewDecoder(bytes.NewReader(b))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		return fmt.Errorf("decode %s: %w", b, err)
	}
	return into.Validate()
}

// clearKey empties the fields of the first key in a path.
func clearKey(c configuration, path string) {
	key, _, _ := strings.Cut(path, ".")
	for _, s := range structs(c) {
		if f, ok := jsonFields(s.Type())[key]; ok {
			s.FieldByIndex(f.Index).SetZero()
		}
	}
}
