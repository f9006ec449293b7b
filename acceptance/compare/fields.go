// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package compare

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// statusField is the HTTP status of an answer, as a field.
const statusField = "(HTTP status)"

// messageField is the path of the text of an EC2 error. Only people read this text, so its wording may differ. The
// comparison still compares the meaning of the error: see outcome.
const messageField = "Errors.Error.Message"

// unlike are fields whose values differ in each answer.
var unlike = []string{"requestId", "RequestID", "RequestId"}

// fieldsOf returns the fields of an answer: elements of XML, members of JSON, or lines.
func fieldsOf(call string, a answer, n names) map[string]form {
	all := map[string]form{statusField: {strconv.Itoa(a.status), strconv.Itoa(a.status)}}
	add := func(path, text string) {
		f := n.formOf(text)
		if path == messageField {
			f = form{f.shown, "a message"}
		}
		all[path] = f
	}
	switch {
	case !strings.HasPrefix(call, "/"):
		if root, err := parse(a.body); err != nil {
			all["(not XML)"] = form{err.Error(), "not XML"}
		} else {
			root.flatten("", n, add)
		}
	case a.status != http.StatusOK: // an error page
	case strings.Contains(call, "/dynamic/"):
		for name, text := range members(a.body) {
			add(name, text)
		}
	default:
		lines := strings.Split(strings.TrimSpace(string(a.body)), "\n")
		slices.SortFunc(lines, func(x, y string) int { return strings.Compare(n.formOf(x).shown, n.formOf(y).shown) })
		for i, line := range lines {
			add(indexed("line", i, len(lines)), line)
		}
	}
	return all
}

// members returns the members of a JSON object, as text.
func members(body []byte) map[string]string {
	var all map[string]json.RawMessage
	texts := map[string]string{}
	if err := json.Unmarshal(body, &all); err != nil {
		return map[string]string{"(not JSON)": err.Error()}
	}
	for name, raw := range all {
		var text string
		if json.Unmarshal(raw, &text) != nil {
			text = string(raw)
		}
		texts[name] = text
	}
	return texts
}

// An element is an element of XML. It contains a text, or other elements.
type element struct {
	name string
	text string
	in   []*element
}

// parse returns the root of a document.
func parse(document []byte) (*element, error) {
	path := []*element{{}}
	for d := xml.NewDecoder(bytes.NewReader(document)); ; {
		token, err := d.Token()
		top := path[len(path)-1]
		switch x := token.(type) {
		case xml.StartElement:
			e := &element{name: x.Name.Local}
			top.in, path = append(top.in, e), append(path, e)
		case xml.EndElement:
			path = path[:len(path)-1]
		case xml.CharData:
			top.text += string(x)
		}
		if err == io.EOF && len(path[0].in) == 1 {
			return path[0].in[0], nil
		}
		if err != nil {
			return nil, fmt.Errorf("the answer of EC2: %w", err)
		}
	}
}

// flatten calls add with each text below e and its path.
func (e *element) flatten(path string, n names, add func(path, text string)) {
	counts, seen := map[string]int{}, map[string]int{}
	for _, c := range e.in {
		counts[c.name]++
	}
	for _, c := range e.sorted(n) {
		if slices.Contains(unlike, c.name) {
			continue
		}
		at := join(path, indexed(c.name, seen[c.name], counts[c.name]))
		seen[c.name]++
		if len(c.in) == 0 {
			add(at, strings.TrimSpace(c.text))
			continue
		}
		c.flatten(at, n, add)
	}
}

// sorted returns the elements in e. EC2 promises no order of items, so sorted returns them in the order of their forms.
func (e *element) sorted(n names) []*element {
	if !slices.ContainsFunc(e.in, func(c *element) bool { return c.name == "item" }) {
		return e.in
	}
	formed := func(c *element) string {
		var all []string
		c.flatten("", n, func(path, text string) { all = append(all, path+"="+n.formOf(text).shown) })
		slices.Sort(all)
		return n.formOf(strings.TrimSpace(c.text)).shown + strings.Join(all, " ")
	}
	return slices.SortedStableFunc(slices.Values(e.in), func(a, b *element) int {
		return strings.Compare(formed(a), formed(b))
	})
}

// without removes all elements at a path. It ignores the indices in the path.
func (e *element) without(path string) {
	e.remove("", withoutIndex(path))
}

func (e *element) remove(at, path string) {
	e.in = slices.DeleteFunc(e.in, func(c *element) bool { return join(at, c.name) == path })
	for _, c := range e.in {
		c.remove(join(at, c.name), path)
	}
}

// document returns e as XML.
func (e *element) document() []byte {
	var b bytes.Buffer
	e.write(&b)
	return b.Bytes()
}

func (e *element) write(b *bytes.Buffer) {
	fmt.Fprintf(b, "<%s>", e.name)
	if len(e.in) == 0 {
		_ = xml.EscapeText(b, []byte(e.text)) // a bytes.Buffer does not fail
	}
	for _, c := range e.in {
		c.write(b)
	}
	fmt.Fprintf(b, "</%s>", e.name)
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// indexed returns a name, with a number from 1 if there are several elements with this name.
func indexed(name string, i, of int) string {
	if of < 2 {
		return name
	}
	return fmt.Sprintf("%s[%d]", name, i+1)
}

var indices = regexp.MustCompile(`\[\d+\]`)

func withoutIndex(path string) string { return indices.ReplaceAllString(path, "") }
