// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package codec

import "unsafe"

// This file has functions for kinds that need the text of a value. One such kind keeps the text that it reads, and
// writes the same text again. Another kind writes an index of the text. The kinds of configurations need none of these
// functions.

// A cut is a text to insert at an offset of the output.
type cut struct {
	at   int
	text string
}

// WriteParts is Write for a text that is mostly unchanged. The result is the text in parts. Some parts share memory
// with the text that was read. So a large text is not copied. The caller must not change the parts.
func WriteParts(out []byte, value func(*Codec)) (parts [][]byte, err error) {
	c := Codec{out: out, parts: true}
	value(&c)
	from := 0
	for _, x := range c.cuts {
		parts = append(parts, c.out[from:x.at:x.at], unsafe.Slice(unsafe.StringData(x.text), len(x.text)))
		from = x.at
	}
	return append(parts, c.out[from:]), c.err
}

// ReadTrusted is Read for a text that Write has written, byte for byte. The caller must be sure that Write has written
// the text, and must not change the text any more. Kinds may then skip a part of the text, and read it later.
func ReadTrusted(in []byte, value func(*Codec)) error {
	// a copy of a large text costs a page fault for each page
	c := Codec{in: unsafe.String(unsafe.SliceData(in), len(in)), trusted: true}
	return c.read(value)
}

// Trusted reports whether ReadTrusted reads the text.
func (c *Codec) Trusted() bool { return c.trusted }

// Parse reads a value of the kind from its text, which may be null.
func Parse[T any](text string, v *T, kind func(*T, *Codec)) error {
	c := Codec{in: text}
	Content(&c, v, kind)
	return c.err
}

// Input returns the whole text that is read, and how far it has been read.
func (c *Codec) Input() (text string, at int) { return c.in, c.at }

// Seek goes on reading at an offset of the text.
func (c *Codec) Seek(at int) { c.at = at }

// Output returns what has been written. A caller may change the result until the codec writes more.
func (c *Codec) Output() []byte { return c.out }

// Reserve writes n bytes that a kind changes later, in Output.
func (c *Codec) Reserve(n int) { c.out = append(c.out, make([]byte, n)...) }

// Comma writes the comma before a member or element. If the member or element is the first, Comma writes nothing.
func (c *Codec) Comma() {
	if last := c.out[len(c.out)-1]; last != '{' && last != '[' {
		c.out = append(c.out, ',')
	}
}

// Copy writes a text as it is. For WriteParts, a long text becomes a cut.
func (c *Codec) Copy(text string) {
	const long = 16 << 10 // a cut costs one more write(2), which takes as long as a copy of this size
	if c.parts && len(text) >= long {
		last := len(text) - 1 // Comma reads this byte
		c.cuts = append(c.cuts, cut{len(c.out), text[:last]})
		text = text[last:]
	}
	c.out = append(c.out, text...)
}
