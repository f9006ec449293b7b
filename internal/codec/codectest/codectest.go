// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package codectest checks that a type's description for package codec agrees with the type's struct tags for
// encoding/json.
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

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/internal/codec"
)

// Reads checks that a description reads the JSON that encoding/json writes for random values.
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

// Same reads a text with a description and with encoding/json. The test fails if the two values differ, or if only
// encoding/json returns an error. If the description returns an error, Same returns this error.
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

// Fuzz fuzzes Same, beginning with the seeds.
func Fuzz[T any](f *testing.F, describe func(*T, *codec.Codec), seeds ...string) {
	for _, s := range seeds {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		_ = Same(t, text, describe) // an error is no failure: programs then read the text with encoding/json
	})
}

// Plugins returns the configuration of each plugin in the conflists of a directory.
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

// Value parses any JSON text.
func Value(t *testing.T, text []byte) (v any) {
	t.Helper()
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return v
}

// withoutNull removes all members that are null from v, and from the objects inside v, because ReadExactly does not
// accept null.
func withoutNull(v any) any {
	switch v := v.(type) {
	case map[string]any:
		maps.DeleteFunc(v, func(_ string, v any) bool { return v == nil })
		for _, member := range v {
			withoutNull(member)
		}
	case []any:
		for _, element := range v {
			withoutNull(element)
		}
	}
	return v
}
