// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package conf

import (
	"encoding/json"
	"reflect"
)

// Withheld replaces a value that must not leave the node.
const Withheld = "[withheld]"

// privateKeys are keys of our plugins. An operator or a pod chooses their values, and no check needs these values.
var privateKeys = map[string]bool{"eniTags": true, "runtimeConfig": true, "args": true, "prevResult": true, "dns": true}

// Documented returns the part of a list that may leave the node. For our plugins, the result has the documented keys
// whose values have the right type. For other plugins, it has only the type. The result includes the plugins of
// drop-ins.
func (c List) Documented() (json.RawMessage, error) {
	plugins := []map[string]any{}
	for _, m := range c.Plugins {
		plugins = append(plugins, m.documentedKeys())
	}
	return json.Marshal(map[string]any{"cniVersion": c.CNIVersion, "cniVersions": c.CNIVersions, "name": c.Name,
		"plugins": plugins, "loadOnlyInlinedPlugins": true})
}

func (m Member) documentedKeys() map[string]any {
	all := map[string]any{}
	if decoded, ours := configs[m.Type]; ours {
		for _, t := range keyTypes(decoded()) {
			addDocumented(all, m.Raw, t)
		}
		if m.Capabilities != nil && m.mistake == nil {
			all["capabilities"] = m.Capabilities
		}
	}
	all["type"] = m.Type
	return all
}

// addDocumented copies documented values of an object into a map. If the struct type t has a field for a key, and the
// value of the key has the type of this field, the value is documented. For privateKeys, addDocumented writes
// [Withheld] in place of each text in the value.
func addDocumented(to map[string]any, object json.RawMessage, t reflect.Type) {
	var values map[string]json.RawMessage
	if json.Unmarshal(object, &values) != nil {
		return
	}
	for key, field := range jsonFields(t) {
		value, ok := values[key]
		switch {
		case !ok:
		case privateKeys[key]:
			to[key] = withholdValues(value)
		default:
			if v, ok := documentedValue(value, field); ok {
				to[key] = v
			}
		}
	}
	for key, v := range to {
		if v == nil {
			delete(to, key)
		}
	}
}

// withholdValues replaces each value of a JSON object by Withheld. If the argument is no object of texts, it returns
// nil.
func withholdValues(value json.RawMessage) any {
	var tags map[string]string
	if json.Unmarshal(value, &tags) != nil {
		return nil
	}
	for key := range tags {
		tags[key] = Withheld
	}
	return tags
}

// documentedValue returns the documented parts of a value, and reports whether the value has the type t.
func documentedValue(value json.RawMessage, t reflect.Type) (any, bool) {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch t.Kind() {
	case reflect.Struct:
		object := map[string]any{}
		addDocumented(object, value, t)
		return object, true
	case reflect.Map:
		var values map[string]json.RawMessage
		err := json.Unmarshal(value, &values)
		object := map[string]any{}
		for key, one := range values {
			if v, ok := documentedValue(one, t.Elem()); ok {
				object[key] = v
			}
		}
		return object, err == nil
	case reflect.Slice:
		var values []json.RawMessage
		err := json.Unmarshal(value, &values)
		list := []any{}
		for _, one := range values {
			if v, ok := documentedValue(one, t.Elem()); ok {
				list = append(list, v)
			}
		}
		return list, err == nil
	case reflect.String, reflect.Bool, reflect.Int, reflect.Uint32:
		v := reflect.New(t)
		err := json.Unmarshal(value, v.Interface())
		return v.Elem().Interface(), err == nil
	}
	return nil, false
}

// Recorded makes Conflists from lists of a support bundle. [List.Documented] has written these lists.
func Recorded(path string, lists []List) *Conflists {
	c := &Conflists{Path: path, IsDir: true}
	for _, l := range lists {
		c.Files = append(c.Files, File{Path: l.File, Lists: []List{l}})
	}
	c.fillAnswers()
	return c
}
