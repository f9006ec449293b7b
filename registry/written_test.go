// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package registry

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// The time then is the modification time of the files in these tests.
var then = time.Date(2026, 11, 21, 7, 17, 24, 123456789, time.UTC)

// unsealed returns the text of a file of ours without its last member, which has the modification time.
func unsealed(t *testing.T, file []byte) []byte {
	t.Helper()
	body, ok := bytes.CutSuffix(file, sealText(then))
	if !ok {
		t.Fatalf("its time is not right: %s", file)
	}
	return append(bytes.Clone(body), "}\n"...)
}

// broken returns a file of ours after an edit that a reader cannot notice.
func broken(t *testing.T, file []byte, old, new string) []byte {
	t.Helper()
	edited := bytes.ReplaceAll(file, []byte(old), []byte(new))
	if bytes.Equal(edited, file) {
		t.Fatalf("no %s in %s", old, file)
	}
	return edited
}

func encoded(t testing.TB, s *State) []byte {
	t.Helper()
	parts, err := s.encodeFile(then)
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Join(parts, nil)
}

func parsed(t *testing.T, b []byte) *State {
	t.Helper()
	s, err := parseState(b, then)
	if err != nil {
		t.Fatalf("%v: %s", err, b)
	}
	return s
}

// TestWrittenChangesNothing reads the same state from a file with a right modification time, with a wrong one, and with
// none. The states must be the same, also after further operations.
func TestWrittenChangesNothing(t *testing.T) {
	for range 300 {
		file := encoded(t, randomState())
		wrong := bytes.Clone(file)
		wrong[len(wrong)-5] ^= 1
		for _, other := range [][]byte{unsealed(t, file), wrong} {
			if isSealed(other, then) {
				t.Fatalf("its time is right: %s", other)
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

// work changes a state as an ADD and a DEL do, and returns a summary.
func work(s *State) string {
	k := Key{"", Attachment{ContainerID: "eni-1"}} // a random lease may have this key
	held := s.Held(k)
	s.EndOf(k, time.Time{}, time.Time{}, slices.Collect(s.Leases.Keys())...)
	err := s.Reserve(addr("10.0.0.2"), Lease{Key: k, ENI: "eni-1"})
	b, bad := s.encodeFile(then)
	return fmt.Sprintf("%v %v %v %s", held, err, bad, bytes.Join(b, nil))
}

// TestWrittenByOthers: another program writes into the file, or replaces it. Then the file must no longer count as
// ours. A process that reads the file in the meantime must parse the whole file.
func TestWrittenByOthers(t *testing.T) {
	for name, edit := range map[string]func(path string, b []byte) error{
		"no program": func(string, []byte) error { return nil },
		"in place": func(path string, b []byte) error {
			f, err := os.OpenFile(path, os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			_, err = f.WriteAt(bytes.Replace(b, []byte(`"c1"`), []byte(`"c2"`), 1), 0)
			return errors.Join(err, f.Close())
		},
		"one byte, which stays": func(path string, b []byte) error {
			f, err := os.OpenFile(path, os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			_, err = f.WriteAt(b[10:11], 10)
			return errors.Join(err, f.Close())
		},
		"from the beginning": func(path string, b []byte) error { return os.WriteFile(path, b, 0o600) },
		"by a rename": func(path string, b []byte) error {
			return errors.Join(os.WriteFile(path+".tmp", b, 0o600), os.Rename(path+".tmp", path))
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := open(t)
			update(t, r, func(s *State) {
				if err := s.Reserve(fill(s, 2), lease("c1")); err != nil {
					t.Fatal(err)
				}
			})
			b, err := os.ReadFile(r.filePath())
			if err != nil {
				t.Fatal(err)
			}
			f, err := os.Open(r.filePath()) // a reader has the file open during the edit
			if err != nil {
				t.Fatal(err)
			}
			if err := edit(r.filePath(), b); err != nil {
				t.Fatal(err)
			}
			if got, want := view(t, r).isOurs, name == "no program"; got != want {
				t.Errorf("it is ours: %v", got)
			}
			seen, written, err := readContent(f, nil)
			if err != nil || isSealed(seen, written) && !bytes.Equal(seen, b) {
				t.Errorf("who had opened it before takes it for ours: %s, %v", seen, err)
			}
			update(t, r, func(s *State) {})
			if !view(t, r).isOurs {
				t.Error("the next change does not make it ours")
			}
		})
	}
}

// TestWrittenStale: an earlier release keeps the member with our time as an unknown member, and may write the member
// "sum" after it. The next process must parse the whole file. It must write our time once, and no "sum".
func TestWrittenStale(t *testing.T) {
	s := newState()
	a := fill(s, 2)
	if err := s.Reserve(a, lease("c1")); err != nil {
		t.Fatal(err)
	}
	s.unknownFields["colour"], s.unknownFields["zeal"] = `"blue"`, "1"
	file := encoded(t, s)
	stale := bytes.Replace(file, []byte(`"c1"`), []byte(`"c2"`), 1)
	stale = bytes.Replace(stale, []byte(`"}`+"\n"), []byte(`","sum":"0123456789abcdef"}`+"\n"), 1)
	again := parsed(t, stale)
	if got := again.Held(key("c2")); len(got) != 1 || got[0] != a {
		t.Errorf("held: %v", got)
	}
	out := encoded(t, again)
	if !isSealed(out, then) || bytes.Contains(out, []byte(`"sum"`)) || bytes.Count(out, []byte(`"written"`)) != 1 ||
		!bytes.Contains(out, []byte(`,"colour":"blue","zeal":1,"written":"`)) {
		t.Errorf("written %s", out)
	}
	for name, bad := range map[string][]byte{
		"leased and free": bytes.Replace(file, []byte(`"ips":{`), []byte(`"ips":{"10.0.0.10":{},`), 1),
		"no lease":        bytes.Replace(file, []byte(`"containerID":"c1"`), []byte(`"containerID":[c1]`), 1),
	} {
		if _, err := parseState(bad, then.Add(1)); err == nil {
			t.Errorf("%s: no error: %s", name, bad)
		}
	}
	moved := bytes.Replace(unsealed(t, file), []byte(`{"schema`),
		[]byte(`{"written":"2026-11-21T07:17:24Z","sum":"","schema`), 1)
	if out := encoded(t, parsed(t, moved)); !bytes.Equal(out, file) {
		t.Errorf("with its time elsewhere: %s", out)
	}
}

// TestOthersStayUnread: an ADD and a DEL must parse only two leases: the attachment's own lease, and the lease of an
// address that is a hint. In this test, all leases except the attachment's own are broken. Those that the commands need
// not parse must stay unchanged.
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
	file := broken(t, encoded(t, s), `"eni":"eni-1","since":`, `"eni":!eni-1!,"since":`)
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
	// The lease of the hinted address is broken, so its owner is unknown. The DEL has ended this lease, too.
	if n := bytes.Count(file, []byte(`"eni":!`)); n != 199 || s.Leases.Len() != 199 || s.Free.Len() != 51 {
		t.Errorf("%d leases are as they were, of %d; %d are free", n, s.Leases.Len(), s.Free.Len())
	}
	if _, err := parseState(unsealed(t, file), then); err == nil {
		t.Error("without its time the file is read though it is wrong")
	}
}

// TestHeldByAnyID checks that Held finds a lease by the ID of its container, whatever characters the ID has.
func TestHeldByAnyID(t *testing.T) {
	for _, id := range []string{"", "c1", strings.Repeat("0123456789abcdef", 4), strings.Repeat("long", 100), `"`, `\`,
		"ü", "<&>", "\u2028"} {
		s := newState()
		a := fill(s, 3)
		for i, id := range []string{id, "another", id + "x"} {
			if err := s.Reserve(netip.AddrFrom4([4]byte{10, 0, 0, byte(10 + i)}), lease(id)); err != nil {
				t.Fatal(err)
			}
		}
		file := encoded(t, s)
		escaped := bytes.Replace(file, []byte(`"another"`), []byte(`"\u0061nother"`), 1)
		escaped = encoded(t, parsed(t, escaped))
		for _, file := range [][]byte{file, escaped} {
			if !parsed(t, file).isOurs {
				t.Fatalf("not ours: %s", file)
			}
			if held := parsed(t, file).Held(key(id)); len(held) != 1 || held[0] != a {
				t.Errorf("%q: held %v", id, held)
			}
			if held := parsed(t, file).Held(key("another")); len(held) != 1 || held[0] != a.Next() {
				t.Errorf("beside %q: held %v", id, held)
			}
		}
	}
}

// TestHeldAfterEdit: another program edits the file without a change of its meaning. Held must find the lease, also
// after the next process has made the file ours again.
func TestHeldAfterEdit(t *testing.T) {
	s := newState()
	a := fill(s, 2)
	if err := s.Reserve(a, lease("c1")); err != nil {
		t.Fatal(err)
	}
	file := unsealed(t, encoded(t, s))
	var all any
	if err := json.Unmarshal(file, &all); err != nil {
		t.Fatal(err)
	}
	sorted, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	for name, edited := range map[string][]byte{
		"sorted":  sorted,
		"escaped": bytes.Replace(file, []byte(`"containerID":"c1"`), []byte(`"containerID":"\u00631"`), 1),
		"spaced":  bytes.ReplaceAll(file, []byte(`,"`), []byte(`, "`)),
	} {
		if bytes.Equal(edited, file) {
			t.Errorf("%s: nothing is edited", name)
		}
		again := parsed(t, encoded(t, parsed(t, edited)))
		if held := again.Held(key("c1")); !again.isOurs || len(held) != 1 || held[0] != a {
			t.Errorf("%s: held %v, ours %v", name, held, again.isOurs)
		}
	}
}
