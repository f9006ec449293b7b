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

// statusField is the name of a field that stands for the HTTP status of an answer.
const statusField = "(HTTP status)"

// messageField is the path of the message in an error of EC2. For the comparison, two messages never differ in kind,
// because only people read messages. outcome.meaning distinguishes the errors.
const messageField = "Errors.Error.Message"

// ignoredFields are fields whose values differ in each answer.
var ignoredFields = []string{"requestId", "RequestID", "RequestId"}

// fieldsOf returns the forms of all fields of an answer, by the field's path. A field is an XML element in an answer of
// EC2, a member of a JSON object, or a line in an answer of metadata.
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
		if root, err := parseXML(a.body); err != nil {
			all["(not XML)"] = form{err.Error(), "not XML"}
		} else {
			root.forEachText("", n, add)
		}
	case a.status != http.StatusOK: // an error page
	case strings.Contains(call, "/dynamic/"):
		for name, text := range jsonMembers(a.body) {
			add(name, text)
		}
	default:
		lines := strings.Split(strings.TrimSpace(string(a.body)), "\n")
		slices.SortFunc(lines, func(x, y string) int { return strings.Compare(n.formOf(x).shown, n.formOf(y).shown) })
		for i, line := range lines {
			add(indexedName("line", i, len(lines)), line)
		}
	}
	return all
}

// jsonMembers returns the members of a JSON object, with their values as texts.
func jsonMembers(body []byte) map[string]string {
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

// An element is an XML element. It has either a text or child elements.
type element struct {
	name     string
	text     string
	children []*element
}

// parseXML returns the root element of a document.
func parseXML(document []byte) (*element, error) {
	path := []*element{{}}
	for d := xml.NewDecoder(bytes.NewReader(document)); ; {
		token, err := d.Token()
		top := path[len(path)-1]
		switch x := token.(type) {
		case xml.StartElement:
			e := &element{name: x.Name.Local}
			top.children, path = append(top.children, e), append(path, e)
		case xml.EndElement:
			path = path[:len(path)-1]
		case xml.CharData:
			top.text += string(x)
		}
		if err == io.EOF && len(path[0].children) == 1 {
			return path[0].children[0], nil
		}
		if err != nil {
			return nil, fmt.Errorf("the answer of EC2: %w", err)
		}
	}
}

// forEachText calls the function "add" once for each text in the element e: with the path of the text, and the text.
func (e *element) forEachText(path string, n names, add func(path, text string)) {
	counts, seen := map[string]int{}, map[string]int{}
	for _, c := range e.children {
		counts[c.name]++
	}
	for _, c := range e.sortedChildren(n) {
		if slices.Contains(ignoredFields, c.name) {
			continue
		}
		at := joinPath(path, indexedName(c.name, seen[c.name], counts[c.name]))
		seen[c.name]++
		if len(c.children) == 0 {
			add(at, strings.TrimSpace(c.text))
			continue
		}
		c.forEachText(at, n, add)
	}
}

// sortedChildren returns the children of e. It sorts items by their forms, because EC2 does not guarantee an order of
// items.
func (e *element) sortedChildren(n names) []*element {
	if !slices.ContainsFunc(e.children, func(c *element) bool { return c.name == "item" }) {
		return e.children
	}
	formed := func(c *element) string {
		var all []string
		c.forEachText("", n, func(path, text string) { all = append(all, path+"="+n.formOf(text).shown) })
		slices.Sort(all)
		return n.formOf(strings.TrimSpace(c.text)).shown + strings.Join(all, " ")
	}
	return slices.SortedStableFunc(slices.Values(e.children), func(a, b *element) int {
		return strings.Compare(formed(a), formed(b))
	})
}

// deletePath deletes all elements below e that have the given path. It ignores indices, so it deletes the element from
// every item of a list.
func (e *element) deletePath(path string) {
	e.deleteBelow("", withoutIndices(path))
}

func (e *element) deleteBelow(at, path string) {
	e.children = slices.DeleteFunc(e.children, func(c *element) bool { return joinPath(at, c.name) == path })
	for _, c := range e.children {
		c.deleteBelow(joinPath(at, c.name), path)
	}
}

func (e *element) xmlText() []byte {
	var b bytes.Buffer
	e.writeTo(&b)
	return b.Bytes()
}

func (e *element) writeTo(b *bytes.Buffer) {
	fmt.Fprintf(b, "<%s>", e.name)
	if len(e.children) == 0 {
		_ = xml.EscapeText(b, []byte(e.text)) // a bytes.Buffer does not fail
	}
	for _, c := range e.children {
		c.writeTo(b)
	}
	fmt.Fprintf(b, "</%s>", e.name)
}

func joinPath(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// indexedName returns a name with an index, such as name[2], if several elements have this name.
func indexedName(name string, i, of int) string {
	if of < 2 {
		return name
	}
	return fmt.Sprintf("%s[%d]", name, i+1)
}

var indices = regexp.MustCompile(`\[\d+\]`)

func withoutIndices(path string) string { return indices.ReplaceAllString(path, "") }
