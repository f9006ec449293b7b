// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package indexed_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/internal/codec"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry/indexed"
)

// A guest is a value of Entries.
type guest struct {
	Name string `json:"name"`
	Room int    `json:"room"`
}

func (g *guest) describe(c *codec.Codec) {
	c.Object(func() {
		codec.Field(c, "name", &g.Name, codec.Text)
		codec.Field(c, "room", &g.Room, codec.Number)
	})
}

// A house is an object with Entries.
type house struct {
	guests indexed.Entries[guest]
}

func (h *house) describe(c *codec.Codec) {
	c.Object(func() { indexed.EntriesTable(c, "guests", &h.guests, (*guest).describe) })
}

// readings are the two ways to read a text.
var readings = map[string]func([]byte, func(*codec.Codec)) error{"read": codec.Read, "read late": codec.ReadTrusted}

// eachReading runs the test once with each of the readings. The test gets a house with the guests of a text.
// ReadTrusted gets the text in the form that Write gives it.
func eachReading(t *testing.T, guests string, test func(*testing.T, *house)) {
	t.Helper()
	text := []byte(`{"guests":` + guests + `}`)
	for _, name := range []string{"read", "read late"} {
		t.Run(name, func(t *testing.T) {
			var h house
			if err := readings[name](text, h.describe); err != nil {
				t.Fatal(err)
			}
			test(t, &h)
		})
		var h house
		if err := codec.Read(text, h.describe); err != nil {
			t.Fatal(err)
		}
		text = h.text(t)
	}
}

