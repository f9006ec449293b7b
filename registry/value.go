// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package registry

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// plain tells whether all bytes stand for themselves in a string of JSON: ASCII, and
// neither controls, nor quotes, nor backslashes. It looks at eight at a time, because all
// text that is read or written passes here.
func plain(s string) bool {
	const ones, tops = 0x0101010101010101, 0x8080808080808080
	for ; len(s) >= 8; s = s[8:] {
		x := uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 |
			uint64(s[4])<<32 | uint64(s[5])<<40 | uint64(s[6])<<48 | uint64(s[7])<<56
		quote, slash := x^ones*'"', x^ones*'\\' // a byte of these is zero where x has one
		if (x|(x-ones*' ')|(quote-ones)&^quote|(slash-ones)&^slash)&tops != 0 {
			return false
		}
	}
	for _, b := range []byte(s) {
		if b < ' ' || b > '~' || b == '"' || b == '\\' {
			return false
		}
	}
	return true
}

func text(c *codec, v *string) {
	if c.writes() {
		if plain(*v) {
			c.out = append(append(append(c.out, '"'), *v...), '"')
			return
		}
		b, _ := json.Marshal(*v) // a string has no error
		c.out = append(c.out, b...)
		return
	}
	if in := c.in[c.at:]; len(in) > 0 && in[0] == '"' {
		if n := strings.IndexByte(in[1:], '"'); n >= 0 && plain(in[1:1+n]) {
			*v = in[1 : 1+n]
			c.at += n + 2
			return
		}
	}
	var s string
	if err := json.Unmarshal([]byte(c.skip()), &s); err != nil {
		c.fail(err)
	}
	*v = s
}

// number is an int without a fraction and an exponent.
func number(c *codec, v *int) {
	if c.writes() {
		c.out = strconv.AppendInt(c.out, int64(*v), 10)
		return
	}
	raw := c.skip()
	n, err := strconv.Atoi(raw)
	if err == nil && strconv.Itoa(n) != raw {
		err = fmt.Errorf("%q is not how JSON writes an integer", raw)
	}
	if err != nil {
		c.fail(err)
	}
	*v = n
}

func flag(c *codec, v *bool) {
	if c.writes() {
		c.out = strconv.AppendBool(c.out, *v)
		return
	}
	if *v = c.word("true"); !*v && !c.word("false") {
		c.fail(errors.New("want true or false"))
	}
}

// moment is a time: in UTC, because another zone is a file to read.
func moment(c *codec, v *time.Time) {
	if !c.writes() {
		*v = scan(c, func(s string) (time.Time, error) { return time.Parse(time.RFC3339, s) })
		return
	}
	b, err := v.UTC().AppendText(append(c.out, '"'))
	if c.out = append(b, '"'); err != nil {
		c.fail(err)
	}
}

func address(c *codec, v *netip.Addr) {
	if !c.writes() {
		*v = scan(c, netip.ParseAddr)
		return
	}
	b, _ := v.AppendText(append(c.out, '"')) // it has no error
	c.out = append(b, '"')
}

func prefix(c *codec, v *netip.Prefix) {
	if !c.writes() {
		*v = scan(c, netip.ParsePrefix)
		return
	}
	b, _ := v.AppendText(append(c.out, '"')) // it has no error
	c.out = append(b, '"')
}

// scan reads a string for who can parse it. An empty one is the zero value.
func scan[T any](c *codec, parse func(string) (T, error)) (v T) {
	var s string
	if text(c, &s); s == "" {
		return v
	}
	v, err := parse(s)
	if err != nil {
		c.fail(err)
	}
	return v
}

// skip reads a value, whatever it is, and returns it as it stands: whether it is right
// is for others to say.
func (c *codec) skip() string {
	from := c.at
	for depth := 0; c.at < len(c.in); {
		switch b := c.in[c.at]; {
		case b == '"':
			c.quoted()
		case b == '{' || b == '[':
			depth++
			c.at++
		case depth == 0 && (b == ',' || b == '}' || b == ']'):
			return c.in[from:c.at] // a number or a word has ended
		case b == '}' || b == ']':
			depth--
			c.at++
		default:
			c.at++
			continue
		}
		if depth == 0 {
			return c.in[from:c.at]
		}
	}
	return c.in[from:c.at]
}

// quoted reads a string that may have escapes.
func (c *codec) quoted() {
	for c.at++; c.at < len(c.in) && c.in[c.at] != '"'; c.at++ {
		if c.in[c.at] == '\\' {
			c.at++
		}
	}
	c.at = min(c.at+1, len(c.in))
}
