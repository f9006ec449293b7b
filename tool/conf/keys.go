// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package conf

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
)

// Installed is a key of a list. If the command install writes plugins of other projects into a list, the value of this
// key names these plugins. If the list has a further plugin of another project, a program other than install has added
// that plugin.
const Installed = "cni-ipvlan-vpc-k8s/installed"

// listKeys are the keys of a list (CNI specification 1.1.0, section 1, "Configuration format"). Other methods review
// the values of these keys.
type listKeys struct {
	CNIVersion   any `json:"cniVersion"`
	CNIVersions  any `json:"cniVersions"`
	Name         any `json:"name"`
	DisableCheck any `json:"disableCheck"`
	DisableGC    any `json:"disableGC"`
	OnlyInlined  any `json:"loadOnlyInlinedPlugins"`
	Plugins      any `json:"plugins"`
	Installed    any `json:"cni-ipvlan-vpc-k8s/installed"` // see [Installed]
}

// memberKeys are the keys that every plugin's configuration may have. The runtime sets runtimeConfig and prevResult,
// but example conflists have them, too.
type memberKeys struct {
	CNIVersion    any `json:"cniVersion"`
	Name          any `json:"name"`
	Type          any `json:"type"`
	Args          any `json:"args"`
	Capabilities  any `json:"capabilities"`
	RuntimeConfig any `json:"runtimeConfig"`
	PrevResult    any `json:"prevResult"`
}

// reviewKeys reports unknown keys of an object, and of the objects in it. A known key has a field in one of the struct
// types. The last type with this field defines the type of the value.
func (r *review) reviewKeys(where string, object json.RawMessage, types ...reflect.Type) {
	var values map[string]json.RawMessage
	if json.Unmarshal(object, &values) != nil {
		return // the text is no object, and another method reports that
	}
	known := map[string]reflect.Type{}
	for _, t := range types {
		maps.Copy(known, jsonFields(t))
	}
	for _, key := range slices.Sorted(maps.Keys(values)) {
		t, ok := known[key]
		if !ok {
			r.report(where, "unknown key %q%s", key, suggestion(key, known))
			continue
		}
		r.reviewNested(join(where, key), values[key], t)
	}
}

// reviewNested reviews the keys of the objects in a value of type t.
func (r *review) reviewNested(where string, value json.RawMessage, t reflect.Type) {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch {
	case t.Kind() == reflect.Struct:
		r.reviewKeys(where, value, t)
	case t.Kind() == reflect.Map && t.Elem().Kind() == reflect.Struct:
		var values map[string]json.RawMessage
		if json.Unmarshal(value, &values) != nil {
			return
		}
		for _, key := range slices.Sorted(maps.Keys(values)) {
			r.reviewKeys(join(where, key), values[key], t.Elem())
		}
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Struct:
		var values []json.RawMessage
		if json.Unmarshal(value, &values) != nil {
			return
		}
		for i, one := range values {
			r.reviewKeys(join(where, strconv.Itoa(i+1)), one, t.Elem())
		}
	}
}

func join(where, key string) string { return strings.TrimPrefix(where+": "+key, ": ") }

// jsonFields returns the JSON keys of a struct type, with the types of their values.
func jsonFields(t reflect.Type) map[string]reflect.Type {
	fields := map[string]reflect.Type{}
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name != "" && f.IsExported() {
			fields[name] = f.Type
		}
	}
	return fields
}

// suggestion returns the end of the text about an unknown key. The end is a question with the most similar known key.
// If no known key is similar, the end is "".
func suggestion(key string, known map[string]reflect.Type) string {
	best := cli.Nearest(key, slices.Sorted(maps.Keys(known)))
	if best == "" {
		return ""
	}
	return ": did you mean " + best + "?"
}