// text returns the house as it is written.
func (h *house) text(t *testing.T) []byte {
	t.Helper()
	b, err := codec.Write([]byte{}, h.describe)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// written returns the text of the guests without their index. It also checks that a reader of the text with the index
// finds the same keys.
func (h *house) written(t *testing.T) string {
	t.Helper()
	var again house
	text := h.text(t)
	if err := codec.ReadTrusted(text, again.describe); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	if want, got := slices.Collect(h.guests.Keys()), slices.Collect(again.guests.Keys()); !slices.Equal(got, want) {
		t.Fatalf("keys by the index: %v, want %v, in %s", got, want, text)
	}
	_, guests, ok := strings.Cut(string(text), `"guests":`)
	if !ok {
		t.Fatalf("no guests in %s", text)
	}
	return strings.TrimSuffix(guests, "}")
}

func addr(n int) netip.Addr {
	if n%4 == 3 {
		return netip.AddrFrom16([16]byte{0: 0x20, 7: byte(n % 8), 15: byte(n)})
	}
	return netip.AddrFrom4([4]byte{10, 0, byte(n % 2), byte(n)})
}

var names = []string{"Jim", "", "a longer one: 0123456789abcdef", `"Jim"\`, "Jım <&> \u2028", "x}", "{Jim}",
	"control \x01"}

func randomGuest() guest { return guest{names[rand.N(len(names))], rand.N(3)} }

// TestEntriesAreAMap checks that Entries behave like a map: after each kind of reading, in any order, with duplicate
// keys, and after any changes.
func TestEntriesAreAMap(t *testing.T) {
	for range 300 {
		var members []string
		truth := map[netip.Addr]guest{}
		for range rand.N(12) {
			a, g := addr(rand.N(16)), randomGuest()
			text, _ := json.Marshal(g)
			members = append(members, fmt.Sprintf(`"%s":%s`, a, text))
			truth[a] = g
		}
		eachReading(t, "{"+strings.Join(members, ",")+"}", func(t *testing.T, h *house) {
			m := maps.Clone(truth)
			for range rand.N(20) {
				a, g := addr(rand.N(16)), randomGuest()
				switch rand.N(4) {
				case 0:
					h.guests.Set(a, g)
					m[a] = g
				case 1:
					h.guests.Delete(a)
					delete(m, a)
				case 2:
					got, ok := h.guests.At(a)
					if want, there := m[a]; got != want || ok != there || h.guests.Has(a) != there {
						t.Fatalf("%s: got %v %v, want %v %v", a, got, ok, want, there)
					}
				default:
					sameNamed(t, h, m, g.Name)
				}
			}
			h.same(t, m)
		})
	}
}

// TestEntriesChanged checks that an entry counts as changed if it has got another value since the reading, and only
// then.
func TestEntriesChanged(t *testing.T) {
	eachReading(t,
		`{"10.0.0.1":{"name":"Al","room":1},"10.0.0.2":{"name":"Jim","room":2},"10.0.0.4":{"name":"Al","room":4}}`,
		func(t *testing.T, h *house) {
			h.guests.Delete(netip.MustParseAddr("10.0.0.1"))
			h.guests.Set(netip.MustParseAddr("10.0.0.2"), guest{"Jim", 3})
			h.guests.Set(netip.MustParseAddr("10.0.0.3"), guest{"Al", 3})
			h.guests.Set(netip.MustParseAddr("10.0.0.4"), guest{"Al", 4}) // the same value as before
			want := []netip.Addr{netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.3")}
			if got := slices.Collect(h.guests.Changed()); !slices.Equal(got, want) {
				t.Errorf("changed: %v, want %v", got, want)
			}
		})
}

// sameNamed checks that Beginning finds all guests with this name.
func sameNamed(t *testing.T, h *house, m map[netip.Addr]guest, name string) {
	t.Helper()
	got, want := map[netip.Addr]guest{}, map[netip.Addr]guest{}
	for a, g := range h.guests.Beginning(begin(name)) {
		if g.Name == name {
			got[a] = g
		}
	}
	for a, g := range m {
		if g.Name == name {
			want[a] = g
		}
	}
	if !maps.Equal(got, want) {
		t.Fatalf("%q: got %v, want %v", name, got, want)
	}
}

// same checks that the guests are those of the map, in order, and that Write writes them in this order.
func (h *house) same(t *testing.T, m map[netip.Addr]guest) {
	t.Helper()
	sorted := slices.SortedFunc(maps.Keys(m), netip.Addr.Compare)
	if got := slices.Collect(h.guests.Keys()); !slices.Equal(got, sorted) || h.guests.Len() != len(m) {
		t.Fatalf("keys: got %v, want %v", got, sorted)
	}
	for _, b := range []netip.Prefix{netip.MustParsePrefix("10.0.1.0/24"), netip.MustParsePrefix("2000::/60"), {}} {
		want := slices.DeleteFunc(slices.Clone(sorted), func(a netip.Addr) bool { return !b.Contains(a) })
		if got := slices.Collect(h.guests.Within(b)); !slices.Equal(got, want) {
			t.Fatalf("within %s: got %v, want %v", b, got, want)
		}
	}
	text := h.written(t)
	if got := maps.Collect(h.guests.All()); !maps.Equal(got, m) {
		t.Fatalf("got %v, want %v", got, m)
	}
	var again map[netip.Addr]guest
	if err := json.Unmarshal([]byte(text), &again); err != nil || !maps.Equal(again, m) {
		t.Fatalf("written %s (%v), want %v", text, err, m)
	}
}

// TestEntriesStayText checks that an unchanged entry is written as its original text. An entry is also unchanged if it
// was read, or was set to the same value.
func TestEntriesStayText(t *testing.T) {
	const text = `{"10.0.0.1":{"room":1,"mood":["x"],"name":"J\u0069m"},"10.0.0.2":null,"10.0.0.3":{"since":{"a":"}"},"room":3}}`
	eachReading(t, text, func(t *testing.T, h *house) {
		if got := h.written(t); got != text {
			t.Errorf("not looked at: %s", got)
		}
		for a, g := range h.guests.All() {
			h.guests.Set(a, g)
		}
		if got := h.written(t); got != text {
			t.Errorf("set to what they were: %s", got)
		}
		h.guests.Set(netip.MustParseAddr("10.0.0.2"), guest{"Al", 2})
		want := strings.Replace(text, "null", `{"name":"Al","room":2}`, 1)
		if got := h.written(t); got != want {
			t.Errorf("one is set:\ngot  %s\nwant %s", got, want)
		}
		h.guests.Delete(netip.MustParseAddr("10.0.0.1"))
		if got, want := h.written(t), "{"+want[strings.Index(want, `"10.0.0.2"`):]; got != want {
			t.Errorf("one is deleted:\ngot  %s\nwant %s", got, want)
		}
	})
}

// TestEntriesChangeInLoops sets and deletes entries in a range loop. As with a map, the loop must visit an entry once
// if the entry exists during the whole loop. It must not visit an entry that was deleted before its turn.
func TestEntriesChangeInLoops(t *testing.T) {
	for range 500 {
		var h house
		for range rand.N(16) {
			h.guests.Set(addr(rand.N(16)), randomGuest())
		}
		always := maps.Collect(h.guests.All())
		seen := map[netip.Addr]bool{}
		for a := range h.guests.All() {
			if !h.guests.Has(a) || seen[a] {
				t.Fatalf("%s is seen twice, or is not there", a)
			}
			seen[a] = true
			for range rand.N(3) {
				other := addr(rand.N(16))
				if rand.N(2) == 0 {
					h.guests.Set(other, randomGuest())
				} else {
					h.guests.Delete(other)
					delete(always, other)
				}
			}
		}
		for a := range always {
			if !seen[a] {
				t.Fatalf("%s was there, and not seen", a)
			}
		}
	}
	var h house
	for n := range 8 {
		h.guests.Set(addr(n), guest{})
	}
	for a := range h.guests.Keys() {
		h.guests.Delete(a)
	}
	if h.guests.Len() != 0 {
		t.Errorf("%d are left of those that were deleted one by one", h.guests.Len())
	}
}

// TestEntriesReadLate checks that ReadTrusted parses a value only when it is used.
func TestEntriesReadLate(t *testing.T) {
	var h house
	h.guests.Set(netip.MustParseAddr("10.0.0.1"), guest{"Jim", 1})
	h.guests.Set(netip.MustParseAddr("10.0.0.2"), guest{"Al", 2})
	h.guests.Set(netip.MustParseAddr("10.0.0.3"), guest{"a longer name, and no Al", 1})
	text := strings.ReplaceAll(string(h.text(t)), `"room":1`, `"room":!`)
	if err := codec.Read([]byte(text), h.describe); err == nil {
		t.Error("read though it is wrong")
	}
	if err := codec.ReadTrusted([]byte(text), h.describe); err != nil {
		t.Fatal(err)
	}
	for by, some := range map[string]iter.Seq2[netip.Addr, guest]{"in": h.guests.Containing(`"room":2`),
		"named": h.guests.Beginning(`{"name":"Al"`)} {
		var named []string
		for a, g := range some {
			named = append(named, a.String(), g.Name)
		}
		if diff := cmp.Diff([]string{"10.0.0.2", "Al"}, named); diff != "" {
			t.Errorf("-want +%s:\n%s", by, diff)
		}
	}
	if g, ok := h.guests.At(netip.MustParseAddr("10.0.0.1")); !ok || g != (guest{}) {
		t.Errorf("what cannot be read is %v %v, and not the zero value", g, ok)
	}
	if got, _ := codec.Write([]byte{}, h.describe); string(got) != text {
		t.Errorf("written %s", got)
	}
}

// TestEntriesWrongIndex: a wrong index may cause an error, but no panic. A reader that ignores the index must read the
// entries.
func TestEntriesWrongIndex(t *testing.T) {
	var h house
	for n := range 8 {
		h.guests.Set(addr(n), randomGuest())
	}
	text := h.text(t)
	rows := bytes.IndexByte(text, ':') + len(`:"`)
	end := rows + bytes.IndexByte(text[rows:], '"')
	for i := rows; i < end; i++ {
		for _, c := range []byte(`A/+z9" `) {
			wrong := bytes.Clone(text)
			wrong[i] = c
			var late house
			if err := codec.ReadTrusted(wrong, late.describe); err == nil {
				for range late.guests.All() {
				}
			}
			var again house
			if err := codec.Read(wrong, again.describe); c != '"' && (err != nil || !bytes.Equal(again.text(t), text)) {
				t.Errorf("%s: %v, read as %s", wrong, err, again.text(t))
			}
		}
		for _, cut := range [][]byte{slices.Delete(bytes.Clone(text), i, i+1),
			slices.Delete(bytes.Clone(text), max(i, rows+1), end)} {
			var late house
			if err := codec.ReadTrusted(cut, late.describe); err == nil {
				t.Errorf("read late: %s", cut)
			}
		}
	}
}

// TestEntriesWithZone: the index has no form for an address with a zone. So Entries with such an address have no index.
func TestEntriesWithZone(t *testing.T) {
	var h house
	h.guests.Set(addr(1), guest{"Jim", 1})
	h.guests.Set(netip.MustParseAddr("fe80::1%eth0"), guest{"Al", 2})
	const want = `{"guests":{"10.0.1.1":{"name":"Jim","room":1},"fe80::1%eth0":{"name":"Al","room":2}}}`
	if got := h.text(t); string(got) != want {
		t.Errorf("written %s, want %s", got, want)
	}
	for name, read := range readings {
		var again house
		if err := read([]byte(want), again.describe); err != nil || again.guests.Len() != 2 ||
			string(again.text(t)) != want {
			t.Errorf("%s: %v, %s", name, err, again.text(t))
		}
		again.guests.Delete(netip.MustParseAddr("fe80::1%eth0"))
		if got := again.written(t); got != `{"10.0.1.1":{"name":"Jim","room":1}}` {
			t.Errorf("%s, without the zone: %s", name, got)
		}
	}
}

// begin returns the beginning of the text of a guest with this name.
func begin(name string) string {
	b, err := codec.Write([]byte{}, func(c *codec.Codec) {
		c.Object(func() { codec.Field(c, "name", &name, codec.Text) })
	})
	if err != nil {
		panic(err)
	}
	return strings.TrimSuffix(string(b), "}")
}

// TestEntriesBeginning checks that Beginning finds the entries whose text begins with the given text, whatever their
// strings contain.
func TestEntriesBeginning(t *testing.T) {
	const letters = `abc"\ü{},`
	random := func(n int) (s string) {
		for range n {
			s += string([]rune(letters)[rand.N(9)])
		}
		return s
	}
	for range 300 {
		var h, late house
		for n := range 8 {
			h.guests.Set(addr(n), guest{random(rand.N(3)), n})
		}
		b, err := codec.Write([]byte{}, h.describe)
		if err != nil {
			t.Fatal(err)
		}
		if err := codec.ReadTrusted(b, late.describe); err != nil {
			t.Fatal(err)
		}
		some, _ := h.guests.At(addr(rand.N(8)))
		found := maps.Collect(late.guests.Beginning(begin(some.Name)))
		for a, g := range h.guests.All() {
			if f, ok := found[a]; g.Name == some.Name && (!ok || f != g) {
				t.Fatalf("%q is not found in %q: %v", some.Name, g.Name, f)
			}
		}
		third, _ := h.guests.At(addr(3))
		if g := maps.Collect(late.guests.Containing(`"room":3}`))[addr(3)]; g != third {
			t.Fatalf("in room 3: %v, want %v: %s", g, third, b)
		}
		for a, g := range h.guests.All() {
			if f, _ := late.guests.At(a); f != g {
				t.Fatalf("%s: %v, want %v", a, f, g)
			}
		}
	}
}

// TestEntriesInParts checks that WriteParts writes the same text as Write, also if changed entries are between long
// unchanged texts.
func TestEntriesInParts(t *testing.T) {
	many := func(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)}) }
	for range 100 {
		var h house
		for n := range 1000 {
			h.guests.Set(many(n), guest{names[2], n})
		}
		var late house
		if err := codec.ReadTrusted(h.text(t), late.describe); err != nil {
			t.Fatal(err)
		}
		for range rand.N(8) {
			edges := []int{0, 1, 998, 999, 1000, rand.N(1000)}
			if a := many(edges[rand.N(len(edges))]); rand.N(2) == 0 {
				late.guests.Delete(a)
			} else {
				late.guests.Set(a, randomGuest())
			}
		}
		parts, err := codec.WriteParts([]byte{}, late.describe)
		if err != nil {
			t.Fatal(err)
		}
		if len(parts) < 3 {
			t.Errorf("%d parts", len(parts))
		}
		if got, want := bytes.Join(parts, nil), late.text(t); !bytes.Equal(got, want) {
			t.Fatalf("%d bytes in %d parts, and not %d bytes in one", len(got), len(parts), len(want))
		}
		late.same(t, maps.Collect(late.guests.All()))
	}
}

