// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package codec

import "strings"

// Dense reports whether a text is JSON without white space, as programs write it: json.Compact would not change it, and takes ten
// times as long to see that. Dense is not sure of what is rare, such as a fraction. Then it reports false.
func Dense(text string) bool {
	const deep = 100 // encoding/json allows more
	d := dense(text)
	return d.value(deep) && d == ""
}

// dense is the part of the text that is yet to be seen. Each method goes past something, and reports whether it is there.
type dense string

func (d *dense) next(b byte) bool {
	found := *d != "" && (*d)[0] == b
	if found {
		*d = (*d)[1:]
	}
	return found
}

func (d *dense) word(w string) bool {
	rest, found := strings.CutPrefix(string(*d), w)
	*d = dense(rest)
	return found
}

func (d *dense) value(depth int) bool {
	switch {
	case depth == 0 || *d == "":
		return false
	case (*d)[0] == '"':
		return d.text()
	case d.next('{'):
		return d.next('}') || d.list('}', depth)
	case d.next('['):
		return d.next(']') || d.list(']', depth)
	}
	return d.word("true") || d.word("false") || d.word("null") || d.integer()
}

// list is the rest of an object or of an array with at least one value.
func (d *dense) list(closing byte, depth int) bool {
	for {
		if closing == '}' && !(d.text() && d.next(':')) || !d.value(depth-1) {
			return false
		}
		if d.next(closing) {
			return true
		}
		if !d.next(',') {
			return false
		}
	}
}

func (d *dense) text() bool {
	if !d.next('"') {
		return false
	}
	for *d != "" {
		*d = (*d)[span(string(*d)):]
		switch {
		case d.next('"'):
			return true
		case d.next('\\'):
			if *d == "" || !d.escape() {
				return false
			}
		case *d == "" || (*d)[0] < ' ':
			return false
		default: // not ASCII
			*d = (*d)[1:]
		}
	}
	return false
}

// escape is what follows a backslash.
func (d *dense) escape() bool {
	b := (*d)[0]
	*d = (*d)[1:]
	if b != 'u' {
		return strings.IndexByte(`"\/bfnrt`, b) >= 0
	}
	const digits = 4
	if len(*d) < digits {
		return false
	}
	hex := string((*d)[:digits])
	*d = (*d)[digits:]
	return strings.Trim(hex, "0123456789abcdefABCDEF") == ""
}

func (d *dense) integer() bool {
	d.next('-')
	zero := strings.HasPrefix(string(*d), "0")
	n := 0
	for n < len(*d) && '0' <= (*d)[n] && (*d)[n] <= '9' {
		n++
	}
	*d = (*d)[n:]
	return n == 1 || n > 1 && !zero
}
