// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package plugin

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// Decode decodes a configuration that an operator has written, and validates it. It returns all mistakes at once. Each
// mistake has the key, the wrong value and the allowed values.
func Decode(text []byte, config any) error {
	if err := json.Unmarshal(text, config); err != nil {
		return decodeMistakes(text, config, err)
	}
	if v, ok := config.(validator); ok {
		return v.Validate()
	}
	return nil
}

// decodeMistakes returns the mistakes in a configuration that could not be decoded. encoding/json reports only the
// first mistake, with the names of Go types. But it has decoded the keys whose values have the right types, so Validate
// can check these.
func decodeMistakes(text []byte, config any, first error) error {
	m := mistyped{}
	m.object(text, config)
	if len(m.keys) == 0 {
		return first
	}
	if v, ok := config.(validator); ok {
		m.addValidated(v.Validate())
	}
	return errors.Join(m.found...)
}

// Mistyped returns an error for each value that has the wrong type for its key. text is a JSON object. Each error names
// the place of the value.
func Mistyped(text []byte, config any) []error {
	var m mistyped
	m.object(text, config)
	return m.found
}

// sections returns the structs that have the keys of a configuration: the configuration itself, or its parts.
func sections(config any) []any {
	if c, ok := config.(interface{ Sections() []any }); ok {
		return c.Sections()
	}
	return []any{config}
}

// mistyped collects the values that have the wrong type for their keys.
type mistyped struct {
	keys  []string // the top-level keys that contain values of the wrong type
	found []error
}

func (m *mistyped) object(text []byte, config any) {
	if !json.Valid(text) {
		return
	}
	for _, section := range sections(config) {
		m.compareType("", text, reflect.TypeOf(section))
	}
}

// compareType compares the type of a value, and of the values inside it, with the Go type t. place has the keys that
// lead to the value, for messages. If two sections have the same key, there is only one message.
func (m *mistyped) compareType(place string, value json.RawMessage, t reflect.Type) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	into := reflect.New(t)
	err := json.Unmarshal(value, into.Interface())
	if err == nil {
		return
	}
	var inner map[string]json.RawMessage
	var elements []json.RawMessage
	_, special := into.Interface().(json.Unmarshaler)
	switch {
	case special:
	case t.Kind() == reflect.Struct && json.Unmarshal(value, &inner) == nil:
		m.compareFields(place, inner, t)
		return
	case t.Kind() == reflect.Map && json.Unmarshal(value, &inner) == nil:
		for key := range inner {
			m.compareType(place+key+": ", inner[key], t.Elem())
		}
		return
	case t.Kind() == reflect.Slice && json.Unmarshal(value, &elements) == nil:
		for i, element := range elements {
			m.compareType(place+strconv.Itoa(i+1)+": ", element, t.Elem())
		}
		return
	}
	m.add(place, value, t)
}

func (m *mistyped) compareFields(place string, object map[string]json.RawMessage, t reflect.Type) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous && name == "" {
			m.compareFields(place, object, f.Type)
			continue
		}
		for key, value := range object {
			if name != "" && name != "-" && strings.EqualFold(key, name) {
				m.compareType(place+key+": ", value, f.Type)
			}
		}
	}
}

func (m *mistyped) add(place string, value json.RawMessage, t reflect.Type) {
	key, _, _ := strings.Cut(place, ": ")
	text := fmt.Sprintf("%s%s: want %s", place, shownValue(value), kindOf(t))
	if !slices.ContainsFunc(m.found, func(err error) bool { return err.Error() == text }) {
		m.keys, m.found = append(m.keys, key), append(m.found, errors.New(text))
	}
	slices.SortFunc(m.found, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
}

// addValidated adds the mistakes that Validate has found. It leaves out mistakes about the keys in m.keys, because
// Validate has not seen the values of these keys.
func (m *mistyped) addValidated(err error) {
	if err == nil {
		return
	}
	for line := range strings.Lines(err.Error()) {
		if !slices.ContainsFunc(m.keys, func(key string) bool { return strings.HasPrefix(line, key) }) {
			m.found = append(m.found, errors.New(strings.TrimSuffix(line, "\n")))
		}
	}
}

// shownValue returns the JSON text of a value for a message, on one line: without white space, cut if it is long, and
// with a question mark for each character that is not printable.
func shownValue(value json.RawMessage) string {
	const most = 40
	var dense bytes.Buffer
	_ = json.Compact(&dense, value) // no error: the value has been parsed
	text := strings.Map(func(r rune) rune {
		if !strconv.IsPrint(r) {
			return '?'
		}
		return r
	}, dense.String())
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}

// kindOf returns the words that a message uses for the JSON values of a Go type.
func kindOf(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "a string"
	case reflect.Slice:
		return "an array"
	case reflect.Map, reflect.Struct:
		return "an object"
	case reflect.Uint32:
		return "a whole number from 0 to 4294967295"
	case reflect.Uint64:
		return "a whole number from 0 on"
	}
	return "a whole number"
}
