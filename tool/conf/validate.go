// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package conf

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin/chain"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin/egress"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin/ipvlan"
	ptp "github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/unnumbered-ptp"
)

// A Mistake is what is wrong with a configuration, and what would be right.
type Mistake struct {
	File  string `json:"file"`
	Where string `json:"where"` // the plugin; "" for the list itself
	Text  string `json:"mistake"`
}

func (m Mistake) String() string {
	if m.Where != "" {
		return m.File + ": " + m.Where + ": " + m.Text
	}
	return m.File + ": " + m.Text
}

// position returns the position of the plugin in its chain, or -1 for the list itself.
func (m Mistake) position() int {
	i := -1
	_, _ = fmt.Sscanf(m.Where, "plugins[%d]", &i) // what it does not match leaves -1
	return i
}

// A review looks for the mistakes in one file.
type review struct {
	List
	file     string
	coming   []string // programs that will be installed before the file
	mistakes []Mistake
}

func (r *review) wrong(where, format string, args ...any) {
	r.mistakes = append(r.mistakes, Mistake{r.file, where, fmt.Sprintf(format, args...)})
}

// Mistakes lists the mistakes in a file. It returns an error if the file cannot be read.
func Mistakes(file, binDir string) ([]Mistake, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	return MistakesIn(file, b, binDir)
}

// MistakesIn is Mistakes for the text of a file that is not there yet. Programs that are coming will be in binDir before it.
func MistakesIn(file string, b []byte, binDir string, coming ...string) ([]Mistake, error) {
	r := &review{file: file, coming: coming}
	var object map[string]json.RawMessage
	if err := json.Unmarshal(b, &object); err != nil {
		r.wrong("", "%s", place(b, err))
		return r.mistakes, nil
	}
	r.decode("", object, &r.List)
	r.keys("", b, reflect.TypeFor[listKeys]())
	r.head()
	r.chain()
	for i := range r.Plugins {
		r.member(i)
	}
	r.programs(binDir)
	if err := r.neighbours(filepath.Dir(file)); err != nil {
		return nil, err
	}
	slices.SortStableFunc(r.mistakes, func(a, b Mistake) int { return cmp.Compare(a.position(), b.position()) })
	return r.mistakes, nil
}

// place describes a mistake of syntax with its line, or a file that has no object.
func place(b []byte, err error) string {
	if s, ok := errors.AsType[*json.SyntaxError](err); ok {
		return fmt.Sprintf("line %d: %v", 1+bytes.Count(b[:min(int(s.Offset), len(b))], []byte("\n")), err)
	}
	return "it is no JSON object"
}

// decode decodes an object. It leaves out the keys whose values have the wrong type, reports
// each as a mistake, and returns these keys. The types may embed others that have keys.
func (r *review) decode(where string, object map[string]json.RawMessage, into any, types ...reflect.Type) (mistaken []string) {
	object = maps.Clone(object)
	for {
		b, err := json.Marshal(object)
		if err == nil {
			err = json.Unmarshal(b, into)
		}
		e, ok := errors.AsType[*json.UnmarshalTypeError](err)
		if !ok {
			if err != nil {
				r.wrong(where, "%v", err)
			}
			return mistaken
		}
		field := keyOf(types, e.Field)
		r.wrong(where, "%s: a JSON %s: want %s", field, e.Value, kindOf(e.Type))
		key, _, _ := strings.Cut(field, ".")
		if _, there := object[key]; !there {
			return mistaken // as the decoder spells it, and the file does not
		}
		delete(object, key)
		mistaken = append(mistaken, key)
	}
}

// where names a member in a mistake.
func (r *review) where(i int) string {
	return strings.TrimSpace(fmt.Sprintf("plugins[%d] %s", i, r.Plugins[i].Type))
}

// configs are the configurations that our plugins decode theirs into. They, and no list
// of ours, say which keys there are and which values are right.
var configs = map[string]func() validator{
	TypeAll:    func() validator { return &chain.Config{} },
	TypeIPAM:   func() validator { return &lease.Config{} },
	TypeIPVlan: func() validator { return &ipvlan.Config{} },
	TypePTP:    func() validator { return &ptp.Config{} },
	TypeEgress: func() validator { return &egress.Config{} },
}

type validator interface{ Validate() error }

// parts returns the structs that have the keys of a configuration.
func parts(c validator) []any {
	all, ok := c.(*chain.Config)
	if !ok {
		return []any{c}
	}
	ipam, slave, pair, out := all.Parts()
	return []any{ipam, slave, pair, out}
}

// keyTypes returns the types of these structs.
func keyTypes(c validator) (types []reflect.Type) {
	for _, p := range parts(c) {
		types = append(types, reflect.TypeOf(p).Elem())
	}
	return types
}

// member reviews the configuration of one of our plugins.
func (r *review) member(i int) {
	decoded, ours := configs[r.Plugins[i].Type]
	if !ours {
		return
	}
	where, c := r.where(i), decoded()
	r.keys(where, r.Plugins[i].Raw, append(keyTypes(c), reflect.TypeFor[memberKeys]())...)
	var object map[string]json.RawMessage
	_ = json.Unmarshal(r.Plugins[i].Raw, &object) // it has a type, so it is one
	mistaken := r.decode(where, object, c, keyTypes(c)...)
	if err := c.Validate(); err != nil {
		for line := range strings.Lines(err.Error()) {
			// A value that could not be decoded is as good as none.
			if !slices.ContainsFunc(mistaken, func(key string) bool { return strings.HasPrefix(line, key) }) {
				r.wrong(where, "%s", strings.TrimSuffix(line, "\n"))
			}
		}
	}
	for _, part := range parts(c) {
		switch part := part.(type) {
		case *lease.Config:
			r.pools(where, i, part)
		case *egress.Config:
			r.egress(where, i, part)
		}
	}
}

// keyOf returns the JSON key of a field that a decoder names, also if the field is in an
// embedded struct.
func keyOf(types []reflect.Type, field string) string {
	first, rest, _ := strings.Cut(field, ".")
	for _, t := range types {
		if f, ok := t.FieldByName(first); ok && f.Anonymous {
			return rest
		}
	}
	return field
}

// kindOf returns the name of a type in JSON.
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
		return "a whole number from 0 on"
	}
	return "a whole number"
}
