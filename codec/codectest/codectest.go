// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package codectest compares what a type describes for package codec with what its
// struct tags say to encoding/json.
package codectest

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/codec"
)

// Reads wants a description to read what encoding/json writes of random values. A field
// that it lacks is missed here.
func Reads[T any](t *testing.T, describe func(*T, *codec.Codec)) {
	t.Helper()
	for range 500 {
		var v T
		Random(reflect.ValueOf(&v).Elem())
		text, err := json.Marshal(&v)
		if err != nil {
			t.Fatal(err)
		}
		sorted, err := json.Marshal(withoutNull(Value(t, text)))
		if err != nil {
			t.Fatal(err)
		}
		if err := Same(t, sorted, describe); err != nil {
			t.Fatalf("%v: %s", err, sorted)
		}
	}
}

// Same wants a description to read a text to what encoding/json reads, or not at all. The
// error says why not.
func Same[T any](t *testing.T, text []byte, describe func(*T, *codec.Codec)) error {
	t.Helper()
	var dense bytes.Buffer
	if err := json.Compact(&dense, text); err != nil {
		return err
	}
	var v, want T
	if err := codec.ReadExactly(dense.Bytes(), func(c *codec.Codec) { describe(&v, c) }); err != nil {
		return err
	}
	if err := json.Unmarshal(dense.Bytes(), &want); err != nil {
		t.Fatalf("read, but to encoding/json it is wrong: %v\n%s", err, text)
	}
	if !reflect.DeepEqual(v, want) {
		t.Fatalf("read     %#v\nand not %#v\n%s", v, want, text)
	}
	return nil
}

// Fuzz wants the Same of all texts, beginning with some.
func Fuzz[T any](f *testing.F, describe func(*T, *codec.Codec), seeds ...string) {
	for _, s := range seeds {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		_ = Same(t, text, describe) // what is not read is left to encoding/json
	})
}

// Plugins are the configurations of plugins in the files of a folder.
func Plugins(f *testing.F, dir string) (texts []string) {
	f.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.conflist"))
	if err != nil || len(files) == 0 {
		f.Fatalf("%s: conflists %v, %v", dir, files, err)
	}
	for _, file := range files {
		var list struct{ Plugins []json.RawMessage }
		b, err := os.ReadFile(file)
		if err := errors.Join(err, json.Unmarshal(b, &list)); err != nil {
			f.Fatal(err)
		}
		for _, p := range list.Plugins {
			texts = append(texts, string(p))
		}
	}
	return texts
}

// Value is what a text says, whatever it is.
func Value(t *testing.T, text []byte) (v any) {
	t.Helper()
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return v
}

// withoutNull is a value without the members that are null, which nobody writes.
func withoutNull(v any) any {
	if m, ok := v.(map[string]any); ok {
		maps.DeleteFunc(m, func(_ string, v any) bool { return v == nil })
		for k, v := range m {
			m[k] = withoutNull(v)
		}
	}
	return v
}
