// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package codec_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/codec"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/codec/codectest"
)

// A pet has members of all kinds.
type pet struct {
	Name string          `json:"name"`
	Age  int             `json:"age"`
	Chip uint32          `json:"chip"`
	Tame *bool           `json:"tame"`
	Eats []string        `json:"eats"`
	Legs map[string]*pet `json:"legs"`
	Note json.RawMessage `json:"note"`
	Home struct {
		Risk string `json:"risk"`
	} `json:"home"`
}

func (p *pet) describe(c *codec.Codec) {
	c.Object(func() {
		codec.Field(c, "name", &p.Name, codec.Text)
		codec.Field(c, "age", &p.Age, codec.Number)
		codec.Field(c, "chip", &p.Chip, codec.Natural)
		codec.Field(c, "tame", &p.Tame, codec.Pointer(codec.Flag))
		codec.List(c, "eats", &p.Eats, codec.Text)
		codec.Table(c, "legs", &p.Legs, codec.ByName, codec.Pointer((*pet).describe))
		codec.Field(c, "note", &p.Note, codec.Raw)
		codec.Within(c, "home", func() {
			codec.Field(c, "risk", &p.Home.Risk, codec.Text)
		})
	})
}

func TestReads(t *testing.T) { codectest.Reads(t, (*pet).describe) }

// What is read exactly is read as encoding/json does; what it would read otherwise is not.
func TestExactly(t *testing.T) {
	for _, tt := range []struct{ text, err string }{
		{`{}`, ""},
		{` { "home" : { "risk" : "cats" } , "name" : "Jim" } `, ""},
		{`{"colour":{"name":1,"NAME":[2,"]"]},"name":"Jim","a":null,"age":-7,"a":1.5e3}`, ""},
		{`{"name":"<\u0041\n\ud83d\ude00 \ud83d ü>","eats":["\"","\\"],"n\u0061mes":1}`, ""},
		{"{\"name\":\"\xff\",\"\xff\":1}", ""},
		{`{"eats":[],"legs":{}}`, ""},
		{`{"legs":{"a":{"name":"x"},"a":{"age":1},"A":{},"name":{"eats":[""]}},"name":"y"}`, ""},
		{`{"name":"x","legs":{"a":{"name":"y","legs":{"b":{"name":"z"}}}}}`, ""},
		{`{"note":[{"a" : 1}, 1.0],"chip":4294967295}`, ""},

		{`{"name":"a","name":"b"}`, `"name" twice`},
		{`{"name":"a","home":{},"name":"b"}`, `"name" twice`},
		{`{"legs":{"a":{"eats":["x"],"eats":[]}}}`, `"eats" twice`},
		{`{"Name":"a"}`, `"Name" may be "name"`},
		{`{"name":"a","NAME":"b"}`, `"NAME" may be "name"`},
		{`{"n\u0061me":"a"}`, `"name" may be "name"`},
		{`{"home":{"ri` + "\u017f\u212a" + `":"a"}}`, `may be "risk"`}, // which are an s and a k
		{`{"name":null}`, "null"},
		{`{"note":null}`, "null"},
		{`{"tame":null}`, "null"},
		{`{"eats":[null,1]}`, "into Go value of type string"},
		{`{"legs":{"a":null}}`, "null"},
		{`{"age":1.0}`, "parsing"},
		{`{"age":1e3}`, "parsing"},
		{`{"age":-0}`, "is not how JSON writes"},
		{`{"age":99999999999999999999}`, "out of range"},
		{`{"chip":4294967296}`, "is too large"},
		{`{"chip":-1}`, "parsing"},
		{`{"name":7}`, "into Go value of type string"},
		{`{"tame":"true"}`, "want true or false"},
		{`{"eats":{}}`, "want ["},
		{`{"home":[]}`, "want {"},
		{`[]`, "want {"},
		{`null`, "want {"},
		{`{} {}`, "after top-level value"},
	} {
		err := codectest.Same(t, []byte(tt.text), (*pet).describe)
		if tt.err == "" && err != nil || tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)) {
			t.Errorf("%s: got %v, want %q", tt.text, err, tt.err)
		}
	}
}

func FuzzExactly(f *testing.F) {
	codectest.Fuzz(f, (*pet).describe,
		`{"name":"Jim","age":-7,"chip":9,"tame":true,"eats":["mice"],"legs":{"left":{"name":"x"}},"note":[{"a":1}],"home":{"risk":"low"},"a":null}`,
		`{"NAME":"Jim","age":-0,"age":1e3,"eats":[null],"legs":{"a":null,"a":{}},"n\u0061me":"\ud83d"}`)
}
