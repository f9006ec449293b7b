// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package registry

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// unsealed is a file of ours from before the sum was introduced.
func unsealed(t *testing.T, file []byte) []byte {
	t.Helper()
	if !sealed(file) {
		t.Fatalf("its sum is not right: %s", file)
	}
	return append(bytes.Clone(file[:len(file)-len(seal(nil))]), "}\n"...)
}

// resealed is a file of ours after an edit, with the sum of the edited content.
func resealed(t *testing.T, file []byte, old, new string) []byte {
	t.Helper()
	body, ok := bytes.CutSuffix(unsealed(t, file), []byte("}\n"))
	edited := bytes.ReplaceAll(body, []byte(old), []byte(new))
	if !ok || bytes.Equal(edited, body) {
		t.Fatalf("no %s in %s", old, file)
	}
	return append(edited, seal(edited)...)
}

func encoded(t *testing.T, s *State) []byte {
	t.Helper()
	b, err := s.encode()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func parsed(t *testing.T, b []byte) *State {
	t.Helper()
	s, err := parse(b)
	if err != nil {
		t.Fatalf("%v: %s", err, b)
	}
	return s
}

// A state is the same from a file with a right sum, with none, or with a wrong one, also
// after further operations.
func TestSumChangesNothing(t *testing.T) {
	for range 300 {
		file := encoded(t, randomState())
		wrong := bytes.Clone(file)
		wrong[len(wrong)-4] ^= 1
		for _, other := range [][]byte{unsealed(t, file), wrong} {
			if sealed(other) {
				t.Fatalf("its sum is right: %s", other)
			}
			late, eager := parsed(t, file), parsed(t, other)
			if a, b := encoded(t, eager), encoded(t, late); !bytes.Equal(a, file) || !bytes.Equal(b, file) {
				t.Fatalf("read    %sand not %sor      %s", file, a, b)
			}
			if diff := cmp.Diff(work(eager), work(late)); diff != "" {
				t.Fatalf("-read at once +read late:\n%s", diff)
			}
			if diff := cmp.Diff(eager, late, likeState); diff != "" {
				t.Fatalf("-read at once +read late:\n%s", diff)
			}
		}
	}
}

// work does what an ADD and a DEL do to a state, and returns a summary.
func work(s *State) string {
	k := Key{"", Attachment{ContainerID: "eni-1"}} // a random lease may have it
	held := s.Held(k)
	s.EndOf(k, time.Time{}, time.Time{}, slices.Collect(s.Leases.Keys())...)
	err := s.Reserve(addr("10.0.0.2"), Lease{Key: k, ENI: "eni-1"})
	b, bad := s.encode()
	return fmt.Sprintf("%v %v %v %s", held, err, bad, b)
}

// The sum detects each flipped bit in the file, and a missing end.
func TestSumSeesFlips(t *testing.T) {
	s := newState()
	first := fill(s, 40)
	for i, a := 0, first; i < 3; i, a = i+1, a.Next() {
		if err := s.Reserve(a, lease(fmt.Sprint("c", i))); err != nil {
			t.Fatal(err)
		}
	}
	file := encoded(t, s)
	for i := range file {
		for bit := range 8 {
			bad := bytes.Clone(file)
			bad[i] ^= 1 << bit
			if sealed(bad) {
				t.Fatalf("bit %d of byte %d is wrong, and the sum is right", bit, i)
			}
		}
		if cut := file[:i]; sealed(cut) {
			t.Fatalf("the sum of the first %d bytes is right", i)
		} else if _, err := parse(cut); err == nil && i < len(file)-1 {
			t.Fatalf("the first %d bytes are read: %s", i, cut)
		}
	}
}

// The sum depends on positions and on the length, and detects swapped words.
func TestSumOfLikeTexts(t *testing.T) {
	seen := map[uint64]string{}
	word := func(i int) string { return fmt.Sprintf("%08d", i) }
	var texts []string
	for n := range 100 {
		texts = append(texts, strings.Repeat("\x00", n), strings.Repeat(word(n), 9))
	}
	for i := range 9 {
		for j := range i {
			words := strings.Split("00000000 00000001 00000002 00000003 00000004 00000005 00000006 00000007 00000008", " ")
			words[i], words[j] = words[j], words[i]
			texts = append(texts, strings.Join(words, ""))
		}
	}
	for _, text := range texts {
		h := sum([]byte(text))
		if other, ok := seen[h]; ok {
			t.Errorf("%q and %q have the same sum", text, other)
		}
		seen[h] = text
	}
}

// A release from before the sum keeps it as an unknown field, so it becomes stale. The file
// is then parsed in full, and has one sum when it is written again.
func TestSumStale(t *testing.T) {
	s := newState()
	a := fill(s, 2)
	if err := s.Reserve(a, lease("c1")); err != nil {
		t.Fatal(err)
	}
	s.unknown["colour"], s.unknown["zeal"] = `"blue"`, "1"
	file := encoded(t, s)
	stale := bytes.Replace(file, []byte(`"c1"`), []byte(`"c2"`), 1)
	again := parsed(t, stale)
	if got := again.Held(key("c2")); len(got) != 1 || got[0] != a {
		t.Errorf("held: %v", got)
	}
	out := encoded(t, again)
	if !sealed(out) || bytes.Count(out, []byte(`"sum"`)) != 1 || !bytes.Contains(out, []byte(`,"colour":"blue","zeal":1,"sum":"`)) {
		t.Errorf("written %s", out)
	}
	for name, bad := range map[string][]byte{
		"leased and free": bytes.Replace(file, []byte(`"ips":{`), []byte(`"ips":{"10.0.0.10":{},`), 1),
		"no lease":        bytes.Replace(file, []byte(`"containerID":"c1"`), []byte(`"containerID":[c1]`), 1),
	} {
		if _, err := parse(bad); err == nil {
			t.Errorf("%s: no error: %s", name, bad)
		}
	}
	moved := bytes.Replace(unsealed(t, file), []byte(`{"schema`), []byte(`{"sum":"0123456789abcdef","sum":"","schema`), 1)
	if out := encoded(t, parsed(t, moved)); !bytes.Equal(out, file) {
		t.Errorf("with sums elsewhere: %s", out)
	}
}

// An ADD and a DEL parse only the attachment's own lease and a lease whose address is a
// hint. All other leases are broken here, and stay as they are.
func TestOthersStayUnread(t *testing.T) {
	s := newState()
	a := fill(s, 250)
	free := a
	for i := range 200 {
		if err := s.Reserve(free, lease(fmt.Sprintf("%064d", i))); err != nil {
			t.Fatal(err)
		}
		free = free.Next()
	}
	file := resealed(t, encoded(t, s), `"eni":"eni-1","since":`, `"eni":!,"since":`)
	s = parsed(t, file)
	own := key(strings.Repeat("f", 64))
	if held := s.Held(own); held != nil {
		t.Errorf("held: %v", held)
	}
	if err := s.Reserve(free, Lease{Key: own, ENI: "eni-1"}); err != nil {
		t.Fatal(err)
	}
	file = encoded(t, s)
	if n := bytes.Count(file, []byte(`"eni":!`)); n != 200 {
		t.Errorf("%d of 200 leases are as they were", n)
	}
	s = parsed(t, file)
	if held := s.Held(own); len(held) != 1 || held[0] != free {
		t.Errorf("held: %v", held)
	}
	s.EndOf(own, time.Now(), time.Time{}, free, a)
	file = encoded(t, s)
	// The lease of the hinted address is broken, so its owner is unknown. It has ended,
	// too.
	if n := bytes.Count(file, []byte(`"eni":!`)); n != 199 || s.Leases.Len() != 199 || s.Free.Len() != 51 {
		t.Errorf("%d leases are as they were, of %d; %d are free", n, s.Leases.Len(), s.Free.Len())
	}
	if _, err := parse(unsealed(t, file)); err == nil {
		t.Error("without its sum the file is read though it is wrong")
	}
}

// A lease is found by its container's ID, whatever characters the ID has.
func TestHeldByAnyID(t *testing.T) {
	for _, id := range []string{"", "c1", strings.Repeat("0123456789abcdef", 4), strings.Repeat("long", 100), `"`, `\`, "ü", "<&>", "\u2028"} {
		s := newState()
		a := fill(s, 3)
		for i, id := range []string{id, "another", id + "x"} {
			if err := s.Reserve(netip.AddrFrom4([4]byte{10, 0, 0, byte(10 + i)}), lease(id)); err != nil {
				t.Fatal(err)
			}
		}
		file := encoded(t, s)
		escaped := resealed(t, file, "anothe", `\u0061nothe`)
		for _, file := range [][]byte{file, escaped} {
			if held := parsed(t, file).Held(key(id)); len(held) != 1 || held[0] != a {
				t.Errorf("%q: held %v", id, held)
			}
			if held := parsed(t, file).Held(key("another")); len(held) != 1 || held[0] != a.Next() {
				t.Errorf("beside %q: held %v", id, held)
			}
		}
	}
}
