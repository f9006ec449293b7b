// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	"encoding/json"
	"io"
	"mime"
	"mime/multipart"
	"net/mail"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/BurntSushi/toml"
)

// TestPlatforms checks each file for a platform: the file must parse, its conflists must be valid, and the guide must
// name it.
func TestPlatforms(t *testing.T) {
	files, err := filepath.Glob("../platforms/*")
	if err != nil || len(files) < 10 {
		t.Fatal(files, err)
	}
	guide := read(t, guides)
	for _, file := range append(files, "../cloud-init.yaml") {
		parse(t, file, strings.TrimPrefix(filepath.Ext(file), "."), read(t, file))
		if !strings.Contains(guide, "packaging/"+strings.TrimPrefix(file, "../")) {
			t.Errorf("%s does not name %s", guides, file)
		}
	}
	values, err := filepath.Glob("../platforms/*-values.yaml")
	if err != nil || len(values) == 0 {
		t.Error(values, err)
	}
	for _, file := range values {
		c, _ := objects(t, file)
		for name, text := range c.Data {
			validate(t, name, text)
		}
	}
}

const guides = "../../docs/install-on.md"

// TestGuides checks that each example of the guides parses, and that the conflists in the examples are valid. The
// section of each platform must say what was tried.
func TestGuides(t *testing.T) {
	text := read(t, guides)
	blocks := regexp.MustCompile("(?ms)^```(\\w*)\n(.*?)^```$").FindAllStringSubmatch(text, -1)
	var kinds []string
	charts := 0
	for _, b := range blocks {
		kinds = append(kinds, b[1])
		if b[1] != "" && b[1] != "sh" {
			parse(t, guides, b[1], b[2])
		}
		if strings.Contains("\n"+b[2], "\nplugin:") { // the block has values of the chart
			c, _ := objects(t, valuesOf(t, b[2]))
			for name, text := range c.Data {
				validate(t, name, text)
			}
			charts++
		}
	}
	if charts < 2 || !slices.Contains(kinds, "json") {
		t.Errorf("examples: %q, values: %d", kinds, charts)
	}
	_, rest, _ := strings.Cut(text, "\n## Platforms\n")
	sections := strings.Split(rest, "\n### ")[1:]
	for _, platform := range []string{"EKS", "Karpenter", "kOps", "Cluster API", "k3s", "Talos", "Bottlerocket",
		"Flatcar", "Ubuntu"} {
		i := slices.IndexFunc(sections, func(s string) bool { return strings.HasPrefix(s, platform) })
		if i < 0 || !strings.Contains(sections[i], "*Tried:*") {
			t.Errorf("%s has no section for %s that says what was tried", guides, platform)
		}
	}
}

// parse parses a text of the given kind, and validates the conflists in it.
func parse(t *testing.T, file, kind, text string) {
	t.Helper()
	switch kind {
	case "yaml":
		for _, doc := range documents(t, text) {
			var v any
			if err := json.Unmarshal([]byte(doc), &v); err != nil {
				t.Errorf("%s: %v", file, err)
			}
			if _, ok := v.(map[string]any); !ok {
				t.Errorf("%s: a document is no object: %s", file, doc)
			}
			values(t, v)
		}
	case "json":
		if !json.Valid([]byte(text)) {
			t.Errorf("%s: no JSON: %s", file, text)
		}
		values(t, text)
	case "toml":
		var v map[string]any
		if _, err := toml.Decode(text, &v); err != nil || len(v) == 0 {
			t.Errorf("%s: %v", file, err)
		}
	case "txt": // MIME user data with several parts
		parts(t, file, text)
	default:
		t.Errorf("%s: a text of kind %q", file, kind)
	}
}

// parts parses the YAML parts of MIME user data.
func parts(t *testing.T, file, text string) {
	t.Helper()
	m, err := mail.ReadMessage(strings.NewReader(text))
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	_, params, err := mime.ParseMediaType(m.Header.Get("Content-Type"))
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	for r, n := multipart.NewReader(m.Body, params["boundary"]), 0; ; n++ {
		p, err := r.NextPart()
		if err == io.EOF && n > 0 {
			return
		}
		if err != nil {
			t.Fatalf("%s: part %d: %v", file, n, err)
		}
		body, err := io.ReadAll(p)
		if err != nil {
			t.Fatal(err)
		}
		parse(t, file, "yaml", string(body))
	}
}

// values validates the conflists in the strings of a document.
func values(t *testing.T, v any) {
	t.Helper()
	switch v := v.(type) {
	case string:
		for _, c := range conflists(v) {
			validate(t, "10-example.conflist", c)
		}
	case []any:
		for _, e := range v {
			values(t, e)
		}
	case map[string]any:
		for _, e := range v {
			values(t, e)
		}
	}
}
