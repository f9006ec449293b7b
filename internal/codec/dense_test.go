// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package codec

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

// TestDense: what a program writes is dense, and nothing else is.
func TestDense(t *testing.T) {
	for _, text := range []string{
		`{}`, `[]`, `""`, `0`, `-1`, `10`, `true`, `false`, `null`, `[[],{}]`, `{"a":{"b":[1,-20,"c",null]},"":""}`,
		`"\"\\\/\b\f\n\r\t\u00e9\uD83D"`, `"é日 a text of more than eight bytes \\ with an escape"`, "\"\x7f\xff\"", strings.Repeat("[", 99) + strings.Repeat("]", 99),
	} {
		if !Dense(text) {
			t.Errorf("%s is not dense", text)
		}
	}
	for _, text := range []string{
		``, ` {}`, `{} `, `{"a": 1}`, `[1, 2]`, "[\n]", `{"a":1,}`, `[1,]`, `[,1]`, `{,}`, `{"a"}`, `{"a":}`, `{1:2}`, `{"a":1 }`, `[1`, `{"a":1`, `"a`, `"\`, `"\x"`,
		`"\u12"`, `"\u12g4"`, "\"a\nb\"", `01`, `-`, `--1`, `+1`, `tru`, `truefalse`, `1 2`, `[]]`, `{"a":1]`, strings.Repeat("[", 200) + strings.Repeat("]", 200),
	} {
		if Dense(text) {
			t.Errorf("%s is dense", text)
		}
	}
}

// FuzzDense: json.Compact does not change what is dense.
func FuzzDense(f *testing.F) {
	for _, text := range []string{`{"a":[1,"\u00e9",null,{"b":-0}],"c":true}`, `"\\"`, `[0,00]`, "\"\xff\"", `{"a":1.5}`} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var compact bytes.Buffer
		err := json.Compact(&compact, text)
		if Dense(string(text)) && (err != nil || !bytes.Equal(compact.Bytes(), text)) {
			t.Errorf("%q is dense, and json.Compact makes it %q: %v", text, compact.Bytes(), err)
		}
	})
}
