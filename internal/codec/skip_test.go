// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package codec

import (
	"encoding/json"
	"testing"
)

// FuzzSkip checks that the codec skips exactly one whole JSON value.
func FuzzSkip(f *testing.F) {
	for _, s := range []string{
		`{}`, `{"a":"b"}`, `{"a":"}"}`, `{"a":"{"}`, `{"a":"\"}"}`, `{"a":"\\"}`, `{"a":{}}`, `{"a":[{},"]"]}`,
		`{"a}":1}`, `{"a":"},","b":"x"}`,
		`[]`, `["]",[1]]`, `"a"`, `"\u0041\\"`, `"ü\""`, `1`, `-1.5e3`, `true`, `null`,
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, value string) {
		if !json.Valid([]byte(value)) || value[0] <= ' ' || value[len(value)-1] <= ' ' {
			return
		}
		for _, behind := range []string{"", `,"b":{"a":"}"}}`, `}`, `]`} {
			c := Codec{in: "x" + value + behind, offset: 1}
			if got := c.skipValue(); got != value {
				t.Errorf("%s before %s: skipped %s", value, behind, got)
			}
		}
	})
}