// TestAddrsReadLate: a long list of IPv4 addresses has an index. Late reading must give the list that was written.
func TestAddrsReadLate(t *testing.T) {
	for range 200 {
		var list, late, again []netip.Addr
		for range rand.N(20) {
			list = append(list, addr(4*rand.N(4)+rand.N(3)))
		}
		if rand.N(3) == 0 {
			list = append(list, addr(3))
		}
		described := func(v *[]netip.Addr) func(*codec.Codec) {
			return func(c *codec.Codec) { c.Object(func() { indexed.Addrs(c, "all", v) }) }
		}
		text, err := codec.Write([]byte{}, described(&list))
		if err != nil {
			t.Fatal(err)
		}
		var truth struct{ All []netip.Addr }
		err = errors.Join(json.Unmarshal(text, &truth), codec.ReadTrusted(text, described(&late)),
			codec.Read(text, described(&again)))
		if err != nil || !slices.Equal(truth.All, list) || !slices.Equal(late, list) || !slices.Equal(again, list) {
			t.Fatalf("%v, %v, %v (%v), want %v: %s", truth.All, late, again, err, list, text)
		}
		for i := range text {
			cut := slices.Delete(bytes.Clone(text), i, i+1)
			if err := codec.ReadTrusted(cut, described(&late)); err == nil &&
				bytes.HasPrefix(cut, []byte(`{"allIndex":"`)) && bytes.Contains(cut, []byte(`,"all":[`)) &&
				!slices.Equal(late, list) {
				t.Errorf("%s is read as %v", cut, late)
			}
		}
	}
}

