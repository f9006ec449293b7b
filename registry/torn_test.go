// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package registry

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestViewTorn: a process reads the file without a lock while another process writes into it. Some kernels notice the
// reader too late. The reader must then read the file again. In this test, a pipe gives the reader the torn text.
func TestViewTorn(t *testing.T) {
	for name, torn := range map[string]func(last []byte) (text []byte, began, ended time.Time){
		"the beginning": func(last []byte) ([]byte, time.Time, time.Time) { return last[:len(last)/2], then, then },
		"two halves that fit": func(last []byte) ([]byte, time.Time, time.Time) {
			return bytes.Replace(last, []byte(`"c1"`), []byte(`"c2"`), 1), then, then
		},
		"with the end of the new text": func(last []byte) ([]byte, time.Time, time.Time) {
			s, err := parseState(last, time.Time{})
			if err != nil {
				t.Fatal(err)
			}
			return bytes.Replace(encoded(t, s), []byte(`"c1"`), []byte(`"c2"`), 1), then.Add(-time.Second), then
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := open(t)
			a := addr("10.0.0.10")
			update(t, r, func(s *State) {
				fill(s, 2)
				if err := s.Reserve(a, lease("c1")); err != nil {
					t.Fatal(err)
				}
			})
			last, err := os.ReadFile(r.filePath())
			if err != nil {
				t.Fatal(err)
			}
			text, began, ended := torn(last)
			next := filepath.Join(r.dir, "next")
			if err := errors.Join(os.Rename(r.filePath(), next), unix.Mkfifo(r.filePath(), 0o600)); err != nil {
				t.Fatal(err)
			}
			pipe, err := os.OpenFile(r.filePath(), os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer pipe.Close()
			if _, err := pipe.Write(text); err != nil {
				t.Fatal(err)
			}
			if err := os.Chtimes(r.filePath(), began, began); err != nil {
				t.Fatal(err)
			}
			var s *State
			seen := make(chan error)
			go func() {
				var err error
				s, err = r.View()
				seen <- err
			}()
			deadline := time.Now().Add(time.Minute)
			for left := 1; left > 0; time.Sleep(time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatal("no reader has read")
				}
				if left, err = unix.IoctlGetInt(int(pipe.Fd()), unix.TIOCINQ); err != nil {
					t.Fatal(err)
				}
			}
			if err := errors.Join(os.Chtimes(r.filePath(), ended, ended), os.Rename(next, r.filePath()), pipe.Close(),
				<-seen); err != nil {
				t.Fatal(err)
			}
			if got, _ := s.Leases.At(a); got.ContainerID != "c1" {
				t.Errorf("%s is leased by %q", a, got.ContainerID)
			}
		})
	}
}
