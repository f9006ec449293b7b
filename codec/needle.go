// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package codec

import "strings"

// A needle is a string to look for in texts of JSON, in the way of R. N. Horspool
// ("Practical fast searching in strings", 1980): of a string as long as the ID of a
// container most bytes of a text need no look, whereas strings.Contains takes each of
// them.
type needle struct {
	text  string     // empty: it may be anywhere
	steps [256]uint8 // by the byte that stands where the text would end; 0: the whole length
}

func newNeedle(text string) *needle {
	n := &needle{text: text[:min(len(text), 255)]} // where that is not, all of it is not
	if span(text) < len(text) {
		n.text = "" // it is not written as it is
	}
	for i := range len(n.text) - 1 {
		n.steps[n.text[i]] = uint8(len(n.text) - 1 - i)
	}
	return n
}

// mayBeIn tells whether JSON may have a string with the needle. One with escapes may,
// because any byte can be escaped.
func (n *needle) mayBeIn(json string) bool {
	last := len(n.text) - 1
	for end := last; last >= 0 && end < len(json); {
		b := json[end]
		if b == n.text[last] && json[end-last:end+1] == n.text {
			return true
		}
		step := int(n.steps[b])
		if step == 0 {
			step = len(n.text)
		}
		end += step
	}
	return last < 0 || strings.IndexByte(json, '\\') >= 0
}
