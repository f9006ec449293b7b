// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package codec

import "unsafe"

// The functions in this Go file are only for the kinds of package indexed. These kinds copy the original text of an
// unchanged value, and write indexes with offsets and lengths.

// A cut is a text that the codec does not copy into out. Its place is before out[at].
type cut struct {
	at   int
	text string
}

// WriteParts writes what Write writes, but returns the text in parts. It does not copy long unchanged texts: some parts
// share memory with the text that the process has read. So the caller must not change the parts.
func WriteParts(out []byte, value func(*Codec)) (parts [][]byte, err error) {
	c := Codec{out: out, asParts: true}
	value(&c)
	from := 0
	for _, x := range c.cuts {
		parts = append(parts, c.out[from:x.at:x.at], unsafe.Slice(unsafe.StringData(x.text), len(x.text)))
		from = x.at
	}
	return append(parts, c.out[from:]), c.err
}

// ReadTrusted does what Read does, but only for the unchanged output of Write or WriteParts. A kind may skip a part of
// the text, and parse this part later. So the caller must not change the text, not even after the call.
func ReadTrusted(in []byte, value func(*Codec)) error {
	// do not copy the text, because a copy of a large text costs a page fault for each page
	c := Codec{in: unsafe.String(unsafe.SliceData(in), len(in)), trusted: true}
	return c.readAll(value)
}

// Trusted reports whether ReadTrusted has made the codec.
func (c *Codec) Trusted() bool { return c.trusted }

// Parse reads a value of this kind from its text, which may be null.
func Parse[T any](text string, v *T, kind func(*T, *Codec)) error {
	c := Codec{in: text}
	Content(&c, v, kind)
	return c.err
}

// Input returns the whole text that the codec reads, and the offset of the next byte to read.
func (c *Codec) Input() (text string, at int) { return c.in, c.offset }

// Seek sets the offset of the next byte to read.
func (c *Codec) Seek(at int) { c.offset = at }

// Output returns what the codec has written so far. The caller may overwrite the returned bytes, but only before the
// codec writes more.
func (c *Codec) Output() []byte { return c.out }

// Reserve writes n zero bytes. The caller later overwrites these bytes in Output.
func (c *Codec) Reserve(n int) { c.out = append(c.out, make([]byte, n)...) }

// Comma writes a comma, unless the next member or element is the first of its object or array.
func (c *Codec) Comma() {
	if last := c.out[len(c.out)-1]; last != '{' && last != '[' {
		c.out = append(c.out, ',')
	}
}

// Copy writes a text as it is. For WriteParts, it does not copy a long text, but stores it in c.cuts.
func (c *Codec) Copy(text string) {
	const long = 16 << 10 // a copy of a shorter text takes less time than a write(2) for one more part
	if c.asParts && len(text) >= long {
		last := len(text) - 1 // Comma reads the last byte, so c.out must contain it
		c.cuts = append(c.cuts, cut{len(c.out), text[:last]})
		text = text[last:]
	}
	c.out = append(c.out, text...)
}