// TestEntriesTooLong: an entry is too long for a row of the index. It must still be read and written, without an index.
func TestEntriesTooLong(t *testing.T) {
	for name, guests := range map[string]string{
		"value": `{"10.0.0.1":{"name":"Jim","room":1,"more":"` + strings.Repeat("x", 1<<20) +
			`"},"10.0.0.2":{"name":"Al","room":2}}`,
		"key": `{"10.0.0.2":{"name":"Al","room":2},"fe80::1%` + strings.Repeat("x", 3000) +
			`":{"name":"Jim","room":1}}`,
	} {
		var h house
		if err := codec.Read([]byte(`{"guests":`+guests+`}`), h.describe); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got := h.written(t); got != guests {
			t.Errorf("%s: written %.100s", name, got)
		}
		h.guests.Set(netip.MustParseAddr("10.0.0.2"), guest{"Al", 3})
		if got, want := h.written(t), strings.Replace(guests, `"room":2`, `"room":3`, 1); got != want {
			t.Errorf("%s: written %.100s", name, got)
		}
	}
	var h house
	h.guests.Set(netip.Addr{}, guest{"no one", 1})
	if b, err := codec.Write([]byte{}, h.describe); err == nil {
		t.Errorf("an entry without a key is written: %s", b)
	}
}
