// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package codec_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/internal/codec"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/internal/codec/codectest"
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

// TestExactly checks that ReadExactly reads a text as encoding/json does, or returns an error.
func TestExactly(t *testing.T) {
	for _, tt := range []struct{ text, err string }{
		{`{}`, ""},
		{` { "home" : { "risk" : "cats" } , "name" : "Jim" } `, ""},
		{`{"colour":{"name":1,"NAME":[2,"]"]},"name":"Jim","a":null,"age":-7,"a":1.5e3}`, ""},
		{`{"name":"<\u0041\n\ud83d\ude00 \ud83d ü>","eats":["\"","\\"],"names":1}`, ""},
		{"{\"name\":\"\xff\",\"other\":1}", ""},
		{`{"eats":[],"legs":{}}`, ""},
		{`{"legs":{"a":{"name":"x"},"a":{"age":1},"A":{},"name":{"eats":[""]}},"name":"y"}`, ""},
		{`{"name":"x","legs":{"a":{"name":"y","legs":{"b":{"name":"z"}}}}}`, ""},
		{`{"note":[{"a" : 1}, 1.0],"chip":4294967295}`, ""},

		{`{"name":"a","name":"b"}`, `"name" appears twice`},
		{`{"name":"a","home":{},"name":"b"}`, `"name" appears twice`},
		{`{"legs":{"a":{"eats":["x"],"eats":[]}}}`, `"eats" appears twice`},
		{`{"Name":"a"}`, `"Name" is perhaps another spelling of "name"`},
		{`{"name":"a","NAME":"b"}`, `"NAME" is perhaps another spelling of "name"`},
		{`{"n\u0061me":"a"}`, `"name" has escapes`},
		{`{"n\u0061mes":"a"}`, `"names" has escapes`},
		{`{"home":{"ri` + "\u017f\u212a" + `":"a"}}`, `is another spelling of a key`}, // Unicode folds these to s and k
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

// A kennel has two descriptions: one of Pet, and one of House. Both descriptions have the member "name". Each of the
// other members is in only one description.
type kennel struct {
	Pet   pet
	House struct {
		Name string `json:"name"`
		Door struct {
			Wide bool `json:"wide"`
		} `json:"door"`
	}
}

func (k *kennel) describe(c *codec.Codec) {
	c.Each(k.Pet.describe, func(c *codec.Codec) {
		c.Object(func() {
			codec.Field(c, "name", &k.House.Name, codec.Text)
			codec.Within(c, "door", func() { codec.Field(c, "wide", &k.House.Door.Wide, codec.Flag) })
		})
	})
}

// UnmarshalJSON reads a kennel as encoding/json does.
func (k *kennel) UnmarshalJSON(text []byte) error {
	return errors.Join(json.Unmarshal(text, &k.Pet), json.Unmarshal(text, &k.House))
}

// A street has a kennel between its numbers.
type street struct {
	First  int    `json:"first"`
	Kennel kennel `json:"kennel"`
	Last   int    `json:"last"`
}

func (s *street) describe(c *codec.Codec) {
	c.Object(func() {
		codec.Field(c, "first", &s.First, codec.Number)
		codec.Field(c, "kennel", &s.Kennel, (*kennel).describe)
		codec.Field(c, "last", &s.Last, codec.Number)
	})
}

// TestEach: each description must read its own members, and both must read the shared member. If a description cannot
// read one of its members exactly, Each must return an error.
func TestEach(t *testing.T) {
	for _, tt := range []struct{ kennel, err string }{
		{`{}`, ""},
		{`{"name":"Jim","door":{"wide":true},"age":3,"colour":[{}]}`, ""},
		{`{"door":{},"home":{"risk":"cats"},"name":"Jim"}`, ""},
		{`{"legs":{"a":{"door":1}},"door":{"name":1}}`, ""},

		{`{"age":1.0,"door":{}}`, "parsing"},
		{`{"age":1,"door":{"wide":1}}`, "want true or false"},
		{`{"door":{},"age":1,"door":{}}`, `"door" appears twice`},
		{`{"name":"a","name":"b"}`, `"name" appears twice`},
		{`{"Door":{}}`, `"Door" is perhaps another spelling of "door"`},
		{`{"AGE":1}`, `"AGE" is perhaps another spelling of "age"`},
		{`{"door":null}`, "null"},
		{`[]`, "want {"},
	} {
		text := `{"first":1,"kennel":` + tt.kennel + `,"last":2}`
		err := codectest.Same(t, []byte(text), (*street).describe)
		if tt.err == "" && err != nil || tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)) {
			t.Errorf("%s: got %v, want %q", text, err, tt.err)
		}
	}
	if out, err := codec.Write([]byte{}, new(kennel).describe); err == nil {
		t.Errorf("written as %s: which of them has the say?", out)
	}
}

func FuzzEach(f *testing.F) {
	codectest.Fuzz(f, (*street).describe,
		`{"first":1,"kennel":{"name":"Jim","age":-7,"home":{"risk":"low"},"door":{"wide":true},"a":[null]},"last":2}`,
		`{"kennel":{"NAME":"Jim","door":null,"age":1e3,"do\u006fr":{}},"kennel":{}}`)
}

func FuzzExactly(f *testing.F) {
	codectest.Fuzz(f, (*pet).describe,
		`{"name":"Jim","age":-7,"chip":9,"tame":true,"eats":["mice"],"legs":{"left":{"name":"x"}},"note":[{"a":1}],"home":{"risk":"low"},"a":null}`,
		`{"NAME":"Jim","age":-0,"age":1e3,"eats":[null],"legs":{"a":null,"a":{}},"n\u0061me":"\ud83d"}`)
}
